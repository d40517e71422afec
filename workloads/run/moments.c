#include "workloads/run/moments.h"

#include "models/optim.h"
#include "sim/base/error.h"
#include "workloads/lower/fsdp.h"
#include "workloads/lower/lowering.h"
#include "workloads/run/ledger-walk.h"

enum { REPEATS = 2 }; /* of micro-batches that are alike: as many as the ledger walks */

/* Where in a step something is. */
typedef struct StepPlace {
    guint call, instr;
    int64_t repeat;
} StepPlace;

typedef struct Search {
    LedgerWalk *walk;
    int64_t peak_bytes;
    StepPlace peak;      /* where the step before had its peak */
    ResultPhases *found; /* NULL: only the peak is looked for */
} Search;

/* Tensors that stay, taken one by one. */
typedef struct Taking {
    LedgerWalk *walk;
    int64_t left_bytes; /* of what there is to take */
    gboolean failed;
} Taking;

static void take(Taking *taking, int64_t bytes)
{
    AllocBlock block = alloc_model_take(taking->walk->alloc, STREAM_COMPUTE, MAX(bytes, 0));
    taking->failed = taking->failed || block == ALLOC_FAILED;
    taking->left_bytes -= bytes;
}

static gboolean fail(const LedgerWalk *walk, const char *wanted, const char *where, GError **error)
{
    AllocFree space;
    alloc_model_free_space(walk->alloc, &space);
    g_autofree char *all = quantity_format_bytes(space.bytes), *largest = quantity_format_bytes(space.largest_bytes);
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED, "%s finds no room in %s, with %s free in blocks of at most %s", wanted, where, all, largest);
    return FALSE;
}

static gboolean take_rest(Taking *taking, const char *wanted, const char *where, GError **error)
{
    take(taking, taking->left_bytes);
    return !taking->failed || fail(taking->walk, wanted, where, error);
}

typedef void (*VisitParam)(const Plan *plan, const FsdpGroup *group, const GraphParam *param, Taking *taking);

static void each_param(const Plan *plan, const Program *program, VisitParam visit, Taking *taking)
{
    for (guint s = 0; s < program->sites->len; s++) {
        const FsdpGroup *group = g_array_index(program->sites, ProgramSite, s).group;
        for (guint i = 0; i < group->params->len; i++) {
            const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
            visit(plan, group, graph_param(entry->graph, entry->param), taking);
        }
    }
}

static void take_parameter(const Plan *plan, const FsdpGroup *group, const GraphParam *param, Taking *taking)
{
    int64_t numel = group->resident ? fsdp_local_numel(plan, param) : fsdp_shard_numel(plan, param);
    take(taking, dtype_bytes(plan->parameters, numel));
}

static void take_state(const Plan *plan, const FsdpGroup *group, const GraphParam *param, Taking *taking)
{
    (void)group;
    if (!fsdp_has_grad(param)) {
        return;
    }
    OptimPiece piece = lowering_optim_piece(plan, param);
    int64_t master_bytes = optim_master_bytes(&piece), moment_bytes = optim_moment_bytes(piece.numel, plan->moments);
    int64_t left_bytes = optim_class(plan->optimizer == PLAN_MUON ? OPTIM_muon : OPTIM_adamw)->state_bytes(&piece, plan->moments);
    take(taking, master_bytes);
    for (left_bytes -= master_bytes; left_bytes > 0; left_bytes -= moment_bytes) {
        take(taking, MIN(left_bytes, moment_bytes));
    }
}

/* The memory that is there before the first step, in an allocator that is empty. */
static gboolean take_parameters(const Plan *plan, LedgerWalk *walk, int64_t capacity_bytes, GError **error)
{
    const Program *program = walk->program;
    Taking taking = {.walk = walk, .left_bytes = walk->held.total - program->static_bytes[MEM_OPTIMIZER]};
    alloc_model_reset(walk->alloc);
    alloc_model_bound(walk->alloc, capacity_bytes);
    if (program->expandable_segments) {
        alloc_model_make_expandable(walk->alloc);
    }
    each_param(plan, program, take_parameter, &taking);
    return take_rest(&taking, "a parameter", "the beginning", error);
}

