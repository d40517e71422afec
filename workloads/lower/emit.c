#include "workloads/lower/emit.h"

#include "hw/timing.h"
#include "workloads/lower/clock.h"

/* Written into the zeros that the array gives, so that equal instructions are equal to the byte. */
Instr *emit(Emitter *emitter, InstrKind kind, StreamId stream)
{
    GArray *instrs = emitter->segment->instrs;
    g_array_set_size(instrs, instrs->len + 1);
    Instr *instr = &g_array_index(instrs, Instr, instrs->len - 1);
    instr->kind = (guint8)kind;
    instr->stream = (guint8)stream;
    instr->phase = (guint8)emitter->phase;
    instr->place = (Place){ARG_FRAME, -1};
    instr->op = -1;
    instr->label = LABEL_HOST;
    instr->work = -1;
    return instr;
}

void emit_alloc(Emitter *emitter, StreamId stream, Place buffer, int64_t bytes, MemTag tag)
{
    Instr *instr = emit(emitter, INSTR_ALLOC, stream);
    instr->place = buffer;
    instr->bytes = bytes;
    instr->tag = (guint8)tag;
}

void emit_view(Emitter *emitter, Place buffer, int64_t bytes, MemTag tag)
{
    emit_alloc(emitter, STREAM_COMPUTE, buffer, bytes, tag);
    g_array_index(emitter->segment->instrs, Instr, emitter->segment->instrs->len - 1).tier = TIER_VIEW;
}

void emit_free(Emitter *emitter, Place buffer)
{
    emit(emitter, INSTR_FREE, STREAM_COMPUTE)->place = buffer;
}

void emit_move(Emitter *emitter, Place from, Place to)
{
    Instr *instr = emit(emitter, INSTR_MOVE, STREAM_COMPUTE);
    instr->place = from;
    instr->to = to;
}

void emit_record(Emitter *emitter, StreamId stream, Place token)
{
    emit(emitter, INSTR_RECORD, stream)->place = token;
}

void emit_wait(Emitter *emitter, StreamId stream, Place token)
{
    emit(emitter, INSTR_WAIT, stream)->place = token;
}

void emit_host(Emitter *emitter, SimTime ns)
{
    if (ns > 0) {
        emit(emitter, INSTR_HOST, STREAM_COMPUTE)->host_ns = ns;
    }
}

/* Who a kernel of the compute stream is to what runs beside it. */
static ShareClass share_of(WorkLaw law)
{
    switch (law) {
    case WORK_GROUPED_GEMM:
    case WORK_GROUPED_GEMM_WGRAD:
        return SHARE_GROUPED;
    case WORK_ATTENTION_FORWARD:
    case WORK_ATTENTION_BACKWARD:
        return SHARE_ATTENTION;
    default:
        return work_law_group(law) == WORK_GROUP_COMPUTE ? SHARE_DENSE : SHARE_STREAM;
    }
}

void emit_work(Emitter *emitter, StreamId stream, const Work *work, int label, int op)
{
    const Device *device = emitter->device;
    Price price = price_list_get(emitter->prices, device, work);
    SimTime op_ns = label == LABEL_OPTIMIZER ? device->optimizer_launch_ns
                    : emitter->is_backward   ? device->backward_op_ns
                                             : device->eager_op_ns;
    if (emitter->is_selective && !emitter->is_backward) {
        op_ns += device->selective_op_ns;
    }
    Instr *instr = emit(emitter, INSTR_COMPUTE, stream);
    instr->label = label;
    instr->op = op;
    instr->n_launches = work->n_launches;
    instr->device_ns = (price.one_ns[CLOCK_USUAL] + device->kernel_gap_ns) * work->n_launches;
    instr->power_share = (float)price.power_share;
    instr->clock_ns[0] = clock_difference(price.one_ns[CLOCK_LEAST] - price.one_ns[CLOCK_USUAL], work->n_launches);
    instr->clock_ns[1] = clock_difference(price.one_ns[CLOCK_HIGHEST] - price.one_ns[CLOCK_USUAL], work->n_launches);
    instr->host_ns = op_ns * work->n_launches * timing_host_calls(work);
    instr->flops = work->flops * work->n_launches;
    instr->repeated_flops = work->repeated_flops * work->n_launches;
    instr->share = (guint8)(stream != STREAM_COMPUTE ? SHARE_SIDE : share_of(work->law));
    instr->evidence = (guint8)price.evidence;
    if (emitter->segment->works != NULL) {
        Work kept = *work;
        kept.group_rows = NULL; /* borrowed, and gone when a report asks */
        instr->work = (gint32)emitter->segment->works->len;
        g_array_append_val(emitter->segment->works, kept);
    }
}

