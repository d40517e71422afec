#include "models/golden.h"

#include <math.h>
#include <string.h>

#include "sim/base/error.h"

#define GOLDEN(op) gboolean golden_##op(GoldenCase *c, GError **error);
#include "models/golden.def"
#undef GOLDEN

static const struct {
    const char *op;
    GoldenAdapter run;
} adapters[] = {
#define GOLDEN(op) {#op, golden_##op},
#include "models/golden.def"
#undef GOLDEN
};

static GoldenAdapter adapter_find(const char *op)
{
    for (size_t i = 0; i < G_N_ELEMENTS(adapters); i++) {
        if (g_strcmp0(adapters[i].op, op) == 0) {
            return adapters[i].run;
        }
    }
    return NULL;
}

gboolean golden_knows(const char *op)
{
    return adapter_find(op) != NULL;
}

const char *golden_text(const GoldenCase *c, const char *key, const char *or_else)
{
    const char *text = safetensors_meta(c->file, key);
    gboolean absent = text == NULL || *text == '\0' || strcmp(text, "null") == 0 || strcmp(text, "None") == 0;
    return absent ? or_else : text;
}

double golden_number(const GoldenCase *c, const char *key, double or_else)
{
    const char *text = golden_text(c, key, NULL);
    return text != NULL ? g_ascii_strtod(text, NULL) : or_else;
}

int64_t golden_int(const GoldenCase *c, const char *key, int64_t or_else)
{
    const char *text = golden_text(c, key, NULL);
    return text != NULL ? g_ascii_strtoll(text, NULL, 10) : or_else;
}

gboolean golden_has(const GoldenCase *c, const char *full_name)
{
    return safetensors_has(c->file, full_name);
}

void golden_use(GoldenCase *c, const char *full_name)
{
    for (int i = 0; i < safetensors_n(c->file); i++) {
        c->used[i] |= strcmp(safetensors_name(c->file, i), full_name) == 0;
    }
}

const Tensor *golden_tensor(GoldenCase *c, const char *full_name)
{
    golden_use(c, full_name);
    g_autoptr(Tensor) tensor = safetensors_get(c->file, full_name, NULL);
    if (tensor == NULL) {
        return NULL;
    }
    Tensor *mine = tensor->type == TENSOR_I64 ? g_steal_pointer(&tensor) : tensor_convert(tensor, c->real);
    g_ptr_array_add(c->owned, mine);
    return mine;
}

int64_t golden_dim(GoldenCase *c, const char *full_name, int i)
{
    const Tensor *tensor = golden_tensor(c, full_name);
    return tensor != NULL && i < tensor->n_dims ? tensor->dims[i] : 0;
}

static void bind(GArray *to, const char *name, int idx, Tensor *value)
{
    GoldenBinding binding = {.idx = idx, .value = value};
    g_strlcpy(binding.name, name != NULL ? name : "", sizeof binding.name);
    g_array_append_val(to, binding);
}

static char *join(const char *prefix, const char *name)
{
    return g_strconcat(prefix, name, NULL);
}

/* Documents of the case, once. */
static void read_documents(GoldenCase *c, int64_t n_tokens)
{
    const Tensor *starts = golden_tensor(c, "in.cu_seqlens");
    int64_t n = starts != NULL ? tensor_numel(starts) - 1 : 1;
    c->doc_starts = g_new0(int64_t, (gsize)n + 1);
    for (int64_t i = 0; i <= n; i++) {
        c->doc_starts[i] = starts != NULL ? ((const int64_t *)starts->data)[i] : i * n_tokens;
    }
    c->rows.rows[ROWS_SEQUENCES] = n;
    c->rows.doc_starts = c->doc_starts;
    c->rows.seq_len = n_tokens;
}

int golden_input_value(GoldenCase *c, const char *name, RowSpace space, gboolean needs_grad, Tensor *value)
{
    int64_t rows = value->n_dims > 0 ? value->dims[0] : 1, width = 1;
    for (int i = 1; i < value->n_dims; i++) {
        width *= value->dims[i];
    }
    if (space == ROWS_ONE) {
        width *= rows;
        rows = 1;
    }
    c->rows.rows[space] = rows;
    if (space == ROWS_TOKENS && c->doc_starts == NULL) {
        read_documents(c, rows);
    }
    int tensor = graph_add_input(c->graph, name, space, width,
                                 value->type == TENSOR_I64 ? DTYPE_INT64 : c->graph->compute, needs_grad);
    bind(c->inputs, name, tensor, value);
    return tensor;
}

