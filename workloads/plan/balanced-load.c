#include "workloads/plan/balanced-load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "models/balance.h"
#include "models/execute.h"
#include "models/ops/router-loss.h"
#include "models/ops/router.h"
#include "models/optim.h"
#include "sim/base/rng.h"
#include "workloads/plan/routing-draw.h"

enum { HISTOGRAM_BINS = 1000, TOKENS_MIN = 512, TOKENS_MAX = 8192, N_BATCHES = 4 };

/* Scores that the steps of a rule may look at: some tenths of a second; and what a step of a rule costs against the sign rule's. */
static const double scores_max = 2e8;
static const double step_cost[] = {
    [PLAN_BALANCE_NONE] = 1, [PLAN_BALANCE_AUX_LOSS] = 30, [PLAN_BALANCE_BIAS] = 1, [PLAN_BALANCE_QUANTILE] = 4};
/* The quantile rule has no rate: what it does follows from its last batches, and it settles within a few. */
enum { QUANTILE_STEPS = 16 };

/* Spread of a token's log-scores, and of the experts' mean log-scores in a router of random weights (topk-share.c, and
 * routing-draw.c over the slope of a tail's logarithm). */
static const double score_spread = 0.7, natural_shift = 0.1;

typedef struct Balancing {
    const RoutingSpec *spec;
    MoeShape shape;
    double *keys; /* [N_BATCHES][n_tokens * experts]: scores, or logits (aux_loss), before what the rule moves */
    double *bias;            /* [experts]: what the rule moves */
    int64_t *sel, *counts;
} Balancing;

static double *batch_keys(const Balancing *b, int64_t batch)
{
    return b->keys + batch % N_BATCHES * b->shape.n_tokens * b->shape.experts;
}

/* Keys of a batch: the experts by falling popularity. */
static void draw_keys(const Balancing *b, int64_t batch)
{
    const RoutingSpec *spec = b->spec;
    int64_t experts = spec->experts, n = b->shape.n_tokens * experts;
    gboolean zipf = spec->kind == PLAN_ROUTING_ZIPF, raw = spec->balance == PLAN_BALANCE_AUX_LOSS;
    double *keys = batch_keys(b, batch);
    for (int64_t i = 0; i < n; i++) {
        uint64_t at = 2 * (uint64_t)(batch * n + i);
        double rank = (double)(i % experts);
        double shift = zipf ? -spec->exponent * log(rank + 1) : natural_shift * (1 - 2 * rank / (double)experts);
        double noise = zipf ? rng_gumbel(spec->seed, RNG_EXPERTS, at + 1) : 0;
        double logit = score_spread * rng_normal(spec->seed, RNG_EXPERTS, at) + noise + shift;
        keys[i] = raw ? logit : 1 / (1 + exp(-logit));
    }
}

/* Each token's k experts with the largest key, and how many tokens each expert gets. */
static void route(Balancing *b, int64_t batch)
{
    int64_t experts = b->shape.experts, k = b->shape.top_k;
    const double *from = batch_keys(b, batch);
    g_autofree double *best = g_new(double, k + 1);
    memset(b->counts, 0, (size_t)experts * sizeof *b->counts);
    for (int64_t t = 0; t < b->shape.n_tokens; t++) {
        int64_t *sel = b->sel + t * k, n = 0;
        for (int64_t e = 0; e < experts; e++) {
            double key = from[t * experts + e] + b->bias[e];
            if (n == k && key <= best[k - 1]) {
                continue;
            }
            int64_t place = n < k ? n++ : k - 1;
            for (; place > 0 && key > best[place - 1]; place--) {
                best[place] = best[place - 1];
                sel[place] = sel[place - 1];
            }
            best[place] = key;
            sel[place] = e;
        }
        for (int64_t j = 0; j < k; j++) {
            b->counts[sel[j]]++;
        }
    }
}

/* One step of the quantile rule; FALSE once it moves nothing. */
static gboolean step_quantile(Balancing *b, int64_t batch)
{
    double moved = 0;
    g_autofree double *old = g_memdup2(b->bias, (gsize)b->shape.experts * sizeof *old);
    g_autoptr(BalanceHistogram) histogram = balance_histogram_new(b->bias, b->shape.experts, b->shape.top_k, HISTOGRAM_BINS);
    balance_histogram_add(histogram, batch_keys(b, batch), b->shape.n_tokens);
    balance_histogram_update(histogram, b->bias);
    for (int64_t e = 0; e < b->shape.experts; e++) {
        moved = fmax(moved, fabs(b->bias[e] - old[e]));
    }
    return moved > 1e-9;
}

