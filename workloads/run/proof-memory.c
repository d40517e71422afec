/*
 * The memory half of a plan proof: a program lowered with the routers' real loads, in which every value must be exactly as
 * large as its buffer, and whose peaks are the ledger's.
 *
 * The program has one load per layer, so all micro-batches of a rank get the same tokens here.
 */
#include <string.h>

#include "models/trainer.h"
#include "sim/base/error.h"
#include "workloads/lower/lower.h"
#include "workloads/run/ledger.h"
#include "workloads/run/peak-time.h"
#include "workloads/run/proof.h"

static void repeat_micro_batches(const Plan *plan, int64_t n_ranks, int64_t *values)
{
    int64_t n = plan->seq_len * plan->micro_batch;
    for (int64_t r = 0; r < n_ranks; r++) {
        int64_t *first = values + r * n * plan->n_micro_batches;
        for (int64_t m = 1; m < plan->n_micro_batches; m++) {
            memcpy(first + m * n, first, (size_t)n * sizeof *values);
        }
    }
}

/* Loads of one EP group as a measured routing: [MoE layer][rank][expert] of one micro-batch. */
static json_t *group_loads(const Plan *plan, const VirtualRanks *world, int64_t first_rank)
{
    json_t *layers = json_array();
    for (int64_t l = 0; l < plan->model->n_layers; l++) {
        if (plan->model->layers[l].ffn != FFN_MOE) {
            continue;
        }
        json_t *ranks = json_array();
        for (int64_t r = 0; r < plan->ep; r++) {
            const int64_t *loads = virtual_ranks_loads(world, first_rank + r, l);
            json_t *experts = json_array();
            for (int64_t e = 0; e < plan->model->n_experts; e++) {
                json_array_append_new(experts, json_integer((json_int_t)(loads[e] / plan->n_micro_batches)));
            }
            json_array_append_new(ranks, experts);
        }
        json_array_append_new(layers, ranks);
    }
    return layers;
}

/* Tokens that went from rank to rank of an EP group, by MoE layer: [layer][chunk][source][dest]; caller frees. */
static int64_t *group_arrivals(const Plan *plan, const VirtualRanks *world, int64_t first_rank)
{
    int64_t n = plan->ep, chunks = plan->moe.overlap_chunks;
    int64_t *arrivals = g_new0(int64_t, MAX(plan->model->n_layers, 1) * chunks * n * n), *next = arrivals;
    for (int64_t l = 0; l < plan->model->n_layers; l++) {
        for (int64_t i = 0; plan->model->layers[l].ffn == FFN_MOE && i < chunks * n * n; i++) {
            *next++ = virtual_ranks_arrivals(world, first_rank + i / n % n, l, i / (n * n), i % n);
        }
    }
    return arrivals;
}

/* Rows of the chunks of one micro-batch, by MoE layer: [layer][chunk][source][expert]; NULL without chunks. Caller frees. */
static int64_t *group_chunks(const Plan *plan, const VirtualRanks *world, int64_t first_rank)
{
    int64_t n = plan->ep, chunks = plan->moe.overlap_chunks, experts = plan->model->n_experts;
    if (chunks == 1) {
        return NULL;
    }
    int64_t *tokens = g_new0(int64_t, plan->model->n_layers * chunks * n * experts), *next = tokens;
    for (int64_t l = 0; l < plan->model->n_layers; l++) {
        for (int64_t i = 0; plan->model->layers[l].ffn == FFN_MOE && i < chunks * n * experts; i++) {
            const int64_t *loads = virtual_ranks_chunk_loads(world, first_rank + i / experts % n, l, i / (experts * n));
            *next++ = loads[i % experts] / plan->n_micro_batches;
        }
    }
    return tokens;
}

/* Rows as the routers kept them, on the slots of the plan's own placement and under its capacities. */
static Routing *group_routing(const Plan *plan, const Routing *placed, const VirtualRanks *world, int64_t first_rank, GError **error)
{
    g_autoptr(json_t) value = group_loads(plan, world, first_rank);
    g_autoptr(JsonDoc) loads = json_doc_from_value(value, "loads of the virtual ranks");
    RoutingSpec spec = routing_spec(plan, plan->seq_len * plan->micro_batch, plan->micro_batch);
    spec.kind = PLAN_ROUTING_MEASURED;
    spec.loads = loads;
    spec.exact = TRUE;
    spec.placed = placed;
    g_autofree int64_t *arrivals = group_arrivals(plan, world, first_rank), *chunks = group_chunks(plan, world, first_rank);
    spec.chunk_tokens = chunks;
    spec.arrivals = plan_sends_tokens(plan) ? arrivals : NULL;
    return routing_new(&spec, error);
}