int golden_input(GoldenCase *c, const char *name, RowSpace space, gboolean needs_grad)
{
    g_autofree char *full = join("in.", name);
    const Tensor *value = golden_tensor(c, full);
    g_assert(value != NULL);
    return golden_input_value(c, name, space, needs_grad, tensor_dup(value));
}

static int param_find(const Graph *graph, const char *name)
{
    for (guint i = 0; i < graph->params->len; i++) {
        if (strcmp(graph_param(graph, (int)i)->name, name) == 0) {
            return (int)i;
        }
    }
    g_error("golden adapter: the graph has no parameter \"%s\"", name);
}

void golden_param_value(GoldenCase *c, const char *param, const char *name, Tensor *value)
{
    int idx = param_find(c->graph, param);
    g_assert(tensor_numel(value) == graph_param_numel(graph_param(c->graph, idx)));
    bind(c->params, name, idx, value);
}

void golden_param(GoldenCase *c, const char *param, const char *name)
{
    g_autofree char *full = join("in.", name);
    const Tensor *value = golden_tensor(c, full);
    g_assert(value != NULL);
    golden_param_value(c, param, name, tensor_dup(value));
}

void golden_output(GoldenCase *c, const char *name, int tensor)
{
    graph_add_output(c->graph, tensor);
    bind(c->outputs, name, tensor, NULL);
}

void golden_seed(GoldenCase *c, int tensor, Tensor *grad)
{
    bind(c->seeds, NULL, tensor, grad);
}

static double largest(const Tensor *tensor)
{
    double max = 0;
    int64_t n = tensor_numel(tensor);
    for (int64_t i = 0; i < n; i++) {
        double a = fabs(tensor_get(tensor, i));
        max = a > max || isnan(a) ? a : max;
    }
    return max;
}

static void note(GoldenCase *c, const char *name, double part_of_bound, double rel_error)
{
    GoldenResult *r = &c->result;
    r->n_compared++;
    if (!(part_of_bound <= 1)) {
        r->passed = FALSE;
    }
    if (!(part_of_bound <= r->worst) || r->n_compared == 1) {
        r->worst = part_of_bound;
        r->worst_error = rel_error;
        g_strlcpy(r->worst_at, name, sizeof r->worst_at);
    }
}

/* Largest error as a part of the bound. */
static void compare(GoldenCase *c, const char *name, const Tensor *got, const Tensor *want)
{
    gboolean exact = want->type == TENSOR_I64;
    double rel = c->real == TENSOR_F64 ? 1e-10 : 2e-5, abs = c->real == TENSOR_F64 ? 1e-13 : 1e-6;
    double size = largest(want), bound = exact ? 0 : rel * size + abs * c->abs_scale, error = 0;
    int64_t n = tensor_numel(want);
    for (int64_t i = 0; i < n; i++) {
        double a = tensor_get(got, i), b = tensor_get(want, i);
        double off = isnan(a) != isnan(b) ? (double)INFINITY : a < b || a > b ? fabs(a - b) : 0;
        error = MAX(error, off);
    }
    note(c, name, exact ? (error > 0 ? (double)INFINITY : 0) : error / bound, error / (size > 0 ? size : 1));
}

gboolean golden_compare(GoldenCase *c, const char *full_name, const Tensor *got, GError **error)
{
    g_autoptr(Tensor) want = safetensors_get(c->file, full_name, error);
    golden_use(c, full_name);
    if (want == NULL) {
        return FALSE;
    }
    if (got != NULL && tensor_numel(got) != tensor_numel(want)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                    "%s has %" G_GINT64_FORMAT " elements, ours %" G_GINT64_FORMAT, full_name, tensor_numel(want),
                    tensor_numel(got));
        return FALSE;
    }
    g_autoptr(Tensor) zeros =
        got == NULL ? tensor_new(c->real, want->n_dims, want->dims) : NULL; /* no gradient: zero */
    compare(c, full_name, got != NULL ? got : zeros, want);
    return TRUE;
}

static GoldenBinding *binding_at(GArray *bindings, guint i)
{
    return &g_array_index(bindings, GoldenBinding, i);
}

static void put_operands(GoldenCase *c)
{
    for (guint i = 0; i < c->inputs->len; i++) {
        execute_put(c->run, binding_at(c->inputs, i)->idx, binding_at(c->inputs, i)->value);
    }
    for (guint i = 0; i < c->params->len; i++) {
        execute_put_param(c->run, binding_at(c->params, i)->idx, binding_at(c->params, i)->value);
    }
}

