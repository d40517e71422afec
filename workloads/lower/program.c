#include "workloads/lower/program.h"

#include <math.h>
#include <string.h>

#include "workloads/lower/deal.h"
#include "workloads/lower/whole.h"

static const char *const label_names[N_LABELS - N_OPS] = {
    [LABEL_SHARD_CAST - N_OPS] = "FSDP shard cast",
    [LABEL_WEIGHT_CODES - N_OPS] = "weights to FP8",
    [LABEL_COPY_OUT - N_OPS] = "FSDP copy-out",
    [LABEL_GRAD_COPY_IN - N_OPS] = "FSDP gradient copy-in",
    [LABEL_GRAD_PAGES - N_OPS] = "FSDP gradient copy-in, pages",
    [LABEL_GRAD_ACCUMULATE - N_OPS] = "gradient accumulation",
    [LABEL_SHARD_ACCUMULATE - N_OPS] = "gradient shard update",
    [LABEL_LAYER_LOSS - N_OPS] = "losses of layers",
    [LABEL_BALANCE - N_OPS] = "balancing of experts",
    [LABEL_LOSS_CHUNK - N_OPS] = "loss chunk slices",
    [LABEL_OPTIMIZER - N_OPS] = "optimizer",
    [LABEL_ORTHOGONALIZE - N_OPS] = "orthogonalization",
    [LABEL_COLLECTIVE - N_OPS] = "collective",
    [LABEL_SWAP_OUT - N_OPS] = "copy to host memory",
    [LABEL_SWAP_IN - N_OPS] = "copy from host memory",
    [LABEL_HOST - N_OPS] = "host",
};

const char *program_label_name(int label)
{
    g_assert(label >= 0 && label < N_LABELS);
    return label < N_OPS ? op_class((OpKind)label)->title : label_names[label - N_OPS];
}

const char *program_group_name(GroupKind group)
{
    static const char *const names[N_GROUP_KINDS] = {"dense FSDP", "expert FSDP", "replicas", "EP", "all ranks"};
    return names[group];
}

const char *program_phase_name(Phase phase)
{
    static const char *const names[N_PHASES] = {"forward", "recomputation", "backward", "optimizer"};
    return names[phase];
}

const char *program_stream_name(StreamId stream)
{
    static const char *const names[N_STREAMS] = {"compute",    "gather-in", "gather", "reduce",
                                                  "all-to-all", "copy-out",  "copy-in"};
    return names[stream];
}

const char *program_law_name(const Segment *segment, const Instr *instr)
{
    return instr->work >= 0 ? work_law_name(g_array_index(segment->works, Work, instr->work).law) : "host link";
}

char *program_collective_name(const Instr *instr)
{
    return g_strdup_printf("%s (%s)", coll_name((CollKind)instr->coll), program_group_name((GroupKind)instr->group));
}

Segment *segment_ref(Segment *segment)
{
    segment->n_refs++;
    return segment;
}

void segment_unref(Segment *segment)
{
    if (--segment->n_refs > 0) {
        return;
    }
    for (int i = 0; i < N_SEGMENT_VIEWS; i++) {
        if (segment->views[i] != NULL) {
            segment->free_view[i](segment->views[i]);
        }
    }
    g_free(segment->name);
    g_array_unref(segment->instrs);
    g_array_unref(segment->operands);
    g_clear_pointer(&segment->works, g_array_unref);
    g_clear_pointer(&segment->hooks, g_array_unref);
    g_clear_pointer(&segment->grads, g_array_unref);
    g_free(segment);
}

/* Memory of an array, which grows to a power of two. */
static size_t array_bytes(const GArray *array, size_t item_bytes)
{
    size_t n_bytes = 16, wanted = array != NULL ? array->len * item_bytes : 0;
    while (n_bytes < wanted) {
        n_bytes *= 2;
    }
    return array != NULL ? n_bytes : 0;
}

size_t segment_size_bytes(const Segment *segment)
{
    enum { VIEW_ITEM_BYTES = 40, NAME_BYTES = 64 };
    return sizeof *segment + NAME_BYTES + array_bytes(segment->instrs, sizeof(Instr)) + segment->instrs->len * N_SEGMENT_VIEWS * VIEW_ITEM_BYTES +
           array_bytes(segment->operands, sizeof(Place)) + array_bytes(segment->works, sizeof(Work));
}

static void drop_segment(void *segment)
{
    segment_unref(segment);
}

static void group_free(void *group)
{
    fsdp_group_free(group);
}

Program *program_new(void)
{
    Program *program = g_new0(Program, 1);
    program->segments = g_ptr_array_new_with_free_func(drop_segment);
    program->calls = g_array_new(FALSE, TRUE, sizeof(Call));
    program->runs = g_array_new(FALSE, TRUE, sizeof(ProgramRun));
    program->sites = g_array_new(FALSE, TRUE, sizeof(ProgramSite));
    program->whole_units = g_array_new(FALSE, TRUE, sizeof(WholeUnit));
    program->whole_rounds = g_array_new(FALSE, TRUE, sizeof(WholeRound));
    program->dealt = g_array_new(FALSE, TRUE, sizeof(DealTensor));
    program->groups = g_ptr_array_new_with_free_func(group_free);
    return program;
}

