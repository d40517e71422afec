/*
 * Golden cases of the loss, of LoRA on a linear layer, of the optimizers and of the number formats.
 */
#include <math.h>
#include <string.h>

#include "models/formats.h"
#include "models/golden.h"
#include "models/ops/cross-entropy.h"
#include "models/ops/head-loss.h"
#include "models/ops/linear.h"
#include "models/ops/residual-add.h"
#include "models/optim.h"
#include "sim/base/error.h"

gboolean golden_cross_entropy(GoldenCase *c, GError **error);
gboolean golden_adamw(GoldenCase *c, GError **error);
gboolean golden_muon(GoldenCase *c, GError **error);
gboolean golden_lora_linear(GoldenCase *c, GError **error);
gboolean golden_rounding(GoldenCase *c, GError **error);

/* Head and loss, by vocabulary slices if chunk > 0. */
static int add_loss(Graph *graph, int x, int labels, int64_t vocab, int64_t chunk, const CrossEntropyAttr *attr)
{
    if (chunk > 0) {
        return head_loss_add(graph, "lm_head", x, labels, vocab, chunk, attr);
    }
    return cross_entropy_add(graph, "loss", linear_add(graph, "lm_head", x, vocab, FALSE), labels, attr);
}

/* Rows first ... first + n - 1 of a tensor of two dimensions or one. */
static Tensor *rows_of(const Tensor *all, int64_t first, int64_t n)
{
    int64_t width = all->n_dims > 1 ? all->dims[1] : 1;
    Tensor *part = tensor_new_2d(all->type, n, width);
    for (int64_t i = 0; i < n * width; i++) {
        tensor_set(part, i, tensor_get(all, first * width + i));
    }
    return part;
}

/* What the chunks of a loss add up to. */
typedef struct ChunkedLoss {
    const Tensor *x, *labels, *weight;
    double upstream; /* gradient of each chunk's sum: that of the mean over all valid labels */
    Tensor *loss, *lse, *dx, *dweight;
} ChunkedLoss;

/* Log-sum-exp of the rows, which the operator of the loss, the last of the graph, keeps for its backward. */
static const Tensor *kept_lse(Execution *run, const Graph *graph)
{
    return execute_aux(run, graph_n_ops(graph) - 1, 0);
}

static gboolean chunk_run(ChunkedLoss *all, const Graph *graph, int64_t first, int64_t n, GError **error)
{
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = n}, .seq_len = n};
    g_autoptr(Tensor) x = rows_of(all->x, first, n), labels = rows_of(all->labels, first, n);
    g_autoptr(Tensor) seed = tensor_new_2d(x->type, 1, 1);
    g_autoptr(Execution) run = execute_new(graph, &rows, x->type);
    int in_x = g_array_index(graph->inputs, int, 0), out = g_array_index(graph->outputs, int, 0);
    tensor_set(seed, 0, all->upstream);
    execute_put(run, in_x, x);
    execute_put(run, g_array_index(graph->inputs, int, 1), labels);
    execute_put_param(run, 0, all->weight);
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    for (int64_t i = 0; i < n; i++) {
        tensor_set(all->lse, first + i, tensor_get(kept_lse(run, graph), i));
    }
    tensor_set(all->loss, 0, tensor_get(all->loss, 0) + all->upstream * tensor_get(execute_value(run, out), 0));
    execute_put_grad(run, out, seed);
    if (!execute_backward(run, error)) {
        return FALSE;
    }
    execute_add_to(all->dweight, execute_param_grad(run, 0));
    for (int64_t i = 0; i < n * x->dims[1]; i++) {
        tensor_set(all->dx, first * x->dims[1] + i, tensor_get(execute_grad(run, in_x), i));
    }
    return TRUE;
}

static int64_t count_valid(const Tensor *labels, int64_t ignore_index)
{
    int64_t n = 0;
    for (int64_t t = 0; t < tensor_numel(labels); t++) {
        n += ((const int64_t *)labels->data)[t] != ignore_index ? 1 : 0;
    }
    return n;
}

static gboolean compare_n_valid(GoldenCase *c, int64_t n_valid, GError **error)
{
    int64_t one = 1;
    g_autoptr(Tensor) count = tensor_new(TENSOR_I64, 1, &one);
    ((int64_t *)count->data)[0] = n_valid;
    return golden_compare(c, "out.n_valid", count, error);
}

