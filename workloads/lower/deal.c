#include "workloads/lower/deal.h"

#include <stdlib.h>
#include <string.h>

#include "workloads/lower/whole.h"

static const DealTensor *dealt_at(const Program *program, guint i)
{
    return &g_array_index(program->dealt, DealTensor, i);
}

static const FsdpGroup *group_of(const Program *program, const DealTensor *tensor)
{
    return g_array_index(program->sites, ProgramSite, (guint)tensor->site).group;
}

static const GraphParam *param_of(const Program *program, const DealTensor *tensor)
{
    const FsdpParam *entry = &g_array_index(group_of(program, tensor)->params, FsdpParam, (guint)tensor->param);
    return graph_param(entry->graph, entry->param);
}

int64_t deal_n_tensors(const Plan *plan, const GraphParam *param)
{
    gboolean is_expert = param->split == PARAM_EXPERT;
    return is_expert || param->n_dims == 3 ? param->dims[0] / (is_expert ? plan->ep : 1) : 1;
}

int64_t deal_n_owners(const Program *program, GroupKind mesh)
{
    for (guint i = 0; i < program->dealt->len; i++) {
        if (dealt_at(program, i)->mesh == (gint32)mesh) {
            return group_of(program, dealt_at(program, i))->n_ranks;
        }
    }
    return 0;
}

int64_t deal_numel(const Program *program, GroupKind mesh)
{
    int64_t sum = 0;
    for (guint i = 0; i < program->dealt->len; i++) {
        sum += dealt_at(program, i)->mesh == (gint32)mesh ? dealt_at(program, i)->numel : 0;
    }
    return sum;
}

static int smallest_first(const void *a, const void *b)
{
    const DealTensor *x = a, *y = b;
    if (x->numel != y->numel) {
        return x->numel < y->numel ? -1 : 1;
    }
    if (x->site != y->site) {
        return x->site < y->site ? -1 : 1;
    }
    if (x->param != y->param) {
        return x->param < y->param ? -1 : 1;
    }
    return x->matrix < y->matrix ? -1 : x->matrix > y->matrix;
}

static void add_tensors(const Program *program, const Plan *plan, GroupKind mesh, GArray *tensors)
{
    for (guint s = 0; s < program->sites->len; s++) {
        const FsdpGroup *group = g_array_index(program->sites, ProgramSite, s).group;
        for (guint i = 0; group->mesh == mesh && i < group->params->len; i++) {
            const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
            const GraphParam *param = graph_param(entry->graph, entry->param);
            DealTensor tensor = {.site = (gint32)s, .param = (gint32)i, .mesh = (gint32)mesh,
                                 .numel = fsdp_local_numel(plan, param) / deal_n_tensors(plan, param)};
            for (; fsdp_has_grad(param) && tensor.matrix < deal_n_tensors(plan, param); tensor.matrix++) {
                g_array_append_val(tensors, tensor);
            }
        }
    }
}

/* Turns, owners, and places in what is gathered. */
static void deal_out(GArray *tensors, int64_t n_owners)
{
    g_autofree int64_t *next = g_new0(int64_t, n_owners + 1);
    for (guint i = 0; i < tensors->len; i++) {
        DealTensor *tensor = &g_array_index(tensors, DealTensor, i);
        int64_t at = i % n_owners;
        tensor->turn = (gint32)(i / n_owners);
        tensor->owner = (gint32)(tensor->turn % 2 == 0 ? at : n_owners - 1 - at);
        next[tensor->owner + 1] += tensor->numel;
    }
    for (int64_t r = 0; r < n_owners; r++) {
        next[r + 1] += next[r];
    }
    for (guint i = 0; i < tensors->len; i++) {
        DealTensor *tensor = &g_array_index(tensors, DealTensor, i);
        tensor->first = next[tensor->owner];
        next[tensor->owner] += tensor->numel;
    }
}

