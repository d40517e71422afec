#include "workloads/run/bound.h"

#include "workloads/lower/lower.h"

/* Chains of one call: how long after the call's beginning on the compute stream; −1 = not known to be after it. */
typedef struct Chains {
    SimTime streams[N_STREAMS];
    GHashTable *tokens; /* place → SimTime + 1 */
} Chains;

/* What one run of a segment takes at least. */
typedef struct SegmentBound {
    gboolean is_known;
    SimTime chain_ns, busy_ns[N_STREAMS];
} SegmentBound;

/* Sums over calls. */
typedef struct Sum {
    SimTime chain_ns, busy_ns[N_STREAMS];
} Sum;

static gpointer place_key(Place place)
{
    return GSIZE_TO_POINTER(((gsize)(guint32)(place.arg + 1) << 32 | (guint32)place.idx) + 1);
}

static void chain_instr(Chains *chains, const Instr *instr)
{
    SimTime *at = &chains->streams[instr->stream];
    gpointer noted;
    if (instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE) {
        *at += *at >= 0 ? instr->device_ns : 0;
    } else if (instr->kind == INSTR_RECORD) {
        g_hash_table_insert(chains->tokens, place_key(instr->place), GSIZE_TO_POINTER((gsize)(*at + 1)));
    } else if (instr->kind == INSTR_WAIT &&
               g_hash_table_lookup_extended(chains->tokens, place_key(instr->place), NULL, &noted)) {
        *at = MAX(*at, (SimTime)GPOINTER_TO_SIZE(noted) - 1);
    }
}

static void bound_segment(const Segment *segment, SegmentBound *bound)
{
    Chains chains = {.tokens = g_hash_table_new(NULL, NULL)};
    for (int s = 0; s < N_STREAMS; s++) {
        chains.streams[s] = s == STREAM_COMPUTE ? 0 : -1;
    }
    for (guint i = 0; i < segment->instrs->len; i++) {
        const Instr *instr = &g_array_index(segment->instrs, Instr, i);
        gboolean is_work = instr->kind == INSTR_COMPUTE || instr->kind == INSTR_COLLECTIVE;
        chain_instr(&chains, instr);
        bound->busy_ns[instr->stream] += is_work ? instr->device_ns : 0;
    }
    bound->chain_ns = chains.streams[STREAM_COMPUTE];
    bound->is_known = TRUE;
    g_hash_table_unref(chains.tokens);
}

static void add_call(Sum *sum, const SegmentBound *bound, int64_t times)
{
    sum->chain_ns += times * bound->chain_ns;
    for (int s = 0; s < N_STREAMS; s++) {
        sum->busy_ns[s] += times * bound->busy_ns[s];
    }
}

static SimTime larger_of(const Sum *sum)
{
    SimTime ns = sum->chain_ns;
    for (int s = 0; s < N_STREAMS; s++) {
        ns = MAX(ns, sum->busy_ns[s]);
    }
    return ns;
}

void bound_of_program(const Program *program, Bound *ret_bound)
{
    g_autofree SegmentBound *bounds = g_new0(SegmentBound, program->segments->len + 1);
    Sum all = {0}, layers = {0};
    for (guint c = 0; c < program->calls->len; c++) {
        const Call *call = &g_array_index(program->calls, Call, c);
        SegmentBound *bound = &bounds[call->segment];
        if (!bound->is_known) {
            bound_segment(program_segment(program, call->segment), bound);
        }
        add_call(&all, bound, program_call_times(program, c));
        if (call->layer >= 0) {
            add_call(&layers, bound, program_call_times(program, c));
        }
    }
    *ret_bound = (Bound){larger_of(&all), larger_of(&layers), lower_static_bytes(program)};
}