/* Upstream gradients of the file and of the adapter; whether there is any. */
static gboolean put_gradients(GoldenCase *c)
{
    gboolean any = FALSE;
    for (guint i = 0; i < c->outputs->len; i++) {
        g_autofree char *full = join("gout.", binding_at(c->outputs, i)->name);
        const Tensor *grad = golden_tensor(c, full);
        if (grad != NULL) {
            execute_put_grad(c->run, binding_at(c->outputs, i)->idx, grad);
            c->abs_scale = MAX(c->abs_scale, largest(grad));
            any = TRUE;
        }
    }
    for (guint i = 0; i < c->seeds->len; i++) {
        execute_put_grad(c->run, binding_at(c->seeds, i)->idx, binding_at(c->seeds, i)->value);
        c->abs_scale = MAX(c->abs_scale, largest(binding_at(c->seeds, i)->value));
        any = TRUE;
    }
    return any;
}

/* Compares with grad.X where the file has it. */
static gboolean compare_grads(GoldenCase *c, GArray *bindings, gboolean params, GError **error)
{
    for (guint i = 0; i < bindings->len; i++) {
        const GoldenBinding *b = binding_at(bindings, i);
        g_autofree char *full = join("grad.", b->name);
        const Tensor *got = params ? execute_param_grad(c->run, b->idx) : execute_grad(c->run, b->idx);
        if (*b->name != '\0' && golden_has(c, full) && !golden_compare(c, full, got, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

gboolean golden_run(GoldenCase *c, GError **error)
{
    graph_finish(c->graph);
    c->run = execute_new(c->graph, &c->rows, c->real);
    put_operands(c);
    gboolean backward = put_gradients(c);
    if (!execute_forward(c->run, error)) {
        return FALSE;
    }
    for (guint i = 0; i < c->outputs->len; i++) {
        g_autofree char *full = join("out.", binding_at(c->outputs, i)->name);
        if (golden_has(c, full) &&
            !golden_compare(c, full, execute_value(c->run, binding_at(c->outputs, i)->idx), error)) {
            return FALSE;
        }
    }
    if (!backward) {
        return TRUE;
    }
    return execute_backward(c->run, error) && compare_grads(c, c->inputs, FALSE, error) &&
           compare_grads(c, c->outputs, FALSE, error) && compare_grads(c, c->params, TRUE, error);
}

static void binding_clear(void *binding)
{
    tensor_free(((GoldenBinding *)binding)->value);
}

static GArray *bindings_new(void)
{
    GArray *bindings = g_array_new(FALSE, FALSE, sizeof(GoldenBinding));
    g_array_set_clear_func(bindings, binding_clear);
    return bindings;
}

static void tensor_free_any(void *tensor)
{
    tensor_free(tensor);
}

static void case_init(GoldenCase *c, const Safetensors *file, TensorType real)
{
    *c = (GoldenCase){.file = file, .real = real, .abs_scale = 1, .result = {.passed = TRUE}};
    c->graph = graph_new(DTYPE_FP64);
    c->rows.rows[ROWS_ONE] = 1;
    c->used = g_new0(gboolean, (gsize)safetensors_n(file) + 1);
    c->inputs = bindings_new();
    c->params = bindings_new();
    c->outputs = bindings_new();
    c->seeds = bindings_new();
    c->owned = g_ptr_array_new_with_free_func(tensor_free_any);
}

static void case_clear(GoldenCase *c)
{
    execute_free(c->run);
    graph_free(c->graph);
    g_array_unref(c->inputs);
    g_array_unref(c->params);
    g_array_unref(c->outputs);
    g_array_unref(c->seeds);
    g_ptr_array_unref(c->owned);
    g_free(c->doc_starts);
    g_free(c->used);
}

/* A result in the file that nothing of ours was held against would be a check that cannot fail. */
static gboolean all_used(const GoldenCase *c, GError **error)
{
    for (int i = 0; i < safetensors_n(c->file); i++) {
        const char *name = safetensors_name(c->file, i);
        if (!c->used[i] && (g_str_has_prefix(name, "out.") || g_str_has_prefix(name, "grad."))) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s is compared with nothing", name);
            return FALSE;
        }
    }
    return TRUE;
}

gboolean golden_check_file(const Safetensors *file, TensorType real, GoldenResult *ret_result, GError **error)
{
    const char *op = safetensors_meta(file, "op");
    GoldenAdapter run = adapter_find(op);
    if (run == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "no operator \"%s\" is known for golden cases",
                    op != NULL ? op : "");
        return FALSE;
    }
    GoldenCase c;
    case_init(&c, file, real);
    gboolean ok = run(&c, error) && all_used(&c, error);
    *ret_result = c.result;
    case_clear(&c);
    return ok;
}