void deal_plan(Program *program, const Plan *plan)
{
    for (int mesh = GROUP_DENSE; plan->layer_wise && mesh <= GROUP_EXPERT; mesh++) {
        g_autoptr(GArray) tensors = g_array_new(FALSE, TRUE, sizeof(DealTensor));
        add_tensors(program, plan, (GroupKind)mesh, tensors);
        g_array_sort(tensors, smallest_first);
        if (tensors->len > 0) {
            deal_out(tensors, group_of(program, &g_array_index(tensors, DealTensor, 0))->n_ranks);
            g_array_append_vals(program->dealt, tensors->data, tensors->len);
        }
    }
}

OptimPiece deal_piece(const Program *program, const Plan *plan, const DealTensor *tensor)
{
    OptimPiece piece = lowering_optim_piece(plan, param_of(program, tensor));
    piece.numel = tensor->numel;
    return piece;
}

/* A sum over each rank's tensors of a mesh, of bytes or elements; caller frees. */
typedef int64_t (*DealMeasure)(const Program *program, const Plan *plan, const DealTensor *tensor);

static int64_t *sum_by_rank(const Program *program, const Plan *plan, GroupKind mesh, DealMeasure measure)
{
    int64_t *sums = g_new0(int64_t, deal_n_owners(program, mesh) + 1);
    for (guint i = 0; i < program->dealt->len; i++) {
        const DealTensor *tensor = dealt_at(program, i);
        if (tensor->mesh == (gint32)mesh) {
            sums[tensor->owner] += measure(program, plan, tensor);
        }
    }
    return sums;
}

static int64_t state_bytes(const Program *program, const Plan *plan, const DealTensor *tensor)
{
    OptimPiece piece = deal_piece(program, plan, tensor);
    return optim_class(plan->optimizer == PLAN_MUON ? OPTIM_muon : OPTIM_adamw)->state_bytes(&piece, plan->moments);
}

static int64_t adam_numel(const Program *program, const Plan *plan, const DealTensor *tensor)
{
    return whole_takes(plan, param_of(program, tensor)) ? 0 : tensor->numel;
}

static int64_t any_numel(const Program *program, const Plan *plan, const DealTensor *tensor)
{
    (void)program;
    (void)plan;
    return tensor->numel;
}

void deal_count_states(Program *program, const Plan *plan)
{
    int64_t n = deal_n_owners(program, GROUP_DENSE), n_expert = deal_n_owners(program, GROUP_EXPERT);
    int64_t n_ranks = MAX(n, n_expert * plan->ep), most = 0, sum = 0;
    g_autofree int64_t *dense = sum_by_rank(program, plan, GROUP_DENSE, state_bytes);
    g_autofree int64_t *experts = sum_by_rank(program, plan, GROUP_EXPERT, state_bytes);
    for (int64_t r = 0; r < n_ranks; r++) { /* consecutive ranks have different experts */
        int64_t own = (n > 0 ? dense[r] : 0) + (n_expert > 0 ? experts[r / plan->ep] : 0);
        program->fullest_rank = own > most ? r : program->fullest_rank;
        most = MAX(most, own);
        sum += own;
    }
    program->static_bytes[MEM_OPTIMIZER] += most;
    program->uneven_state_bytes = n_ranks > 0 ? most - sum / n_ranks : 0;
}

void deal_adam_pieces(const Program *program, const Plan *plan, GArray *pieces)
{
    for (int mesh = GROUP_DENSE; mesh <= GROUP_EXPERT; mesh++) {
        int64_t fullest = 0, n = deal_n_owners(program, (GroupKind)mesh);
        g_autofree int64_t *sums = sum_by_rank(program, plan, (GroupKind)mesh, adam_numel);
        for (int64_t r = 1; r < n; r++) {
            fullest = sums[r] > sums[fullest] ? r : fullest;
        }
        for (guint i = 0; i < program->dealt->len; i++) {
            const DealTensor *tensor = dealt_at(program, i);
            if (tensor->mesh == mesh && tensor->owner == fullest && adam_numel(program, plan, tensor) > 0) {
                OptimPiece piece = deal_piece(program, plan, tensor);
                g_array_append_val(pieces, piece);
            }
        }
    }
}

