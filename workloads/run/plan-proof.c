#include "workloads/run/plan-proof.h"

#include <math.h>
#include <string.h>

#include "models/balance.h"
#include "models/trainer.h"
#include "sim/base/error.h"
#include "sim/base/rng.h"
#include "workloads/lower/fsdp.h"
#include "workloads/lower/lower.h"
#include "workloads/run/choices.h"
#include "workloads/run/proof.h"
#include "workloads/run/virtual-ranks.h"

/* Largest difference, as a share of the largest value of a tensor; values below FLOOR of the largest of all are noise. */
static const double tolerance = 1e-9, noise_floor = 1e-6;

typedef struct Proof {
    const Plan *plan;
    ModelGraph *graphs;
    Trainer *reference;
    VirtualSource source;
    VirtualOptions options;
    const PlanMutation *mutation;
    PlanProof *result;
    int64_t *tokens, *labels;
    int64_t n_tokens; /* of the whole batch */
    uint64_t seed;
} Proof;

void plan_proof_clear(PlanProof *proof)
{
    g_clear_pointer(&proof->worst_at, g_free);
    g_clear_pointer(&proof->peak_at, g_free);
}

static const Graph *graph_at(const Proof *proof, int64_t layer)
{
    return layer < 0                           ? proof->graphs->embedding
           : layer == proof->graphs->n_layers ? proof->graphs->head
                                               : model_graph_layer(proof->graphs, layer);
}

static const Tensor *source_param(void *self, int64_t layer, int param)
{
    const Proof *proof = self;
    return trainer_param_value(proof->reference, layer, param);
}

/* Numbers of a plausible size: matrices keep the variance of what they multiply, vectors lie around one half. */
static void fill_params(const Proof *proof)
{
    uint64_t draw = 0;
    for (int64_t layer = -1; layer <= proof->graphs->n_layers; layer++) {
        const Graph *graph = graph_at(proof, layer);
        for (guint p = 0; p < graph->params->len; p++) {
            const GraphParam *param = graph_param(graph, (int)p);
            Tensor *value = trainer_param_value(proof->reference, layer, (int)p);
            double scale = param->n_dims > 1 ? 1 / sqrt((double)param->dims[param->n_dims - 1]) : 0.1;
            double mean = param->role == PARAM_VECTOR ? 0.5 : 0;
            for (int64_t i = 0; i < tensor_numel(value); i++) {
                tensor_set(value, i, mean + scale * rng_normal(proof->seed, RNG_VALUES, draw++));
            }
        }
    }
}

/* Skewed routing has few distinct tokens, so that many take the same experts and some experts get none. */
static int64_t draw_token(const Proof *proof, uint64_t at)
{
    double uniform = rng_uniform(proof->seed, RNG_TOKENS, at), vocab = (double)proof->plan->model->vocab;
    return (int64_t)(vocab * (proof->plan->routing == PLAN_ROUTING_ZIPF ? pow(uniform, 1 + 4 * proof->plan->routing_exponent) : uniform));
}

static void fill_tokens(Proof *proof)
{
    uint64_t vocab = (uint64_t)proof->plan->model->vocab;
    for (int64_t i = 0; i < proof->n_tokens; i++) {
        uint64_t at = (uint64_t)i * 3;
        proof->tokens[i] = draw_token(proof, at);
        proof->labels[i] = (int64_t)rng_below(proof->seed, RNG_TOKENS, at + 1, vocab);
        if (rng_below(proof->seed, RNG_TOKENS, at + 2, 5) == 0) {
            proof->labels[i] = -100; /* not counted */
        }
    }
}

static double largest(const Tensor *tensor)
{
    double max = 0;
    for (int64_t i = 0; tensor != NULL && i < tensor_numel(tensor); i++) {
        max = fmax(max, fabs(tensor_get(tensor, i)));
    }
    return max;
}

static double difference(const Tensor *a, const Tensor *b, double floor)
{
    double max = 0, scale = fmax(fmax(largest(b), floor), 1e-300);
    for (int64_t i = 0; i < tensor_numel(a); i++) {
        double off = fabs(tensor_get(a, i) - (b != NULL ? tensor_get(b, i) : 0)) / scale;
        max = fmax(max, off);
        if (isnan(off)) {
            return HUGE_VAL;
        }
    }
    return max;
}

