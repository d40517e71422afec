#include "workloads/lower/frame.h"

#include <string.h>

#include "workloads/lower/clock.h"

/* Calls that a head mostly has no more of. */
enum { HEAD_CALLS = 64 };

struct LowerFrame {
    Lowering lowering; /* its program is gone */
    StepParts parts;   /* states; places in the calls below */
    GArray *calls;     /* Call: of the parts that are not the head's, with places in the segments below */
    GPtrArray *segments;
    Program like; /* what its programs have in common: arrays with references, numbers; no calls, no segments */
    guint32 ids[N_STEP_PARTS];
    PowerSums power[N_STEP_PARTS]; /* of the calls, each once */
};

gboolean step_part_is_head(int part)
{
    return part != PART_OPTIMIZER &&
           (part % N_BATCH_PARTS == PART_HEAD_FORWARD || part % N_BATCH_PARTS == PART_HEAD_BACKWARD);
}

/* Heads with a group of their own, heads whose loss is one operator, steps that add to gradients: each has other calls.
 */
static void frame_key(const Lowering *lowering, gint32 *ret_key)
{
    const Plan *plan = lowering->plan;
    enum { OWN_HEAD = 1, SLICED = 2, REPEATS = 4 };
    ret_key[0] = lowering->scope;
    const int64_t cache[] = {plan->cache_hbm_bytes, plan->cache_ddr_bytes, plan->cache_window, plan->cache_policy};
    ret_key[2] = plan->has_cache ? lower_cache_number(lowering->cache, cache, sizeof cache) : 0;
    ret_key[1] = (plan->seq_chunk == 0 ? OWN_HEAD : 0) | (plan->vocab_chunk > 0 ? SLICED : 0) |
                 (plan->n_micro_batches > 1 ? REPEATS : 0);
}

const LowerFrame *lower_frame_find(const Lowering *lowering)
{
    gint32 key[FRAME_KEY_WORDS];
    frame_key(lowering, key);
    return lower_cache_frame(lowering->cache, key);
}

static void frame_free(void *data)
{
    LowerFrame *frame = data;
    lowering_clear(&frame->lowering);
    g_array_unref(frame->calls);
    g_ptr_array_unref(frame->segments);
    g_array_unref(frame->like.sites);
    g_array_unref(frame->like.whole_units);
    g_array_unref(frame->like.whole_rounds);
    g_array_unref(frame->like.dealt);
    g_ptr_array_unref(frame->like.groups);
    g_free(frame);
}

static void drop_segment(void *segment)
{
    segment_unref(segment);
}

/* Numbers of runs are never used twice, whatever cache they are of. */
static guint32 next_run_id(void)
{
    static gint n_runs;
    return (guint32)g_atomic_int_add(&n_runs, 1);
}

/* Copies the calls of the parts that are not the head's, and gathers their segments. */
static void keep_calls(LowerFrame *frame, const Program *program, const StepParts *parts)
{
    g_autofree gint32 *places = g_new0(gint32, program->segments->len); /* 1 + place among the frame's segments */
    for (int p = 0; p < N_STEP_PARTS; p++) {
        frame->parts.first[p] = frame->calls->len;
        frame->ids[p] = next_run_id();
        for (guint c = parts->first[p]; c < parts->first[p + 1] && !step_part_is_head(p); c++) {
            Call call = g_array_index(program->calls, Call, c);
            gint32 *place = &places[call.segment];
            if (*place == 0) {
                g_ptr_array_add(frame->segments, segment_ref(program_segment(program, call.segment)));
                *place = (gint32)frame->segments->len;
            }
            call.segment = *place - 1;
            g_array_append_val(frame->calls, call);
            clock_add_call(frame->calls, frame->calls->len - 1, frame->segments, 1, &frame->power[p]);
        }
    }
    frame->parts.first[N_STEP_PARTS] = frame->calls->len;
}