void emit_cost(Emitter *emitter, StreamId stream, const OpCost *cost, int label, int op)
{
    emit_host(emitter, cost->n_host_ops * (emitter->is_backward ? emitter->device->backward_op_ns : emitter->device->eager_op_ns));
    for (int i = 0; i < cost->n_works; i++) {
        emit_work(emitter, stream, &cost->works[i], label, op);
    }
    for (int i = 0; i < cost->n_host_syncs; i++) {
        emit(emitter, INSTR_HOST_SYNC, stream)->host_ns = emitter->device->host_sync_ns;
    }
}

void emit_bytes(Emitter *emitter, StreamId stream, WorkLaw law, int64_t read_bytes, int64_t write_bytes, int n_launches, int label)
{
    Work work = {.law = law,
                 .dtype = DTYPE_BF16,
                 .read_bytes = read_bytes,
                 .write_bytes = write_bytes,
                 .m = 1,
                 .n = 1,
                 .n_launches = n_launches};
    emit_work(emitter, stream, &work, label, -1);
}

Instr *emit_value(Emitter *emitter, StreamId stream, ValueAction action, int op)
{
    Instr *instr = emit(emitter, INSTR_VALUE, stream);
    instr->action = (guint8)action;
    instr->op = op;
    instr->first_operand = (gint32)emitter->segment->operands->len;
    return instr;
}

void emit_operand(Emitter *emitter, Place place)
{
    GArray *instrs = emitter->segment->instrs;
    Instr *instr = &g_array_index(instrs, Instr, instrs->len - 1);
    g_assert(instr->kind == INSTR_VALUE || instr->kind == INSTR_COLLECTIVE);
    g_array_append_val(emitter->segment->operands, place);
    instr->n_operands++;
}

CollPrice emit_world_sum_price(const Plan *plan, int64_t bytes)
{
    CollGroup ranks = cluster_group(plan->cluster, 0, 1, plan->dp_replicate * plan->dp_shard * plan->cp);
    return coll_price(plan->cluster, COLL_all_reduce, &ranks, bytes);
}

/* Whether members of a group sit in several scale-up domains. */
static gboolean leaves_domain(const Plan *plan, GroupKind group)
{
    const int64_t dense = plan->dp_shard * plan->cp;
    const int64_t strides[N_GROUP_KINDS] = {
        [GROUP_DENSE] = 1, [GROUP_EXPERT] = plan->ep, [GROUP_REPLICA] = dense, [GROUP_EP] = 1, [GROUP_WORLD] = 1};
    const int64_t sizes[N_GROUP_KINDS] = {[GROUP_DENSE] = dense,
                                          [GROUP_EXPERT] = plan->efsdp,
                                          [GROUP_REPLICA] = plan->dp_replicate,
                                          [GROUP_EP] = plan->ep,
                                          [GROUP_WORLD] = plan->dp_replicate * dense};
    CollGroup geometry = cluster_group(plan->cluster, 0, strides[group], sizes[group]);
    return geometry.per_domain < geometry.n_ranks;
}

Instr *emit_collective(Emitter *emitter, StreamId stream, CollKind coll, GroupKind group, int64_t bytes, const CollPrice *price)
{
    Instr *instr = emit(emitter, INSTR_COLLECTIVE, stream);
    instr->coll = (guint8)coll;
    instr->group = (guint8)group;
    instr->bytes = bytes;
    instr->device_ns = price->ns;
    instr->load = emitter->plan->network == PLAN_NETWORK_FLOWS ? price->load : 0;
    instr->host_ns = emitter->device->eager_op_ns;
    instr->n_launches = 1;
    instr->label = LABEL_COLLECTIVE;
    instr->share = leaves_domain(emitter->plan, group) ? SHARE_NET : SHARE_COMM;
    instr->evidence = (guint8)price->evidence;
    instr->power_share = (float)(emitter->device->comm_power_share * link_load_part(price->load, NET_SCALE_UP) / LINK_PART_ONE);
    instr->first_operand = (gint32)emitter->segment->operands->len;
    return instr;
}
