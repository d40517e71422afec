/*
 * Under which name memory is counted follows from what is written there, whatever the program says of it.
 */
#include "workloads/lower/walk.h"
#include "workloads/run/rank.h"

/* Of a buffer of the frame. */
static int frame_tag(const Graph *graph, gint32 at)
{
    if (at < frame_aux(graph, 0, 0)) {
        return (int)graph_tensor(graph, at)->tag;
    }
    if (at < frame_grad(graph, 0, 0)) {
        return MEM_ACTIVATIONS;
    }
    if (at < frame_param_grad(graph, 0)) {
        gint32 first = at < frame_sum(graph, 0, 0) ? frame_grad(graph, 0, 0) : frame_sum(graph, 0, 0);
        const Op *op = graph_op(graph, (at - first) / OP_INPUTS_MAX);
        return (int)graph_tensor(graph, op->inputs[(at - first) % OP_INPUTS_MAX])->tag;
    }
    gboolean is_gradient = at < frame_workspace(graph) || at >= frame_param_part(graph, 0);
    if (at == frame_loss_grad(graph)) {
        return MEM_ACTIVATIONS;
    }
    return is_gradient ? MEM_GRADIENTS : at == frame_cut_grad(graph) ? RANK_ANY_TAG : MEM_WORKSPACE;
}

/* Of what a slot of an operator holds, in host memory or back from there. */
static int slot_tag(const Graph *graph, gint32 at)
{
    gint32 i = (at - frame_host(graph, 0, 0)) / N_SLOTS % graph_n_ops(graph),
           slot = (at - frame_host(graph, 0, 0)) % N_SLOTS;
    const Op *op = graph_op(graph, i);
    if (slot >= SLOT_AUX) {
        return MEM_ACTIVATIONS;
    }
    int tensor = slot < SLOT_OUTPUT ? op->inputs[slot] : op->outputs[slot - SLOT_OUTPUT];
    int producer = graph_tensor(graph, tensor)->producer;
    while (producer >= 0 && op_class(graph_op(graph, producer)->kind)->views_input) {
        tensor = graph_op(graph, producer)->inputs[0];
        producer = graph_tensor(graph, tensor)->producer;
    }
    return (int)graph_tensor(graph, tensor)->tag;
}

/* Of a buffer of a group; what stays gathered is part of the parameters. */
static int site_tag(const ProgramSite *site, gint32 idx)
{
    if (idx == FSDP_STATES) {
        return MEM_OPTIMIZER;
    }
    if (site->group->resident) {
        return RANK_ANY_TAG;
    }
    gboolean is_param = idx >= FSDP_PARAMS && idx < FSDP_PARAMS + (gint32)site->group->params->len; /* behind them: whole gradients */
    return idx == FSDP_FLAT || idx == FSDP_CAST || is_param ? MEM_UNSHARDED : MEM_GRADIENTS;
}

/* Whether an instruction works on whole matrices and their slices. */
static gboolean is_of_matrices(const Instr *instr, const Graph *graph)
{
    return instr->kind == INSTR_COLLECTIVE ? graph == NULL && instr->coll == COLL_all_to_all
                                           : instr->action == VALUE_DIRECTION || instr->action == VALUE_ORTHOGONALIZE ||
                                                 (instr->action >= VALUE_MOMENTUM_IN && instr->action <= VALUE_MASTER_OUT) ||
                                                 (instr->action == VALUE_DESCEND && instr->kind == INSTR_VALUE);
}

int rank_tag(const RankAt *at, const RankBuffer *buffer)
{
    if (at->instr->kind == INSTR_VALUE && at->instr->action == VALUE_LOADS) {
        return MEM_WORKSPACE;
    }
    const Graph *graph = at->segment->graph;
    gint32 idx = (gint32)(buffer - at->rank->buffers) - at->call->frame;
    if (graph != NULL && idx >= 0 && idx < layer_frame_buffers(graph)) {
        return frame_tag(graph, idx);
    }
    gboolean in_frame = FALSE; /* frames that move nothing end here: what follows them is somebody else's */
    for (int i = 0; i < at->instr->n_operands; i++) {
        in_frame =
            in_frame || (rank_operand(at, i) == buffer && program_operand(at->segment, at->instr, i).arg == ARG_FRAME);
    }
    if (graph != NULL && in_frame && idx >= frame_host(graph, 0, 0) &&
        idx < frame_host(graph, 0, 0) + layer_tier_buffers(graph)) {
        return slot_tag(graph, idx);
    }
    for (int i = 0; i < at->instr->n_operands; i++) {
        Place place = program_operand(at->segment, at->instr, i);
        if (rank_operand(at, i) != buffer || place.arg == ARG_FRAME) {
            continue;
        }
        if (is_of_matrices(at->instr, graph)) {
            return place.idx == WHOLE_MOMENTUM || place.idx == WHOLE_MASTER ? MEM_OPTIMIZER : MEM_WORKSPACE;
        }
        if (at->instr->action == VALUE_DEAL_PLACE || at->instr->action == VALUE_DEAL_TAKE || at->instr->action == VALUE_DEAL_GATHER) {
            return MEM_UNSHARDED;
        }
        const ProgramSite *site = program_site(at->rank->program, at->call->args[place.arg]);
        if (site != NULL) {
            return site_tag(site, place.idx);
        }
        gint32 source = place.arg - ARG_SOURCES;
        if (graph != NULL && place.arg == ARG_OUTPUT) {
            return (int)graph_tensor(graph, g_array_index(graph->outputs, int, 0))->tag;
        }
        if (graph != NULL && source >= 0 && source < (gint32)graph->inputs->len) {
            return (int)graph_tensor(graph, g_array_index(graph->inputs, int, source))->tag;
        }
    }
    return RANK_ANY_TAG;
}