/* Token by token chunk: sums over chunks, divided by the valid labels of all of them. */
static gboolean chunked_loss(GoldenCase *c, const CrossEntropyAttr *attr, GError **error)
{
    CrossEntropyAttr sum = *attr;
    sum.reduction = LOSS_SUM;
    ChunkedLoss all = {
        .x = golden_tensor(c, "in.X"), .labels = golden_tensor(c, "in.labels"), .weight = golden_tensor(c, "in.W")};
    int64_t n = all.x->dims[0], n_valid = count_valid(all.labels, attr->ignore_index),
            chunk = golden_int(c, "token_chunk", n);
    all.upstream = n_valid > 0 ? 1 / (double)n_valid : 1;
    int x = graph_add_input(c->graph, "x", ROWS_TOKENS, all.x->dims[1], DTYPE_FP64, TRUE);
    int labels = graph_add_input(c->graph, "labels", ROWS_TOKENS, 1, DTYPE_INT64, FALSE);
    graph_add_output(c->graph,
                     add_loss(c->graph, x, labels, all.weight->dims[0], golden_int(c, "vocab_chunk", 0), &sum));
    graph_finish(c->graph);
    g_autoptr(Tensor) loss = tensor_new_2d(c->real, 1, 1), dx = tensor_new(c->real, 2, all.x->dims);
    g_autoptr(Tensor) dweight = tensor_new(c->real, 2, all.weight->dims);
    g_autoptr(Tensor) lse = tensor_new(c->real, 1, all.x->dims);
    all.loss = loss;
    all.lse = lse;
    all.dx = dx;
    all.dweight = dweight;
    for (int64_t first = 0; first < n; first += chunk) {
        if (!chunk_run(&all, c->graph, first, MIN(chunk, n - first), error)) {
            return FALSE;
        }
    }
    double scale = tensor_get(golden_tensor(c, "gout.loss"), 0);
    for (int64_t i = 0; i < tensor_numel(dx); i++) {
        tensor_set(dx, i, scale * tensor_get(dx, i));
    }
    for (int64_t i = 0; i < tensor_numel(dweight); i++) {
        tensor_set(dweight, i, scale * tensor_get(dweight, i));
    }
    return golden_compare(c, "out.loss", loss, error) && golden_compare(c, "out.lse", lse, error) &&
           golden_compare(c, "grad.X", dx, error) && golden_compare(c, "grad.W", dweight, error) &&
           compare_n_valid(c, n_valid, error);
}

gboolean golden_cross_entropy(GoldenCase *c, GError **error)
{
    const char *reduction = golden_text(c, "reduction", "mean");
    CrossEntropyAttr attr = {
        .ignore_index = golden_int(c, "ignore_index", CROSS_ENTROPY_IGNORE),
        .label_smoothing = golden_number(c, "smoothing", 0),
        .z_loss = golden_number(c, "zloss", 0),
        .softcap = golden_number(c, "softcap", 0),
        .reduction = strcmp(reduction, "sum") == 0    ? LOSS_SUM
                     : strcmp(reduction, "none") == 0 ? LOSS_NONE
                                                      : LOSS_MEAN,
    };
    if (golden_int(c, "token_chunk", 0) > 0) {
        return chunked_loss(c, &attr, error);
    }
    int x = golden_input(c, "X", ROWS_TOKENS, TRUE);
    int labels = golden_input(c, "labels", ROWS_TOKENS, FALSE);
    golden_output(c, "loss",
                  add_loss(c->graph, x, labels, golden_dim(c, "in.W", 0), golden_int(c, "vocab_chunk", 0), &attr));
    golden_param(c, "lm_head.weight", "W");
    return golden_run(c, error) && golden_compare(c, "out.lse", kept_lse(c->run, c->graph), error) &&
           compare_n_valid(c, count_valid(golden_tensor(c, "in.labels"), attr.ignore_index), error);
}

gboolean golden_lora_linear(GoldenCase *c, GError **error)
{
    int64_t out = golden_dim(c, "in.W0", 0), rank = golden_dim(c, "in.A", 0);
    int x = golden_input(c, "x", ROWS_TOKENS, TRUE);
    int base = linear_add(c->graph, "base", x, out, FALSE);
    int low = linear_add(c->graph, "lora_A", x, rank, FALSE);
    int high = linear_add(c->graph, "lora_B", low, out, FALSE);
    golden_output(c, "y", residual_add(c->graph, "sum", base, high, golden_number(c, "alpha", 1) / (double)rank));
    golden_param(c, "base.weight", "W0");
    golden_param(c, "lora_A.weight", "A");
    golden_param(c, "lora_B.weight", "B");
    graph_param(c->graph, 0)->trainable = FALSE;
    return golden_run(c, error);
}