static double largest_grad(const Proof *proof)
{
    double max = 0;
    for (int64_t layer = -1; layer <= proof->graphs->n_layers; layer++) {
        for (guint p = 0; p < graph_at(proof, layer)->params->len; p++) {
            max = fmax(max, largest(trainer_param_grad(proof->reference, layer, (int)p)));
        }
    }
    return max;
}

/* One parameter of one replica: its gradient and its value after the step. */
static gboolean compare_param(Proof *proof, const VirtualRanks *world, int64_t replica, int64_t layer, int p, double floor,
                              GError **error)
{
    const GraphParam *param = graph_param(graph_at(proof, layer), p);
    for (int part = VIRTUAL_VALUE; part <= VIRTUAL_GRAD; part++) {
        const Tensor *wanted = part == VIRTUAL_GRAD ? trainer_param_grad(proof->reference, layer, p)
                                                    : trainer_param_value(proof->reference, layer, p);
        g_autoptr(Tensor) found = virtual_ranks_param(world, (VirtualPart)part, replica, layer, p);
        double *worst = part == VIRTUAL_GRAD ? &proof->result->worst_grad : &proof->result->worst_param;
        if (found == NULL && (part == VIRTUAL_VALUE || !fsdp_has_grad(param))) {
            continue;
        }
        proof->result->n_params++;
        double off = found != NULL ? difference(found, wanted, part == VIRTUAL_GRAD ? floor : 0) : HUGE_VAL;
        if (off > *worst) {
            *worst = off;
            g_free(proof->result->worst_at);
            proof->result->worst_at = model_graph_param_name(proof->plan->model, layer == proof->graphs->n_layers ? -1 : layer, param);
        }
        if (off > tolerance) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                        "layer %" G_GINT64_FORMAT ", replica %" G_GINT64_FORMAT ": %s of %s differs by %.3g of its largest value", layer,
                        replica, part == VIRTUAL_GRAD ? "the gradient" : "the updated value", param->name, off);
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean compare_loads(const Proof *proof, const VirtualRanks *world, int64_t layer, GError **error)
{
    const Tensor *wanted = trainer_loads(proof->reference, layer);
    for (int64_t e = 0; wanted != NULL && e < tensor_numel(wanted); e++) {
        int64_t sum = 0;
        for (int64_t r = 0; r < virtual_ranks_n(world); r++) {
            sum += virtual_ranks_loads(world, r, layer)[e];
        }
        if (sum != (int64_t)tensor_get(wanted, e)) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                        "layer %" G_GINT64_FORMAT ": expert %" G_GINT64_FORMAT " gets %" G_GINT64_FORMAT " tokens, in the reference %.0f",
                        layer, e, sum, tensor_get(wanted, e));
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean compare_loss(const Proof *proof, const char *what, double loss, double wanted, GError **error)
{
    double off = fabs(loss - wanted) / fmax(fabs(wanted), 1e-300);
    off = loss == wanted ? 0 : off;
    proof->result->worst_loss = fmax(proof->result->worst_loss, off);
    if (!(off <= tolerance)) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s %.15g, in the reference %.15g", what, loss, wanted);
        return FALSE;
    }
    return TRUE;
}

/* Every rank has moved the selection biases as one that has seen all tokens. */
static gboolean compare_biases(const Proof *proof, const VirtualRanks *world, int64_t layer, GError **error)
{
    const Tensor *loads = trainer_loads(proof->reference, layer);
    if (plan_balance_bytes(proof->plan) == 0 || loads == NULL) {
        return TRUE;
    }
    int64_t experts = tensor_numel(loads);
    g_autofree int64_t *counts = g_new(int64_t, experts);
    g_autofree double *wanted = g_new0(double, experts);
    for (int64_t e = 0; e < experts; e++) {
        counts[e] = (int64_t)tensor_get(loads, e);
    }
    balance_sign(counts, experts, proof->plan->moe.balance_rate, wanted);
    for (int64_t r = 0; r < virtual_ranks_n(world); r++) {
        const double *found = virtual_ranks_biases(world, r, layer);
        if (found == NULL || memcmp(found, wanted, (size_t)experts * sizeof *wanted) != 0) {
            g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                        "layer %" G_GINT64_FORMAT ": rank %" G_GINT64_FORMAT " moves the selection biases otherwise than the reference", layer, r);
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean compare_step(Proof *proof, const VirtualRanks *world, double loss, const TrainerStep *wanted, GError **error)
{
    double floor = noise_floor * largest_grad(proof);
    if (!compare_loss(proof, "loss", loss, wanted->loss, error) ||
        !compare_loss(proof, "losses of the layers", virtual_ranks_extra_loss(world), wanted->extra_loss, error)) {
        return FALSE;
    }
    for (int64_t layer = -1; layer <= proof->graphs->n_layers; layer++) {
        gboolean inside = layer >= 0 && layer < proof->graphs->n_layers;
        if (inside && (!compare_loads(proof, world, layer, error) || !compare_biases(proof, world, layer, error))) {
            return FALSE;
        }
        for (guint p = 0; p < graph_at(proof, layer)->params->len; p++) {
            for (int64_t replica = 0; replica < proof->plan->dp_replicate; replica++) {
                if (!compare_param(proof, world, replica, layer, (int)p, floor, error)) {
                    return FALSE;
                }
            }
        }
    }
    return TRUE;
}

static void mutate(const PlanMutation *mutation, Program *program)
{
    if (mutation != NULL) {
        mutation->apply(mutation->self, program);
    }
}

static gboolean run_steps(Proof *proof, int64_t n_steps, GError **error)
{
    g_autoptr(Program) program = lower_plan(proof->plan, proof->graphs, proof->options.routing, 0);
    g_autoptr(Program) first = lower_plan(proof->plan, proof->graphs, proof->options.routing, 0);
    int64_t n_ranks = proof->plan->dp_replicate * proof->plan->dp_shard;
    g_autofree Program **programs = g_new(Program *, n_ranks);
    gboolean first_only = proof->mutation != NULL && proof->mutation->first_rank_only;
    mutate(proof->mutation, first_only ? first : program);
    for (int64_t r = 0; r < n_ranks; r++) {
        programs[r] = first_only && r == 0 ? first : program;
    }
    for (guint c = 0; c < program->calls->len; c++) {
        proof->result->n_instrs += program_segment(program, g_array_index(program->calls, Call, c).segment)->instrs->len;
    }
    proof->options.exact_sizes = proof->plan->model->n_experts == 0;
    g_autoptr(VirtualRanks) world = virtual_ranks_new(proof->plan, proof->graphs, programs, &proof->source, &proof->options);
    TrainerBatch batch = {proof->plan->global_batch, proof->plan->seq_len, proof->tokens, proof->labels};
    for (int64_t step = 0; step < n_steps; step++) {
        TrainerStep wanted;
        double loss;
        proof->seed++;
        fill_tokens(proof);
        if (!virtual_ranks_step(world, proof->tokens, proof->labels, &loss, error) ||
            !trainer_step(proof->reference, &batch, &wanted, error) ||
            !compare_step(proof, world, loss, &wanted, error)) {
            g_prefix_error(error, "step %" G_GINT64_FORMAT ": ", step + 1);
            return FALSE;
        }
    }
    return TRUE;
}

/* Counts operators. Those of which nothing but their cost is known run in no interpreter of values. */
static gboolean check_kernels(const Proof *proof, GError **error)
{
    for (int64_t layer = -1; layer <= proof->graphs->n_layers; layer++) {
        const Graph *graph = graph_at(proof, layer);
        proof->result->n_layer_losses += (int64_t)graph->outputs->len - 1;
        for (int o = 0; o < graph_n_ops(graph); o++) {
            proof->result->n_ops++;
            proof->result->n_chains += graph_op(graph, o)->eager;
            const OpClass *class = op_class(graph_op(graph, o)->kind);
            if (class->forward[OP_REAL_F64] == NULL && !class->views_input) {
                g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT,
                            "%s has no reference kernel, so a program of %s cannot be run in values", class->title,
                            proof->plan->model->name);
                return FALSE;
            }
        }
    }
    return TRUE;
}

static TrainerSettings trainer_settings(const Plan *plan, const OptimSettings *optim)
{
    return (TrainerSettings){.optim = plan->optimizer == PLAN_MUON ? OPTIM_muon : OPTIM_adamw,
                             .per_head = plan->muon_per_head,
                             .momentum = optim->momentum,
                             .norm_floor = optim->norm_floor,
                             .lr = optim->lr,
                             .beta1 = optim->beta1,
                             .beta2 = optim->beta2,
                             .eps = optim->eps,
                             .weight_decay = optim->weight_decay};
}

Routing *plan_proof_routing(const Plan *plan)
{
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    return routing_is_needed(plan) ? routing_new(&spec, NULL) : NULL;
}

static int64_t *layer_capacities(const Plan *plan, const Routing *routing)
{
    int64_t *capacities = g_new0(int64_t, MAX(plan->model->n_layers, 1));
    for (int64_t i = 0; routing != NULL && i < plan->model->n_layers; i++) {
        capacities[i] = routing_row_counts(plan, routing, plan_moe_layer(plan, i), 0).capacity;
    }
    return capacities;
}

gboolean plan_proof_run(const Plan *plan, int64_t n_steps, uint64_t seed, const PlanMutation *mutation, PlanProof *ret_proof,
                        GError **error)
{
    BlockOptions options = {.compute = plan->compute,
                            .ep_size = 1,
                            .lora = plan->mode == PLAN_LORA,
                            .lora_rank = plan->lora_rank,
                            .lora_attention = plan->lora_attention,
                            .lora_shared = plan->lora_shared,
                            .lora_experts = plan->lora_experts,
                            .lora_shared_a = plan->lora_shared_a,
                            .capacity = plan->moe.capacity,
                            .capacity_scope = plan->seq_len * plan->micro_batch,
                            .capacity_adaptive = plan_capacity_is_measured(plan),
                            .drop = plan->moe.drop,
                            .early_shared = plan->moe.shared_overlap,
                            .aux_loss = plan->moe.aux_loss_coeff,
                            .z_loss = plan->moe.z_loss_coeff,
                            .index_loss = plan->index_kl_coeff,
                            .aux_scope = plan->moe.aux_loss_scope,
                            .aux_tokens = plan->seq_len * plan->micro_batch,
                            .aux_passes = plan->n_micro_batches};
    g_autoptr(Routing) routing = plan_proof_routing(plan);
    g_autofree int64_t *capacities = layer_capacities(plan, routing);
    g_autoptr(ModelGraph) graphs = lower_graphs(plan);
    Proof proof = {.plan = plan, .graphs = graphs, .mutation = mutation, .result = ret_proof, .seed = seed};
    /* a large eps, or floor, keeps the update smooth where a gradient is nothing but rounding */
    proof.options.optim = (OptimSettings){.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-4, .weight_decay = 0.1, .momentum = 0.95, .norm_floor = 1e-3};
    proof.options.routing = routing;
    TrainerSettings settings = trainer_settings(plan, &proof.options.optim);
    settings.capacities = capacities;
    g_autoptr(Choices) choices = choices_new(plan);
    settings.choices = proof.options.choices = choices_by_layer(choices);
    g_autoptr(Trainer) reference = trainer_new(plan->model, &options, &settings, TENSOR_F64);
    *ret_proof = (PlanProof){.n_ranks = plan->dp_replicate * plan->dp_shard, .n_steps = n_steps, .bound = tolerance};
    proof.reference = reference;
    proof.source = (VirtualSource){source_param, &proof};
    proof.n_tokens = plan->global_batch * plan->seq_len;
    g_autofree int64_t *tokens = g_new0(int64_t, proof.n_tokens), *labels = g_new0(int64_t, proof.n_tokens);
    proof.tokens = tokens;
    proof.labels = labels;
    if (!check_kernels(&proof, error)) {
        return FALSE;
    }
    fill_params(&proof);
    if (!run_steps(&proof, n_steps, error)) {
        return FALSE;
    }
    ProofWorld world = {plan, graphs, &proof.source, proof.options, choices, mutation, tokens, labels};
    ret_proof->is_measured = choices != NULL;
    if (!proof_memory(&world, ret_proof, error)) {
        g_prefix_error(error, "memory: ");
        return FALSE;
    }
    return TRUE;
}
