#include "workloads/run/bound.h"

#include "sim/base/quantity.h"
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
    int64_t link_ns[N_NET_LEVELS]; /* ns x LINK_PART_ONE */
} TimeBound;

static gpointer place_key(Place place)
{
    return GSIZE_TO_POINTER(((gsize)(guint32)(place.arg + 1) << 32 | (guint32)place.idx) + 1);
}

/* What is counted: all, or of the layers more and more alone. */
typedef enum Scope { SCOPE_STEP, SCOPE_LAYERS, SCOPE_SHARDED, SCOPE_ONCE, N_SCOPES } Scope;

/* What is known of a segment, whatever program it is in. */
typedef struct BoundView {
    TimeBound times[N_SCOPES]; /* not of SCOPE_STEP, which depends on the program's clock */
    guint n_items;
    guint items[];             /* instructions that take, give or rename memory */
} BoundView;

/* Whether the operators of a layer run it, for themselves or as the exchange of their experts. */
static gboolean is_of_operators(const Instr *instr)
{
    return instr->kind == INSTR_COLLECTIVE ? instr->group == GROUP_EP : instr->label < N_OPS;
}

/* Duration at the step's clock; of parts alone at whatever clock makes it shortest. */
static SimTime work_ns(const Instr *instr, const ProgramClock *clock, Scope scope)
{
    gboolean is_work = instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE;
    gboolean is_extra = instr->phase == PHASE_RECOMPUTE || instr->label == LABEL_SWAP_OUT || instr->label == LABEL_SWAP_IN;
    if (!is_work || (scope >= SCOPE_SHARDED && is_extra) || (scope == SCOPE_ONCE && !is_of_operators(instr))) {
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
        for (int l = 0; instr->load != 0 && l < N_NET_LEVELS; l++) {
            bound->link_ns[l] += ns * link_load_part(instr->load, l);
        }
    }
    bound->chain_ns = chains.streams[STREAM_COMPUTE];
    bound->is_known = TRUE;
    g_hash_table_unref(chains.tokens);
}

static gboolean is_of_memory(const Instr *instr)
{
    return instr->kind == INSTR_ALLOC || instr->kind == INSTR_FREE || instr->kind == INSTR_MOVE;
}

static BoundView *view_of(Segment *segment)
{
    if (segment->views[VIEW_BOUND] == NULL) {
        BoundView *view = g_malloc0(sizeof *view + (segment->instrs->len + 1) * sizeof view->items[0]);
        for (guint i = 0; i < segment->instrs->len; i++) {
            if (is_of_memory(&g_array_index(segment->instrs, Instr, i))) {
                view->items[view->n_items++] = i;
            }
        }
        segment->views[VIEW_BOUND] = g_realloc(view, sizeof *view + (view->n_items + 1) * sizeof view->items[0]);
        segment->free_view[VIEW_BOUND] = g_free;
    }
    return segment->views[VIEW_BOUND];
}

/* Of a segment at a clock (NULL: whatever it is). own: room for what holds at that clock alone. */
static const TimeBound *time_bound(Segment *segment, const ProgramClock *clock, Scope scope, TimeBound *own)
{
    TimeBound *bound = clock != NULL ? own : &view_of(segment)->times[scope];
    if (!bound->is_known) {
        bound_segment(segment, clock, scope, bound);
    }
    return bound;
}

/* Past what is counted a plan is refused when it is run, so that its bound may be anything there. */
static void add_product(int64_t *sum, int64_t times, int64_t ns)
{
    int64_t more;
    *sum = quantity_mul(times, ns, &more) && *sum < G_MAXINT64 - more ? *sum + more : G_MAXINT64 / 4;
}

static void add_times(TimeBound *sum, const TimeBound *bound, int64_t times)
{
    add_product(&sum->chain_ns, times, bound->chain_ns);
    for (int s = 0; s < N_STREAMS; s++) {
        add_product(&sum->busy_ns[s], times, bound->busy_ns[s]);
    }
    for (int l = 0; l < N_NET_LEVELS; l++) {
        add_product(&sum->link_ns[l], times, bound->link_ns[l]);
    }
}

static SimTime largest_ns(const TimeBound *sum)
{
    SimTime ns = sum->chain_ns;
    for (int s = 0; s < N_STREAMS; s++) {
        ns = MAX(ns, sum->busy_ns[s]);
    }
    for (int l = 0; l < N_NET_LEVELS; l++) {
        ns = MAX(ns, sum->link_ns[l] / LINK_PART_ONE);
    }
    return ns;
}