/* One row of a tensor [steps, ...] as a tensor of the parameter's shape. */
static Tensor *step_row(const Tensor *all, const Tensor *param, int64_t step)
{
    Tensor *row = tensor_new(param->type, param->n_dims, param->dims);
    int64_t n = tensor_numel(param);
    for (int64_t i = 0; i < n; i++) {
        tensor_set(row, i, tensor_get(all, step * n + i));
    }
    return row;
}

/* The case's parameters: in.p.<name>. */
typedef struct AdamwParam {
    const char *name; /* borrowed from the file */
    Tensor *param;
    const Tensor *grads;
    OptimState state;
    gboolean no_decay;
} AdamwParam;

static void adamw_param_clear(void *at)
{
    AdamwParam *p = at;
    tensor_free(p->param);
    optim_state_clear(&p->state);
}

static GArray *adamw_params(GoldenCase *c)
{
    GArray *params = g_array_new(FALSE, FALSE, sizeof(AdamwParam));
    g_array_set_clear_func(params, adamw_param_clear);
    g_auto(GStrv) no_decay = g_strsplit(golden_text(c, "no_decay", ""), ",", -1);
    for (int i = 0; i < safetensors_n(c->file); i++) {
        const char *name = safetensors_name(c->file, i);
        if (g_str_has_prefix(name, "in.p.")) {
            AdamwParam p = {.name = name + strlen("in.p."), .param = tensor_dup(golden_tensor(c, name))};
            g_autofree char *grads = g_strconcat("in.g.", p.name, NULL);
            p.grads = golden_tensor(c, grads);
            p.no_decay = g_strv_contains((const char *const *)no_decay, p.name);
            g_array_append_val(params, p);
        }
    }
    return params;
}

/* Norm of the gradients of all parameters at a step (0-based). */
static double grad_norm(const GArray *params, int64_t step)
{
    double sum = 0;
    for (guint i = 0; i < params->len; i++) {
        const AdamwParam *p = &g_array_index(params, AdamwParam, i);
        int64_t n = tensor_numel(p->param);
        for (int64_t k = 0; k < n; k++) {
            double g = tensor_get(p->grads, step * n + k);
            sum += g * g;
        }
    }
    return sqrt(sum);
}