static void destroy_program(void *program)
{
    program_free(program);
}

/* Measured loads are those of the virtual ranks, up to what a capacity drops. */
static gboolean compare_measured(const ProofWorld *proof, const VirtualRanks *world, GError **error)
{
    const Plan *plan = proof->plan;
    for (int64_t i = 0; proof->choices != NULL && i < plan->model->n_layers * virtual_ranks_n(world); i++) {
        int64_t layer = i / virtual_ranks_n(world), rank = i % virtual_ranks_n(world),
                table = plan_moe_layer(plan, layer);
        const int64_t *loads = virtual_ranks_loads(world, rank, layer);
        for (int64_t e = 0; loads != NULL && e < plan->model->n_experts; e++) {
            int64_t all = choices_load(proof->choices, layer, rank, e);
            int64_t kept = routing_tokens(proof->options.routing, routing_table(proof->options.routing, table),
                                          rank % plan->dp_shard % plan->ep, e);
            if (loads[e] != kept * plan->n_micro_batches || kept > all) {
                g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                            "layer %" G_GINT64_FORMAT ": rank %" G_GINT64_FORMAT " sends %" G_GINT64_FORMAT
                            " tokens to expert %" G_GINT64_FORMAT ", the plan's loads say %" G_GINT64_FORMAT,
                            layer, rank, loads[e], e, kept * plan->n_micro_batches);
                return FALSE;
            }
        }
    }
    return TRUE;
}

/* A program per rank, with its group's loads. */
static gboolean lower_ranks(const ProofWorld *proof, const VirtualRanks *world, GPtrArray *programs, GError **error)
{
    const Plan *plan = proof->plan;
    for (int64_t first = 0; first < virtual_ranks_n(world); first += plan->ep) {
        g_autoptr(Routing) routing = NULL;
        if (plan->model->n_experts > 0 && (routing = group_routing(plan, proof->options.routing, world, first, error)) == NULL) {
            return FALSE;
        }
        for (int64_t r = 0; r < plan->ep; r++) {
            g_ptr_array_add(programs, lower_plan(plan, proof->graphs, routing, r));
        }
    }
    return TRUE;
}

/* The peak: how much, of what, at which instruction and operator. */
static gboolean compare_peak(const VirtualPeak *peak, const Ledger *ledger, int64_t rank, GError **error)
{
    if (ledger->peak_bytes != peak->bytes || memcmp(ledger->at_peak, peak->by_tag, sizeof peak->by_tag) != 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                    "rank %" G_GINT64_FORMAT " holds at most %" G_GINT64_FORMAT " bytes, the ledger says %" G_GINT64_FORMAT, rank,
                    peak->bytes, ledger->peak_bytes);
        return FALSE;
    }
    if (ledger->peak_call != peak->call || ledger->peak_instr != peak->instr || ledger->peak_op != peak->op) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                    "rank %" G_GINT64_FORMAT " has its peak in call %d, instruction %d, after operator %d; the ledger in %d, %d, %d", rank,
                    peak->call, peak->instr, peak->op, ledger->peak_call, ledger->peak_instr, ledger->peak_op);
        return FALSE;
    }
    return TRUE;
}

/* What was compared all along. */
static void count_rank(const VirtualRanks *world, int64_t rank, PlanProof *proof)
{
    int64_t bytes;
    proof->n_ledger += virtual_ranks_n_followed(world, rank);
    proof->n_ordered += virtual_ranks_n_ordered(world, rank);
    proof->n_exchanged += virtual_ranks_n_exchanged(world, rank, &bytes);
    proof->exchanged_bytes += bytes;
}

static gboolean compare_rank(const VirtualRanks *world, const Program *program, int64_t rank, PlanProof *proof, GError **error)
{
    Ledger ledger;
    const VirtualPeak *peak = virtual_ranks_peak(world, rank);
    g_autofree char *fault = virtual_ranks_static_fault(world, rank);
    if (fault != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s", fault);
        return FALSE;
    }
    if (!ledger_run(program, 0, &ledger, error) || !compare_peak(peak, &ledger, rank, error)) {
        return FALSE;
    }
    if (peak->bytes > proof->peak_bytes) {
        proof->peak_bytes = peak->bytes;
        g_free(proof->peak_at);
        proof->peak_at = ledger_peak_place(&ledger);
    }
    return TRUE;
}