static gboolean take_states(const Plan *plan, LedgerWalk *walk, GError **error)
{
    Taking taking = {.walk = walk, .left_bytes = walk->program->static_bytes[MEM_OPTIMIZER]};
    if (taking.left_bytes > 0) { /* else they are in host memory, or there are none */
        each_param(plan, walk->program, take_state, &taking);
    }
    return take_rest(&taking, "a state of the optimizer", "the first step", error);
}

static void note(const LedgerWalk *walk, ResultMoment *moment)
{
    AllocFree space;
    alloc_model_free_space(walk->alloc, &space);
    *moment = (ResultMoment){walk->held.total, alloc_model_stats(walk->alloc)->reserved_bytes, space.bound_bytes, space.largest_bytes};
}

/* After an instruction. */
static void look(Search *search, const Instr *instr, const StepPlace *at)
{
    const LedgerWalk *walk = search->walk;
    if (search->found == NULL) {
        if (walk->held.total > search->peak_bytes) {
            search->peak_bytes = walk->held.total;
            search->peak = *at;
        }
        return;
    }
    ResultMoment *moments = search->found->moments;
    if (at->call == search->peak.call && at->instr == search->peak.instr && at->repeat == search->peak.repeat) {
        note(walk, &moments[MOMENT_PEAK]);
    }
    if (instr->kind == INSTR_MARK && (instr->phase == PHASE_FORWARD || instr->phase == PHASE_BACKWARD)) {
        note(walk, &moments[instr->phase == PHASE_FORWARD ? MOMENT_AFTER_FORWARD : MOMENT_AFTER_BACKWARD]);
    }
}

/* For what an instruction asks there is no block. */
static gboolean fail_at(const LedgerWalk *walk, const Call *call, const Instr *instr, GError **error)
{
    g_autofree char *wanted = quantity_format_bytes(instr->bytes);
    g_autofree char *where = call->layer >= 0 ? g_strdup_printf("%s of layer %d", program_phase_name((Phase)instr->phase), call->layer)
                                              : g_strdup(program_segment(walk->program, call->segment)->name);
    return fail(walk, wanted, where, error);
}

static gboolean walk_step(Search *search, GError **error)
{
    const Program *program = search->walk->program;
    int64_t n_times = MIN(program->repeat.times, REPEATS), n_done = 0;
    search->peak_bytes = 0;
    for (guint c = 0; c < program->calls->len; c = program_next_call(program, c, n_times, &n_done)) {
        const Call *call = &g_array_index(program->calls, Call, c);
        const GArray *instrs = program_segment(program, call->segment)->instrs;
        for (guint i = 0; i < instrs->len; i++) {
            StepPlace at = {c, i, n_done};
            const Instr *instr = &g_array_index(instrs, Instr, i);
            if (!ledger_walk_instr(search->walk, c, i, NULL)) { /* the ledger has shown that nothing else can be wrong */
                return fail_at(search->walk, call, instr, error);
            }
            look(search, instr, &at);
        }
    }
    return TRUE;
}

gboolean moments_find(const Plan *plan, const Program *program, int64_t capacity_bytes, ResultPhases *ret_phases, GError **error)
{
    g_autoptr(LedgerWalk) walk = ledger_walk_new(program);
    Search search = {.walk = walk};
    *ret_phases = (ResultPhases){0};
    if (!take_parameters(plan, walk, capacity_bytes, error) || !walk_step(&search, error) || !take_states(plan, walk, error) ||
        !walk_step(&search, error)) {
        return FALSE;
    }
    int64_t n_retries = alloc_model_stats(walk->alloc)->n_retries;
    note(walk, &ret_phases->moments[MOMENT_BETWEEN_STEPS]);
    search.found = ret_phases;
    if (!walk_step(&search, error)) {
        return FALSE;
    }
    ret_phases->n_retries = alloc_model_stats(walk->alloc)->n_retries - n_retries;
    return TRUE;
}
