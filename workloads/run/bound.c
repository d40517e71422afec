#include "workloads/run/bound.h"

#include "workloads/lower/lower.h"

/* ---- time ---- */

/* Chains of one call: how long after the call's beginning on the compute stream; −1 = not known to be after it. */
typedef struct Chains {
    SimTime streams[N_STREAMS];
    GHashTable *tokens; /* place → SimTime + 1 */
} Chains;

/* What runs of a segment take at least, and sums of it. */
typedef struct TimeBound {
    gboolean is_known;
    SimTime chain_ns, busy_ns[N_STREAMS];
} TimeBound;

static gpointer place_key(Place place)
{
    return GSIZE_TO_POINTER(((gsize)(guint32)(place.arg + 1) << 32 | (guint32)place.idx) + 1);
}

/* What is counted: all, or of the layers more and more alone. */
typedef enum Scope { SCOPE_STEP, SCOPE_LAYERS, SCOPE_OPERATORS, SCOPE_ONCE } Scope;

/* Whether the operators of a layer run it, for themselves or as the exchange of their experts. */
static gboolean is_of_operators(const Instr *instr)
{
    return instr->kind == INSTR_COLLECTIVE ? instr->group == GROUP_EP : instr->label < N_OPS;
}

/* Duration at the step's clock; of layers alone at whatever clock makes it shortest. */
static SimTime work_ns(const Instr *instr, const ProgramClock *clock, Scope scope)
{
    gboolean is_work = instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE;
    if (!is_work || (scope >= SCOPE_OPERATORS && !is_of_operators(instr)) ||
        (scope == SCOPE_ONCE && instr->phase == PHASE_RECOMPUTE)) {
        return 0;
    }
    SimTime least = MIN(0, MIN(instr->clock_ns[0], instr->clock_ns[1]));
    return scope == SCOPE_STEP ? program_instr_ns(clock, instr) : MAX(0, instr->device_ns + least);
}

static void chain_instr(Chains *chains, const Instr *instr, SimTime ns)
{
    SimTime *at = &chains->streams[instr->stream];
    gpointer noted;
    if (instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE) {
        *at += *at >= 0 ? ns : 0;
    } else if (instr->kind == INSTR_RECORD) {
        g_hash_table_insert(chains->tokens, place_key(instr->place), GSIZE_TO_POINTER((gsize)(*at + 1)));
    } else if (instr->kind == INSTR_WAIT &&
               g_hash_table_lookup_extended(chains->tokens, place_key(instr->place), NULL, &noted)) {
        *at = MAX(*at, (SimTime)GPOINTER_TO_SIZE(noted) - 1);
    }
}

static void bound_segment(const Segment *segment, const ProgramClock *clock, Scope scope, TimeBound *bound)
{
    Chains chains = {.tokens = g_hash_table_new(NULL, NULL)};
    for (int s = 0; s < N_STREAMS; s++) {
        chains.streams[s] = s == STREAM_COMPUTE ? 0 : -1;
    }
    for (guint i = 0; i < segment->instrs->len; i++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, i);
        SimTime ns = work_ns(instr, clock, scope);
        chain_instr(&chains, instr, ns);
        bound->busy_ns[instr->stream] += ns;
    }
    bound->chain_ns = chains.streams[STREAM_COMPUTE];
    bound->is_known = TRUE;
    g_hash_table_unref(chains.tokens);
}

/* Past what is counted a plan is refused when it is run, so that its bound may be anything there. */
static void add_times(SimTime *sum, int64_t times, SimTime ns)
{
    SimTime more;
    *sum = quantity_mul(times, ns, &more) && *sum < G_MAXINT64 - more ? *sum + more : G_MAXINT64 / 4;
}

static SimTime bound_ns(const Program *program, Scope scope)
{
    g_autofree TimeBound *bounds = g_new0(TimeBound, program->segments->len + 1);
    TimeBound sum = {0};
    for (guint c = 0; c < program->calls->len; c++) {
        const Call *call = &g_array_index(program->calls, Call, c);
        TimeBound *bound = &bounds[call->segment];
        int64_t times = program_call_times(program, c);
        if (scope != SCOPE_STEP && call->layer < 0) {
            continue;
        }
        if (!bound->is_known) {
            bound_segment(program_segment(program, call->segment), &program->clock, scope, bound);
        }
        add_times(&sum.chain_ns, times, bound->chain_ns);
        for (int s = 0; s < N_STREAMS; s++) {
            add_times(&sum.busy_ns[s], times, bound->busy_ns[s]);
        }
    }
    SimTime ns = sum.chain_ns;
    for (int s = 0; s < N_STREAMS; s++) {
        ns = MAX(ns, sum.busy_ns[s]);
    }
    return ns;
}

/* ---- memory ---- */

typedef struct Holding {
    int64_t *sizes; /* by buffer; 0 = not alive, or not counted */
    int64_t alive_bytes, peak_bytes;
} Holding;

/* Whether what an instruction of a call allocates is counted. */
static gboolean holds(const Call *call, const Instr *instr, Scope scope)
{
    gboolean is_counted = scope == SCOPE_STEP || call->layer >= 0;
    gboolean is_of_operators = instr->tag == MEM_ACTIVATIONS || instr->tag == MEM_DISPATCH;
    return instr->tier == TIER_HBM && is_counted && (scope < SCOPE_OPERATORS || is_of_operators);
}

/* What a call frees and renames may be what others allocated, which counts or not. */
static void hold_call(Holding *holding, const Program *program, const Call *call, Scope scope)
{
    const GArray *instrs = program_segment(program, call->segment)->instrs;
    for (guint i = 0; i < instrs->len; i++) {
        const Instr *instr = &g_array_index(instrs, Instr, i);
        if (instr->kind == INSTR_ALLOC && holds(call, instr, scope)) {
            holding->sizes[program_resolve(call, instr->place)] = instr->bytes;
            holding->alive_bytes += instr->bytes;
            holding->peak_bytes = MAX(holding->peak_bytes, holding->alive_bytes);
        } else if (instr->kind == INSTR_FREE) {
            int64_t *size = &holding->sizes[program_resolve(call, instr->place)];
            holding->alive_bytes -= *size;
            *size = 0;
        } else if (instr->kind == INSTR_MOVE) {
            int64_t *from = &holding->sizes[program_resolve(call, instr->place)];
            int64_t size = *from;
            *from = 0;
            holding->sizes[program_resolve(call, instr->to)] = size;
        }
    }
}

/* Beside the static memory. */
static int64_t held_bytes(const Program *program, Scope scope)
{
    g_autofree int64_t *sizes = g_new0(int64_t, program->n_buffers + 1);
    Holding holding = {.sizes = sizes};
    for (guint c = 0; c < program->calls->len; c++) {
        hold_call(&holding, program, &g_array_index(program->calls, Call, c), scope);
    }
    return holding.peak_bytes;
}

void bound_of_program(const Program *program, Bound *ret_bound)
{
    int64_t static_bytes = lower_static_bytes(program);
    *ret_bound = (Bound){
        .step_ns = bound_ns(program, SCOPE_STEP),
        .layers_ns = bound_ns(program, SCOPE_LAYERS),
        .operators_ns = bound_ns(program, SCOPE_OPERATORS),
        .once_ns = bound_ns(program, SCOPE_ONCE),
        .peak_bytes = static_bytes + held_bytes(program, SCOPE_STEP),
        .layers_bytes = static_bytes + held_bytes(program, SCOPE_LAYERS),
        .static_bytes = static_bytes,
        .operators_bytes = held_bytes(program, SCOPE_OPERATORS),
    };
}