void program_free(Program *program)
{
    if (program == NULL) {
        return;
    }
    g_ptr_array_unref(program->segments);
    g_array_unref(program->calls);
    g_array_unref(program->runs);
    g_array_unref(program->sites);
    g_array_unref(program->whole_units);
    g_array_unref(program->whole_rounds);
    g_array_unref(program->dealt);
    g_ptr_array_unref(program->groups);
    g_free(program);
}

Segment *segment_new(const char *name, const Graph *graph, gboolean keeps_works)
{
    Segment *segment = g_new0(Segment, 1);
    segment->name = g_strdup(name);
    segment->n_refs = 1;
    segment->graph = graph;
    segment->instrs = g_array_new(FALSE, TRUE, sizeof(Instr));
    segment->operands = g_array_new(FALSE, TRUE, sizeof(Place));
    segment->works = keeps_works ? g_array_new(FALSE, TRUE, sizeof(Work)) : NULL;
    return segment;
}

void program_reserve(Program *program, guint n_calls, guint n_segments)
{
    g_assert(program->calls->len == 0 && program->segments->len == 0);
    g_array_unref(program->calls);
    g_ptr_array_unref(program->segments);
    program->calls = g_array_sized_new(FALSE, TRUE, sizeof(Call), n_calls);
    program->segments = g_ptr_array_new_full(n_segments, drop_segment);
}

int program_add_segment(Program *program, const char *name, const Graph *graph)
{
    g_ptr_array_add(program->segments, segment_new(name, graph, program->keeps_works));
    return (int)program->segments->len - 1;
}

int program_share_segment(Program *program, Segment *segment)
{
    g_ptr_array_add(program->segments, segment_ref(segment));
    return (int)program->segments->len - 1;
}

Segment *program_segment(const Program *program, int idx)
{
    g_assert(idx >= 0 && (guint)idx < program->segments->len);
    return g_ptr_array_index(program->segments, idx);
}

int64_t program_call_times(const Program *program, guint call)
{
    const CallRepeat *repeat = &program->repeat;
    return call >= repeat->first && call < repeat->first + repeat->n ? repeat->times : 1;
}

int64_t program_micro_batch(const Program *program, guint call, int64_t n_done)
{
    const CallRepeat *repeat = &program->repeat;
    gboolean repeats = call >= repeat->first && call < repeat->first + repeat->n;
    return g_array_index(program->calls, Call, call).micro_batch + (repeats ? n_done * repeat->micro_batches : 0);
}

guint program_next_call(const Program *program, guint call, int64_t n_times, int64_t *n_done)
{
    const CallRepeat *repeat = &program->repeat;
    if (repeat->times > 0 && call + 1 == repeat->first + repeat->n && ++*n_done < n_times) {
        return repeat->first;
    }
    return call + 1;
}

static gboolean segment_equal(const Segment *a, const Segment *b)
{
    gboolean same = strcmp(a->name, b->name) == 0 && a->instrs->len == b->instrs->len && a->operands->len == b->operands->len;
    size_t n_instrs = a->instrs->len * sizeof(Instr), n_operands = a->operands->len * sizeof(Place);
    return same && (n_instrs == 0 || memcmp(a->instrs->data, b->instrs->data, n_instrs) == 0) &&
           (n_operands == 0 || memcmp(a->operands->data, b->operands->data, n_operands) == 0);
}

gboolean program_equal(const Program *a, const Program *b)
{
    gboolean same = a->calls->len == b->calls->len && memcmp(&a->repeat, &b->repeat, sizeof a->repeat) == 0 &&
                    a->n_buffers == b->n_buffers && a->n_tokens == b->n_tokens && a->clock.side == b->clock.side &&
                    memcmp(&a->clock.part, &b->clock.part, sizeof a->clock.part) == 0 &&
                    memcmp(a->static_bytes, b->static_bytes, sizeof a->static_bytes) == 0 && a->host_static_bytes == b->host_static_bytes &&
                    a->uneven_state_bytes == b->uneven_state_bytes;
    for (guint i = 0; same && i < a->calls->len; i++) {
        Call x = g_array_index(a->calls, Call, i), y = g_array_index(b->calls, Call, i);
        same = segment_equal(program_segment(a, x.segment), program_segment(b, y.segment));
        x.segment = y.segment = 0;
        same = same && memcmp(&x, &y, sizeof x) == 0;
    }
    return same;
}

SimTime program_instr_ns(const ProgramClock *clock, const Instr *instr)
{
    gboolean follows = instr->kind == INSTR_COMPUTE;
    return follows ? instr->device_ns + (SimTime)llround(clock->part * instr->clock_ns[clock->side]) : instr->device_ns;
}

Place program_operand(const Segment *segment, const Instr *instr, int i)
{
    g_assert(i >= 0 && i < instr->n_operands);
    return g_array_index(segment->operands, Place, instr->first_operand + i);
}

const ProgramSite *program_site(const Program *program, gint32 buffer)
{
    for (guint i = 0; i < program->sites->len; i++) {
        const ProgramSite *site = &g_array_index(program->sites, ProgramSite, i);
        if (site->buffer == buffer) {
            return site;
        }
    }
    return NULL;
}

gint32 program_resolve(const Call *call, Place place)
{
    return place.arg == ARG_FRAME ? call->frame + place.idx : call->args[place.arg] + place.idx;
}