/* The gradient of the auxiliary loss by the experts' shifts: that of the logits, summed over the tokens. */
static void aux_gradient(const Balancing *b, int64_t batch, Tensor *ret_grad)
{
    const RouterLossAttr attr = {
        .kind = ROUTER_LOSS_AUX, .experts = b->shape.experts, .top_k = b->shape.top_k, .score = ROUTER_SOFTMAX, .coeff = 1};
    int64_t n = b->shape.n_tokens, experts = b->shape.experts;
    RowCounts rows = {.rows = {[ROWS_ONE] = 1, [ROWS_TOKENS] = n, [ROWS_SEQUENCES] = 1}, .seq_len = n};
    g_autoptr(Graph) graph = graph_new(DTYPE_FP64);
    int logits = graph_add_input(graph, "logits", ROWS_TOKENS, experts, DTYPE_FP64, TRUE);
    int sel = graph_add_input(graph, "sel", ROWS_TOKENS, b->shape.top_k, DTYPE_INT64, FALSE);
    int loss = router_loss_add(graph, "aux", logits, sel, &attr);
    graph_add_output(graph, loss);
    graph_finish(graph);
    g_autoptr(Tensor) value = tensor_new_2d(TENSOR_F64, n, experts);
    g_autoptr(Tensor) chosen = tensor_new_2d(TENSOR_I64, n, b->shape.top_k);
    g_autoptr(Tensor) one = tensor_new_2d(TENSOR_F64, 1, 1);
    for (int64_t i = 0; i < n * experts; i++) {
        tensor_set(value, i, batch_keys(b, batch)[i] + b->bias[i % experts]);
    }
    memcpy(chosen->data, b->sel, (size_t)(n * b->shape.top_k) * sizeof *b->sel);
    tensor_set(one, 0, 1);
    g_autoptr(Execution) run = execute_new(graph, &rows, TENSOR_F64);
    execute_put(run, logits, value);
    execute_put(run, sel, chosen);
    gboolean ok = execute_forward(run, NULL);
    execute_put_grad(run, loss, one);
    ok = ok && execute_backward(run, NULL);
    g_assert(ok);
    memset(ret_grad->data, 0, (size_t)experts * sizeof(double));
    for (int64_t i = 0; i < n * experts; i++) {
        ((double *)ret_grad->data)[i % experts] += tensor_get(execute_grad(run, logits), i);
    }
}

static void run_aux_loss(Balancing *b)
{
    OptimSettings settings = {.lr = b->spec->balance_rate, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .no_decay = TRUE, .n_heads = 1};
    OptimState state = {NULL, NULL};
    g_autoptr(Tensor) theta = tensor_new_2d(TENSOR_F64, 1, b->shape.experts);
    g_autoptr(Tensor) grad = tensor_new_2d(TENSOR_F64, 1, b->shape.experts);
    for (int64_t step = 0; step < b->spec->balance_steps; step++) {
        route(b, step);
        aux_gradient(b, step, grad);
        settings.step = step + 1;
        optim_class(OPTIM_adamw)->update(&settings, theta, grad, &state);
        memcpy(b->bias, theta->data, (size_t)b->shape.experts * sizeof *b->bias);
    }
    optim_state_clear(&state);
}

static int64_t n_steps(const RoutingSpec *spec)
{
    return spec->balance == PLAN_BALANCE_QUANTILE ? MIN(spec->balance_steps, QUANTILE_STEPS) : spec->balance_steps;
}

static void run_rule(Balancing *b)
{
    if (b->spec->balance == PLAN_BALANCE_AUX_LOSS) {
        run_aux_loss(b);
        return;
    }
    gboolean moves = b->shape.top_k < b->shape.experts;
    for (int64_t step = 0; step < n_steps(b->spec) && moves; step++) {
        if (b->spec->balance == PLAN_BALANCE_QUANTILE) {
            moves = step_quantile(b, step);
        } else {
            route(b, step);
            balance_sign(b->counts, b->shape.experts, b->spec->balance_rate, b->bias);
        }
    }
}

void load_from_sample(const int64_t *counts, int64_t experts, int64_t top_k, int64_t n_tokens, double *ret_share)
{
    double n = (double)n_tokens, mean = (double)top_k / (double)experts, seen = 0;
    for (int64_t e = 0; e < experts; e++) {
        double off = (double)counts[e] / n - mean;
        seen += off * off / (double)experts;
    }
    double scatter = mean * (1 - mean) / n;
    double shrink = seen > scatter ? sqrt(1 - scatter / seen) : 0;
    for (int64_t e = 0; e < experts; e++) {
        ret_share[e] = fmax(mean + shrink * ((double)counts[e] / n - mean), 0);
    }
    g_autofree double *weights = g_memdup2(ret_share, (gsize)experts * sizeof *weights);
    routing_shares(weights, experts, (double)top_k, ret_share);
}

static int by_falling(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? 1 : x > y ? -1 : 0;
}

static int64_t batch_tokens(const RoutingSpec *spec)
{
    double steps = fmax((double)n_steps(spec), 1) * step_cost[spec->balance];
    return (int64_t)CLAMP(scores_max / steps / (double)spec->experts, TOKENS_MIN, TOKENS_MAX);
}

void balanced_load(const RoutingSpec *spec, double *ret_share)
{
    int64_t experts = spec->experts, n = batch_tokens(spec);
    g_autofree double *keys = g_new(double, N_BATCHES * n * experts), *bias = g_new0(double, experts);
    g_autofree int64_t *sel = g_new0(int64_t, n * spec->top_k), *counts = g_new0(int64_t, experts);
    Balancing b = {spec, {n, spec->top_k, experts}, keys, bias, sel, counts};
    for (int64_t batch = 0; batch < N_BATCHES; batch++) {
        draw_keys(&b, batch);
    }
    run_rule(&b);
    draw_keys(&b, N_BATCHES); /* in the place of the first */
    route(&b, N_BATCHES);
    load_from_sample(counts, experts, spec->top_k, n, ret_share);
    qsort(ret_share, (size_t)experts, sizeof *ret_share, by_falling);
}