/* What a rank copies at most: its own tensors into the buffer, and those of the others out of it, tensor by tensor. */
typedef struct DealCopies {
    int64_t own, others;
    int n_others;
} DealCopies;

static DealCopies find_copies(const Program *program, const Plan *plan, GroupKind mesh)
{
    int64_t n = deal_n_owners(program, mesh), all = deal_numel(program, mesh), n_tensors = 0;
    g_autofree int64_t *sums = sum_by_rank(program, plan, mesh, any_numel);
    DealCopies copies = {.own = sums[0], .others = all - sums[0]};
    for (int64_t r = 1; r < n; r++) {
        copies.own = MAX(copies.own, sums[r]);
        copies.others = MAX(copies.others, all - sums[r]);
    }
    for (guint i = 0; i < program->dealt->len; i++) {
        n_tensors += dealt_at(program, i)->mesh == (gint32)mesh;
    }
    copies.n_others = (int)MAX(1, n_tensors - n_tensors / n);
    return copies;
}

static void gather_mesh(Lowering *lowering, GroupKind mesh, int64_t n_owners)
{
    const Plan *plan = lowering->plan;
    Emitter *emitter = &lowering->emitter;
    Program *program = lowering->program;
    const Place buffer = {ARG_GROUP, 0}, gathered = {ARG_GROUP_TOKEN, 0}, placed = {ARG_GLOBAL, TOKEN_CAST};
    int64_t bytes = dtype_bytes(plan->compute, deal_numel(program, mesh));
    DealCopies copies = find_copies(program, plan, mesh);
    CollGroup ranks = cluster_group(plan->cluster, 0, mesh == GROUP_EXPERT ? plan->ep : 1, n_owners);
    CollPrice price = coll_price(plan->cluster, COLL_all_gather, &ranks, bytes);
    int64_t own = dtype_bytes(plan->compute, copies.own), each = dtype_bytes(plan->compute, copies.others) / copies.n_others;
    int segment = lowering_start_segment(lowering, NULL, "updated tensors gathered", NULL);
    emit_alloc(emitter, STREAM_COMPUTE, buffer, bytes, MEM_UNSHARDED);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, own, own, 1, LABEL_SHARD_CAST);
    emit_value(emitter, STREAM_COMPUTE, VALUE_DEAL_PLACE, (int)mesh);
    emit_operand(emitter, buffer);
    emit_record(emitter, STREAM_COMPUTE, placed);
    emit_wait(emitter, STREAM_GATHER, placed);
    emit_collective(emitter, STREAM_GATHER, COLL_all_gather, mesh, bytes, &price)->action = VALUE_DEAL_GATHER;
    emit_operand(emitter, buffer);
    emit_record(emitter, STREAM_GATHER, gathered);
    emit_wait(emitter, STREAM_COMPUTE, gathered);
    emit_bytes(emitter, STREAM_COMPUTE, WORK_COPY, each, each, copies.n_others, LABEL_COPY_OUT);
    emit_value(emitter, STREAM_COMPUTE, VALUE_DEAL_TAKE, (int)mesh);
    emit_operand(emitter, buffer);
    emit_free(emitter, buffer);
    Call *call = lowering_add_call(lowering, segment, -1, 0);
    call->args[ARG_GROUP] = lowering->dealt;
    call->args[ARG_GROUP_TOKEN] = program->n_tokens++;
}

void deal_gather(Lowering *lowering)
{
    for (int mesh = GROUP_DENSE; mesh <= GROUP_EXPERT; mesh++) {
        int64_t n_owners = deal_n_owners(lowering->program, (GroupKind)mesh);
        if (n_owners > 1) {
            gather_mesh(lowering, (GroupKind)mesh, n_owners);
        }
    }
}