static gboolean adamw_compare_state(GoldenCase *c, const GArray *params, GError **error)
{
    for (guint i = 0; i < params->len; i++) {
        const AdamwParam *p = &g_array_index(params, AdamwParam, i);
        g_autofree char *m = g_strconcat("out.m.", p->name, NULL), *v = g_strconcat("out.v.", p->name, NULL);
        if (!golden_compare(c, m, p->state.m, error) || !golden_compare(c, v, p->state.v, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

gboolean golden_adamw(GoldenCase *c, GError **error)
{
    g_autoptr(GArray) params = adamw_params(c);
    int64_t steps = golden_int(c, "steps", 0);
    g_autoptr(Tensor) norms = tensor_new(c->real, 1, &steps);
    OptimSettings settings = {
        .lr = golden_number(c, "lr", 0),
        .beta1 = golden_number(c, "beta1", 0),
        .beta2 = golden_number(c, "beta2", 0),
        .eps = golden_number(c, "eps", 0),
        .weight_decay = golden_number(c, "weight_decay", 0),
    };
    for (int64_t step = 0; step < steps; step++) {
        double norm = grad_norm(params, step), clip = optim_clip_factor(norm, golden_number(c, "clip", 0));
        tensor_set(norms, step, norm);
        settings.step = step + 1;
        for (guint i = 0; i < params->len; i++) {
            AdamwParam *p = &g_array_index(params, AdamwParam, i);
            g_autoptr(Tensor) grad = step_row(p->grads, p->param, step);
            for (int64_t k = 0; k < tensor_numel(grad); k++) {
                tensor_set(grad, k, tensor_get(grad, k) * clip);
            }
            settings.no_decay = p->no_decay;
            optim_class(OPTIM_adamw)->update(&settings, p->param, grad, &p->state);
            g_autofree char *out = g_strdup_printf("out.p.%s.step%" G_GINT64_FORMAT, p->name, step + 1);
            if (!golden_compare(c, out, p->param, error)) {
                return FALSE;
            }
        }
    }
    return adamw_compare_state(c, params, error) && golden_compare(c, "out.grad_norm", norms, error);
}

gboolean golden_muon(GoldenCase *c, GError **error)
{
    const Tensor *grads = golden_tensor(c, "in.g");
    g_autoptr(Tensor) param = tensor_dup(golden_tensor(c, "in.p"));
    OptimState state = {NULL, NULL};
    OptimSettings settings = {
        .lr = golden_number(c, "lr", 0),
        .momentum = golden_number(c, "momentum", 0),
        .weight_decay = golden_number(c, "weight_decay", 0),
        .n_heads = golden_int(c, "heads", 1),
    };
    gboolean ok = TRUE;
    for (int64_t step = 0; ok && step < golden_int(c, "steps", 0); step++) {
        g_autoptr(Tensor) grad = step_row(grads, param, step);
        g_autofree char *out = g_strdup_printf("out.p.step%" G_GINT64_FORMAT, step + 1);
        settings.step = step + 1;
        optim_class(OPTIM_muon)->update(&settings, param, grad, &state);
        ok = golden_compare(c, out, param, error);
    }
    ok = ok && golden_compare(c, "out.momentum", state.m, error);
    optim_state_clear(&state);
    return ok;
}

/* Rounding: everything is exact, so codes and values are compared as bit patterns. */
typedef struct Rounding {
    GoldenCase *c;
    const float *x;
    int64_t n, cols;
    GError **error;
} Rounding;

static gboolean same_bytes(Rounding *r, const char *name, const void *got, size_t size)
{
    SafetensorsType type;
    size_t want_size;
    const void *want = safetensors_bytes(r->c->file, name, &type, &want_size);
    golden_use(r->c, name);
    if (want == NULL) {
        return TRUE;
    }
    g_autoptr(Tensor) tensor = safetensors_get(r->c->file, name, r->error);
    if (want_size != size) {
        g_set_error(r->error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s has %zu bytes, ours %zu", name, want_size, size);
        return FALSE;
    }
    r->c->result.n_compared++;
    if (memcmp(want, got, size) != 0) {
        r->c->result.passed = FALSE;
        r->c->result.worst = (double)INFINITY;
        g_strlcpy(r->c->result.worst_at, name, sizeof r->c->result.worst_at);
    }
    return tensor != NULL;
}

/* Values against a tensor of F64 or F32: equal as doubles, NaN to NaN. */
static gboolean same_values(Rounding *r, const char *name, const double *got)
{
    g_autoptr(Tensor) want = safetensors_get(r->c->file, name, NULL);
    golden_use(r->c, name);
    for (int64_t i = 0; want != NULL && i < tensor_numel(want); i++) {
        double b = tensor_get(want, i);
        if (!(got[i] >= b && got[i] <= b) && !(isnan(got[i]) && isnan(b))) {
            r->c->result.passed = FALSE;
            r->c->result.worst = (double)INFINITY;
            g_strlcpy(r->c->result.worst_at, name, sizeof r->c->result.worst_at);
        }
    }
    r->c->result.n_compared++;
    return TRUE;
}

static gboolean rounding_elements(Rounding *r, const char *code_name, uint8_t (*encode)(float),
                                  float (*decode)(uint8_t))
{
    g_autofree uint8_t *codes = g_new0(uint8_t, (gsize)r->n);
    g_autofree double *values = g_new0(double, (gsize)r->n);
    for (int64_t i = 0; i < r->n; i++) {
        codes[i] = encode(r->x[i]);
        values[i] = (double)decode(codes[i]);
    }
    return same_bytes(r, code_name, codes, (size_t)r->n) && same_values(r, "out.y", values);
}

static gboolean rounding_bf16(Rounding *r)
{
    g_autofree uint16_t *codes = g_new0(uint16_t, (gsize)r->n);
    g_autofree double *values = g_new0(double, (gsize)r->n);
    for (int64_t i = 0; i < r->n; i++) {
        codes[i] = GUINT16_TO_LE(format_bf16_encode(r->x[i]));
        values[i] = (double)format_bf16_decode(format_bf16_encode(r->x[i]));
    }
    return same_bytes(r, "out.bits", codes, (size_t)r->n * sizeof *codes) && same_values(r, "out.y", values);
}

static gboolean rounding_tables(Rounding *r)
{
    double e4m3[256], e5m2[256], e2m1[16], e8m0[256];
    for (int i = 0; i < 256; i++) {
        e4m3[i] = (double)format_e4m3_decode((uint8_t)i);
        e5m2[i] = (double)format_e5m2_decode((uint8_t)i);
        e2m1[i & 15] = (double)format_e2m1_decode((uint8_t)(i & 15));
        e8m0[i] = format_e8m0_decode((uint8_t)i);
    }
    return same_values(r, "out.e4m3", e4m3) && same_values(r, "out.e5m2", e5m2) && same_values(r, "out.e2m1", e2m1) &&
           same_values(r, "out.e8m0", e8m0);
}

static gboolean rounding_values(Rounding *r, const float *y)
{
    g_autofree double *values = g_new0(double, (gsize)r->n);
    for (int64_t i = 0; i < r->n; i++) {
        values[i] = (double)y[i];
    }
    return same_values(r, "out.y", values);
}

static gboolean rounding_blocks(Rounding *r)
{
    FormatBlocks blocks = {r->n / r->cols, r->cols, golden_int(r->c, "block_rows", 1),
                           golden_int(r->c, "block_cols", 1)};
    gboolean ue8m0 = strcmp(golden_text(r->c, "scale", ""), "ue8m0") == 0;
    int64_t n_blocks = format_n_blocks(&blocks);
    g_autofree float *scale = g_new0(float, (gsize)n_blocks), *y = g_new0(float, (gsize)r->n);
    g_autofree uint8_t *code = g_new0(uint8_t, (gsize)r->n);
    format_fp8_quantize(&blocks, r->x, ue8m0, scale, code);
    format_fp8_dequantize(&blocks, scale, code, y);
    return same_bytes(r, "out.scale", scale, (size_t)n_blocks * sizeof *scale) &&
           same_bytes(r, "out.code", code, (size_t)r->n) && rounding_values(r, y);
}

static gboolean rounding_mx(Rounding *r, gboolean four_bit)
{
    g_autofree uint8_t *scale = g_new0(uint8_t, (gsize)(r->n / FORMAT_MX_BLOCK)), *code = g_new0(uint8_t, (gsize)r->n);
    g_autofree float *y = g_new0(float, (gsize)r->n);
    if (four_bit) {
        format_mxfp4_quantize(r->n, r->x, scale, code);
        format_mxfp4_dequantize(r->n, scale, code, y);
    } else {
        format_mxfp8_quantize(r->n, r->x, scale, code);
        format_mxfp8_dequantize(r->n, scale, code, y);
    }
    return same_bytes(r, "out.scale", scale, (size_t)(r->n / FORMAT_MX_BLOCK)) &&
           same_bytes(r, four_bit ? "out.packed" : "out.code", code, (size_t)(four_bit ? r->n / 2 : r->n)) &&
           rounding_values(r, y);
}

gboolean golden_rounding(GoldenCase *c, GError **error)
{
    const char *kind = golden_text(c, "kind", "");
    g_autoptr(Tensor) x = safetensors_get(c->file, "in.x", NULL);
    Rounding r = {.c = c, .error = error};
    if (x != NULL) {
        r.x = x->data;
        r.n = tensor_numel(x);
        r.cols = x->dims[x->n_dims - 1];
    }
    if (strcmp(kind, "code_to_value") == 0) {
        return rounding_tables(&r);
    }
    if (x == NULL || x->type != TENSOR_F32) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "needs in.x of type F32");
        return FALSE;
    }
    if (strcmp(kind, "fp32_to_bf16_rne") == 0) {
        return rounding_bf16(&r);
    }
    if (strcmp(kind, "fp32_to_e4m3fn_rne_saturating") == 0) {
        return rounding_elements(&r, "out.code", format_e4m3_encode, format_e4m3_decode);
    }
    if (strcmp(kind, "fp32_to_e2m1_rne_saturating") == 0) {
        return rounding_elements(&r, "out.code", format_e2m1_encode, format_e2m1_decode);
    }
    if (strcmp(kind, "fp8_e4m3_block") == 0) {
        return rounding_blocks(&r);
    }
    if (strcmp(kind, "mxfp4") == 0 || strcmp(kind, "mxfp8_e4m3") == 0) {
        return rounding_mx(&r, strcmp(kind, "mxfp4") == 0);
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "unknown kind of rounding \"%s\"", kind);
    return FALSE;
}
