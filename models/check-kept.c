#include "models/check.h"

#include <math.h>

#include "models/check-sample.h"
#include "sim/base/error.h"

/* The i-th gradient of the run: inputs, then parameters. */
static const Tensor *gradient_at(const Sample *s, const Execution *run, guint i)
{
    guint n = s->graph->inputs->len;
    return i < n ? execute_grad(run, g_array_index(s->graph->inputs, int, i)) : execute_param_grad(run, (int)(i - n));
}

/* Whether any gradient of two runs differs. */
static gboolean gradients_differ(const Sample *s, const Execution *a, const Execution *b)
{
    for (guint i = 0; i < s->graph->inputs->len + s->graph->params->len; i++) {
        const Tensor *x = gradient_at(s, a, i), *y = gradient_at(s, b, i);
        for (int64_t k = 0; x != NULL && y != NULL && k < tensor_numel(x); k++) {
            double p = tensor_get(x, k), q = tensor_get(y, k);
            if (!(p >= q && p <= q)) {
                return TRUE;
            }
        }
    }
    return FALSE;
}

/* The i-th thing that an operator keeps: inputs, then outputs, then auxiliary tensors. NULL: not kept. */
static Tensor *kept_tensor(const Sample *s, Execution *run, int op_idx, const OpSaved *saved, int i)
{
    const Op *op = graph_op(s->graph, op_idx);
    const Tensor *kept = NULL;
    if (i < OP_INPUTS_MAX) {
        kept = i < op->n_inputs && (saved->inputs >> i & 1u) && op->inputs[i] >= 0 ? execute_value(run, op->inputs[i])
                                                                                   : NULL;
    } else if (i < OP_INPUTS_MAX + OP_OUTPUTS_MAX) {
        int output = i - OP_INPUTS_MAX;
        kept =
            output < op->n_outputs && (saved->outputs >> output & 1u) ? execute_value(run, op->outputs[output]) : NULL;
    } else {
        kept = execute_aux(run, op_idx, i - OP_INPUTS_MAX - OP_OUTPUTS_MAX);
    }
    return (Tensor *)(guintptr)kept; /* values of the sample and of the run are ours */
}

/* What an operator keeps and what its backward was seen to read, over all samples: bit i as kept_tensor() counts. */
typedef struct KeptSeen {
    guint64 kept, read; /* but for what is said to be read by nobody */
    guint64 wrong;      /* said so, and read */
} KeptSeen;

enum { KEPT_MAX = OP_INPUTS_MAX + OP_OUTPUTS_MAX + OP_AUX_MAX };
G_STATIC_ASSERT(KEPT_MAX <= 64);

/* Disturbs one kept tensor between forward and backward: a gradient changes if it is read. Integers are passed over. */
static gboolean disturb(const Sample *s, const Execution *plain, int op_idx, int i, KeptSeen *seen, GError **error)
{
    g_autoptr(Execution) run = check_sample_run(s);
    OpView view = {s->graph, graph_op(s->graph, op_idx), execute_rows(run)};
    OpSaved saved = {0};
    if (!execute_forward(run, error)) {
        return FALSE;
    }
    op_class(view.op->kind)->saved(&view, &saved);
    Tensor *kept = kept_tensor(s, run, op_idx, &saved, i);
    if (kept == NULL || kept->type == TENSOR_I64 || tensor_numel(kept) == 0 || !op_has_backward(&view)) {
        return TRUE;
    }
    g_autoptr(Tensor) before = tensor_dup(kept);
    for (int64_t k = 0; k < tensor_numel(kept); k++) {
        tensor_set(kept, k, 1.5 * tensor_get(kept, k) + 0.37);
    }
    check_sample_seed(s, run);
    gboolean refused = !execute_backward(run, NULL);
    gboolean is_read = refused || gradients_differ(s, run, plain);
    gboolean is_idle = (guint64)saved.idle_aux << (OP_INPUTS_MAX + OP_OUTPUTS_MAX) >> i & 1u;
    seen->kept |= is_idle ? 0 : G_GUINT64_CONSTANT(1) << i;
    seen->read |= is_read && !is_idle ? G_GUINT64_CONSTANT(1) << i : 0;
    seen->wrong |= is_read && is_idle ? G_GUINT64_CONSTANT(1) << i : 0;
    for (int64_t k = 0; k < tensor_numel(kept); k++) {
        tensor_set(kept, k, tensor_get(before, k));
    }
    return TRUE;
}

static gboolean disturb_sample(const Sample *s, KeptSeen *seen, GError **error)
{
    g_autoptr(Execution) plain = check_sample_run(s);
    if (!execute_forward(plain, error)) {
        return FALSE;
    }
    check_sample_seed(s, plain);
    if (!execute_backward(plain, error)) {
        return FALSE;
    }
    for (int o = 0; o < graph_n_ops(s->graph); o++) {
        for (int i = 0; i < KEPT_MAX && op_class(graph_op(s->graph, o)->kind) == s->class; i++) {
            if (!disturb(s, plain, o, i, seen, error)) {
                return FALSE;
            }
        }
    }
    return TRUE;
}

static const char *kept_name(int i, int *ret_idx)
{
    *ret_idx = i < OP_INPUTS_MAX                    ? i
               : i < OP_INPUTS_MAX + OP_OUTPUTS_MAX ? i - OP_INPUTS_MAX
                                                    : i - OP_INPUTS_MAX - OP_OUTPUTS_MAX;
    return i < OP_INPUTS_MAX ? "input" : i < OP_INPUTS_MAX + OP_OUTPUTS_MAX ? "output" : "auxiliary tensor";
}

static gboolean check_seen(OpKind kind, const KeptSeen *seen, gboolean is_chain, GError **error)
{
    for (int i = 0; i < KEPT_MAX; i++) {
        gboolean wrong = seen->wrong >> i & 1u;
        if (wrong || ((seen->kept & ~seen->read) >> i & 1u)) {
            int idx;
            const char *what = kept_name(i, &idx);
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s%s keeps %s %d, which its backward %s",
                        op_class(kind)->id, is_chain ? " as a chain" : "", what, idx,
                        wrong ? "reads, though it says not" : "never reads");
            return FALSE;
        }
    }
    return TRUE;
}

gboolean check_op_kept(OpKind kind, GError **error)
{
    KeptSeen seen[2] = {{0}}; /* fused, as a chain */
    Sample s;
    if (op_class(kind)->forward[OP_REAL_F64] == NULL) {
        return TRUE;
    }
    for (int v = 0; v < N_VARIANTS; v++) {
        for (int idx = 0; check_sample_init(&s, kind, idx, (Variant)v); idx++) {
            gboolean ok = disturb_sample(&s, &seen[check_is_chain((Variant)v)], error);
            check_sample_clear(&s);
            if (!ok) {
                return FALSE;
            }
        }
    }
    return check_seen(kind, &seen[0], FALSE, error) && check_seen(kind, &seen[1], TRUE, error);
}