/* The simulation in time comes to the peak of the fullest rank at the same instruction. */
static gboolean time_peak(const ProofWorld *proof, const VirtualRanks *world, const GPtrArray *programs,
                          PlanProof *result, GError **error)
{
    int64_t fullest = 0, n = proof->plan->model->n_experts > 0 ? proof->plan->ep : 1;
    for (int64_t r = 1; r < virtual_ranks_n(world); r++) {
        fullest = virtual_ranks_peak(world, r)->bytes > virtual_ranks_peak(world, fullest)->bytes ? r : fullest;
    }
    const VirtualPeak *peak = virtual_ranks_peak(world, fullest);
    Program *const *classes = (Program *const *)(void *)programs->pdata + fullest / n * n;
    PeakTime time;
    if (!peak_time_find(proof->plan, classes, n, fullest % n, classes[fullest % n], &time, error)) {
        return FALSE;
    }
    result->peak_time_s = time.seconds;
    if (time.bytes == peak->bytes && time.call == peak->call && time.instr == peak->instr) {
        return TRUE;
    }
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                "rank %" G_GINT64_FORMAT " has its peak in call %d, instruction %d; the step in time in %d, %d",
                fullest, peak->call, peak->instr, time.call, time.instr);
    return FALSE;
}

/* Runs a step only to see which loads the routers make. */
static VirtualRanks *probe_loads(const ProofWorld *proof, Program *program, GError **error)
{
    int64_t n = proof->plan->dp_replicate * proof->plan->dp_shard;
    g_assert(n >= 1);
    g_autofree Program **programs = g_new(Program *, (gsize)n);
    VirtualOptions options = proof->options;
    double loss;
    for (int64_t r = 0; r < n; r++) {
        programs[r] = program;
    }
    options.exact_sizes = FALSE;
    g_autoptr(VirtualRanks) world = virtual_ranks_new(proof->plan, proof->graphs, programs, proof->source, &options);
    return virtual_ranks_step(world, proof->tokens, proof->labels, &loss, error) ? g_steal_pointer(&world) : NULL;
}

gboolean proof_memory(const ProofWorld *proof, PlanProof *result, GError **error)
{
    g_autoptr(Program) even = lower_plan(proof->plan, proof->graphs, proof->options.routing, 0);
    g_autoptr(GPtrArray) programs = g_ptr_array_new_with_free_func(destroy_program);
    VirtualOptions options = proof->options;
    double loss;
    options.exact_sizes = options.with_ledger = options.with_order = TRUE;
    options.optim.lr = 0; /* the second step routes as the first */
    repeat_micro_batches(proof->plan, proof->plan->dp_replicate * proof->plan->dp_shard, proof->tokens);
    repeat_micro_batches(proof->plan, proof->plan->dp_replicate * proof->plan->dp_shard, proof->labels);
    g_autoptr(VirtualRanks) probe = probe_loads(proof, even, error);
    if (probe == NULL || !compare_measured(proof, probe, error) || !lower_ranks(proof, probe, programs, error)) {
        return FALSE;
    }
    for (guint r = 0; proof->mutation != NULL && r < (proof->mutation->first_rank_only ? 1 : programs->len); r++) {
        proof->mutation->apply(proof->mutation->self, g_ptr_array_index(programs, r));
    }
    g_autoptr(VirtualRanks) world = virtual_ranks_new(proof->plan, proof->graphs, (Program *const *)(void *)programs->pdata,
                                                      proof->source, &options);
    if (!virtual_ranks_step(world, proof->tokens, proof->labels, &loss, error)) {
        return FALSE;
    }
    for (int64_t r = 0; r < virtual_ranks_n(world); r++) {
        if (!compare_rank(world, g_ptr_array_index(programs, r), r, result, error)) {
            return FALSE;
        }
    }
    if (!time_peak(proof, world, programs, result, error)) {
        return FALSE;
    }
    /* again, for what a step leaves undone shows in the next one */
    if (!virtual_ranks_step(world, proof->tokens, proof->labels, &loss, error)) {
        g_prefix_error(error, "second step: ");
        return FALSE;
    }
    for (int64_t r = 0; r < virtual_ranks_n(world); r++) {
        count_rank(world, r, result);
    }
    return TRUE;
}
