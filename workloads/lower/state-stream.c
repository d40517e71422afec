#include "workloads/lower/state-stream.h"

#include "workloads/lower/host-copy.h"

static Place used_token(void)
{
    return (Place){ARG_GLOBAL, TOKEN_HOST};
}

static Place returned_token(void)
{
    return (Place){ARG_GLOBAL, TOKEN_HOST_DONE};
}

void state_fetch(Emitter *emitter, Place buffer, Place token, int64_t bytes, ValueAction action, int op)
{
    emit_alloc(emitter, STREAM_COPY_IN, buffer, bytes, MEM_OPTIMIZER);
    emit_transfer_in(emitter, bytes);
    emit_value(emitter, STREAM_COPY_IN, action, op);
    emit_operand(emitter, buffer);
    emit_record(emitter, STREAM_COPY_IN, token);
}

void state_return(Emitter *emitter, Place buffer, int64_t bytes, ValueAction action, int op)
{
    emit_record(emitter, STREAM_COMPUTE, used_token());
    emit_wait(emitter, STREAM_COPY_OUT, used_token());
    emit_transfer_out(emitter, bytes);
    emit_value(emitter, STREAM_COPY_OUT, action, op);
    emit_operand(emitter, buffer);
    emit_record(emitter, STREAM_COPY_OUT, returned_token());
    emit_wait(emitter, STREAM_COPY_IN, returned_token());
    emit_free(emitter, buffer);
}

/* A group, what AdamW updates of it, and the bytes of its states. */
typedef struct StreamedGroup {
    const GroupSite *site;
    GArray *pieces; /* OptimPiece */
    int64_t bytes;
} StreamedGroup;

static void streamed_group_clear(void *group)
{
    g_array_unref(((StreamedGroup *)group)->pieces);
}

static void collect_group(Lowering *lowering, const GroupSite *site, void *data)
{
    StreamedGroup group = {.site = site};
    if (site->group->n_trainable == 0) {
        return;
    }
    group.pieces = g_array_new(FALSE, TRUE, sizeof(OptimPiece));
    lowering_collect_pieces(lowering, site, group.pieces);
    for (guint i = 0; i < group.pieces->len; i++) {
        group.bytes += optim_class(OPTIM_adamw)->state_bytes(&g_array_index(group.pieces, OptimPiece, i), lowering->plan->moments);
    }
    g_array_append_val((GArray *)data, group);
}

/* The next group from a place on that has states to stream, or NULL. */
static const StreamedGroup *next_streamed(const GArray *groups, guint from)
{
    for (guint i = from; i < groups->len; i++) {
        const StreamedGroup *group = &g_array_index(groups, StreamedGroup, i);
        if (group->bytes > 0) {
            return group;
        }
    }
    return NULL;
}

static void fetch_group(Emitter *emitter, const StreamedGroup *group, int arg)
{
    state_fetch(emitter, (Place){arg, FSDP_STATES}, (Place){arg + 1, 0}, group->bytes, VALUE_STATES_IN, -1);
}

/* The next group's states are fetched while this one's are used. */
static void update_group(Lowering *lowering, const StreamedGroup *group, const StreamedGroup *next)
{
    Emitter *emitter = &lowering->emitter;
    const Place states = {ARG_GROUP, FSDP_STATES};
    g_autoptr(GArray) works = g_array_new(FALSE, TRUE, sizeof(Work));
    int segment = lowering_start_segment(lowering, NULL, "optimizer states streamed", NULL);
    if (group->bytes > 0 && next != NULL) {
        fetch_group(emitter, next, ARG_NEXT);
    }
    if (group->bytes > 0) {
        emit_wait(emitter, STREAM_COMPUTE, (Place){ARG_GROUP_TOKEN, 0});
        optim_class(OPTIM_adamw)->cost((const OptimPiece *)(void *)group->pieces->data, (int)group->pieces->len, lowering->plan->moments, works);
    }
    for (guint i = 0; i < works->len; i++) {
        emit_work(emitter, STREAM_COMPUTE, &g_array_index(works, Work, i), LABEL_OPTIMIZER, -1);
    }
    emit_value(emitter, STREAM_COMPUTE, VALUE_UPDATE, -1);
    emit_operand(emitter, (Place){ARG_GROUP, FSDP_GRAD});
    if (group->bytes > 0) {
        emit_operand(emitter, states);
        state_return(emitter, states, group->bytes, VALUE_STATES_OUT, -1);
    }
    Call *call = lowering_add_call(lowering, segment, -1, 0);
    lowering_call_group(call, ARG_GROUP, group->site);
    if (next != NULL) {
        lowering_call_group(call, ARG_NEXT, next->site);
    }
}

void state_stream_groups(Lowering *lowering)
{
    g_autoptr(GArray) groups = g_array_new(FALSE, TRUE, sizeof(StreamedGroup));
    g_array_set_clear_func(groups, streamed_group_clear);
    lowering_each_group(lowering, collect_group, groups);
    const StreamedGroup *first = next_streamed(groups, 0);
    if (first != NULL) {
        int segment = lowering_start_segment(lowering, NULL, "optimizer states fetched", NULL);
        fetch_group(&lowering->emitter, first, ARG_GROUP);
        lowering_call_group(lowering_add_call(lowering, segment, -1, 0), ARG_GROUP, first->site);
    }
    for (guint i = 0; i < groups->len; i++) {
        update_group(lowering, &g_array_index(groups, StreamedGroup, i), next_streamed(groups, i + 1));
    }
}