static SimTime bound_ns(const Program *program, Scope scope)
{
    const ProgramClock *clock = scope == SCOPE_STEP ? &program->clock : NULL;
    g_autofree TimeBound *own = g_new0(TimeBound, clock != NULL ? program->segments->len + 1 : 1);
    TimeBound sum = {0};
    for (guint c = 0; c < program->calls->len; c++) {
        const Call *call = &g_array_index(program->calls, Call, c);
        int64_t times = program_call_times(program, c);
        if (call->layer < 0 && scope != SCOPE_STEP) {
            continue;
        }
        const TimeBound *bound =
            time_bound(program_segment(program, call->segment), clock, scope, clock != NULL ? &own[call->segment] : NULL);
        add_times(&sum, bound, times);
    }
    return largest_ns(&sum);
}

/* ---- memory ---- */

/* What is alive: of all, of what layers allocate. */
enum { HELD_STEP, HELD_LAYERS, N_HELD };

typedef struct Holding {
    int64_t *sizes; /* by buffer; 0 = not alive */
    guint8 *counts; /* by buffer: 1 + the last of N_HELD that count it, which those before do, too */
    int64_t alive_bytes[N_HELD], peak_bytes[N_HELD];
} Holding;

static void hold(Holding *holding, gint32 buffer, const Call *call, const Instr *instr)
{
    int n = call->layer < 0 ? HELD_LAYERS : N_HELD;
    holding->sizes[buffer] = instr->bytes;
    holding->counts[buffer] = (guint8)n;
    for (int k = 0; k < n; k++) {
        holding->alive_bytes[k] += instr->bytes;
        holding->peak_bytes[k] = MAX(holding->peak_bytes[k], holding->alive_bytes[k]);
    }
}

/* What a call frees and renames may be what others allocated. */
static void hold_call(Holding *holding, const Program *program, const Call *call)
{
    Segment *segment = program_segment(program, call->segment);
    const BoundView *view = view_of(segment);
    for (guint i = 0; i < view->n_items; i++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, view->items[i]);
        gint32 buffer = program_resolve(call, instr->place);
        if (instr->kind == INSTR_ALLOC && instr->tier == TIER_HBM) {
            hold(holding, buffer, call, instr);
        } else if (instr->kind == INSTR_FREE) {
            for (int k = 0; k < holding->counts[buffer]; k++) {
                holding->alive_bytes[k] -= holding->sizes[buffer];
            }
            holding->sizes[buffer] = holding->counts[buffer] = 0;
        } else if (instr->kind == INSTR_MOVE) {
            gint32 to = program_resolve(call, instr->to);
            int64_t size = holding->sizes[buffer];
            guint8 counts = holding->counts[buffer];
            holding->sizes[buffer] = holding->counts[buffer] = 0;
            holding->sizes[to] = size;
            holding->counts[to] = counts;
        }
    }
}

/* Beside the static memory: ret_bytes[N_HELD]. */
static void held_bytes(const Program *program, int64_t *ret_bytes)
{
    g_autofree int64_t *sizes = g_new0(int64_t, program->n_buffers + 1);
    g_autofree guint8 *counts = g_new0(guint8, program->n_buffers + 1);
    Holding holding = {.sizes = sizes, .counts = counts};
    for (guint c = 0; c < program->calls->len; c++) {
        hold_call(&holding, program, &g_array_index(program->calls, Call, c));
    }
    for (int k = 0; k < N_HELD; k++) {
        ret_bytes[k] = holding.peak_bytes[k];
    }
}

static void bound_with(const Program *program, const int64_t *held, Bound *ret_bound)
{
    int64_t static_bytes = lower_static_bytes(program);
    *ret_bound = (Bound){
        .layers_ns = bound_ns(program, SCOPE_LAYERS),
        .sharded_ns = bound_ns(program, SCOPE_SHARDED),
        .once_ns = bound_ns(program, SCOPE_ONCE),
        .peak_bytes = static_bytes + held[HELD_LAYERS],
        .layers_bytes = static_bytes + held[HELD_LAYERS],
        .static_bytes = static_bytes,
    };
    ret_bound->step_ns = ret_bound->layers_ns;
}

void bound_of_layers(const Program *program, Bound *ret_bound)
{
    int64_t held[N_HELD];
    held_bytes(program, held);
    bound_with(program, held, ret_bound);
}

void bound_of_program(const Program *program, Bound *ret_bound)
{
    int64_t held[N_HELD];
    held_bytes(program, held);
    bound_with(program, held, ret_bound);
    ret_bound->step_ns = bound_ns(program, SCOPE_STEP);
    ret_bound->peak_bytes = ret_bound->static_bytes + held[HELD_STEP];
}