/* Memory of a frame; segments that the cache holds by their keys are counted there. */
static size_t frame_size_bytes(const LowerFrame *frame)
{
    enum { LAYER_BYTES = 512, HOLDERS = 2 };
    size_t n_bytes =
        sizeof *frame + 2 * frame->calls->len * sizeof(Call) + (size_t)frame->lowering.graphs->n_layers * LAYER_BYTES;
    for (guint i = 0; i < frame->segments->len; i++) {
        const Segment *segment = g_ptr_array_index(frame->segments, i);
        n_bytes += segment->n_refs <= HOLDERS ? segment_size_bytes(segment) : 0;
    }
    return n_bytes;
}

const LowerFrame *lower_frame_keep(Lowering *lowering, const StepParts *parts)
{
    LowerFrame *frame = g_new0(LowerFrame, 1);
    const Program *program = lowering->program;
    gint32 key[FRAME_KEY_WORDS];
    frame->lowering = *lowering;
    frame->parts = *parts;
    frame->calls = g_array_new(FALSE, TRUE, sizeof(Call));
    frame->segments = g_ptr_array_new_with_free_func(drop_segment);
    frame->like = *program;
    g_array_ref(program->sites);
    g_array_ref(program->whole_units);
    g_array_ref(program->whole_rounds);
    g_array_ref(program->dealt);
    g_ptr_array_ref(program->groups);
    keep_calls(frame, program, parts);
    frame_key(lowering, key);
    lower_cache_put_frame(lowering->cache, key, frame, frame_size_bytes(frame), frame_free);
    frame->lowering.program = NULL;
    frame->lowering.plan = NULL;
    return frame;
}

/* An array of the program's becomes the frame's. */
static void share_array(GArray **array, GArray *of_frame)
{
    g_array_unref(*array);
    *array = g_array_ref(of_frame);
}

void lower_frame_start(const LowerFrame *frame, Lowering *lowering)
{
    const Lowering own = *lowering;
    Program *program = lowering->program;
    *lowering = frame->lowering;
    lowering->plan = own.plan;
    lowering->graphs = own.graphs;
    lowering->program = program;
    lowering->emitter = own.emitter;
    lowering->segments = segment_table_new();
    share_array(&program->sites, frame->like.sites);
    share_array(&program->whole_units, frame->like.whole_units);
    share_array(&program->whole_rounds, frame->like.whole_rounds);
    share_array(&program->dealt, frame->like.dealt);
    g_ptr_array_unref(program->groups);
    program->groups = g_ptr_array_ref(frame->like.groups);
    program->inputs = frame->like.inputs;
    program->n_tokens = frame->like.n_tokens;
    program->host_static_bytes = frame->like.host_static_bytes;
    program->uneven_state_bytes = frame->like.uneven_state_bytes;
    program->fullest_rank = frame->like.fullest_rank;
    memcpy(program->static_bytes, frame->like.static_bytes, sizeof program->static_bytes);
    program_reserve(program, frame->calls->len + HEAD_CALLS, frame->segments->len + HEAD_CALLS);
    for (guint i = 0; i < frame->segments->len; i++) {
        program_share_segment(program, g_ptr_array_index(frame->segments, i));
    }
    program->n_buffers = lowering->losses;
    lowering_take_losses(lowering);
}

StepState lower_frame_state(const LowerFrame *frame, int part, Lowering *lowering)
{
    StepState state = frame->parts.states[part];
    state.lowering = lowering;
    return state;
}

void lower_frame_add_run(const LowerFrame *frame, int part, Program *program)
{
    guint first = frame->parts.first[part], n = frame->parts.first[part + 1] - first;
    ProgramRun run = {program->calls->len, n, frame->ids[part], frame->power[part]};
    if (n > 0) {
        g_array_append_vals(program->calls, &g_array_index(frame->calls, Call, first), n);
    }
    if (n > 0 && (part == PART_OPTIMIZER || part % N_BATCH_PARTS != PART_BETWEEN)) {
        g_array_append_val(program->runs, run);
    }
}
