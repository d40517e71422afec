#include <math.h>
#include <string.h>

#include "models/execute.h"
#include "workloads/lower/whole.h"
#include "workloads/run/rank.h"

/* A parameter of a group, with the geometry of its shards. */
typedef struct Part {
    const GraphParam *param;
    ShardShape shape;
    int64_t numel; /* of the shard */
} Part;

/* Where a part begins in the shards of its group, and in their gradients. */
typedef struct PartPlace {
    int64_t shard, grad;
} PartPlace;

ShardShape shard_shape(const Plan *plan, const GraphParam *param)
{
    int64_t ep = param->split == PARAM_EXPERT ? plan->ep : 1;
    int64_t n_shards = plan_n_shards(plan, param->split == PARAM_EXPERT);
    int64_t local = graph_param_numel(param) / ep, rows = param->dims[0] / ep;
    ShardShape shape = {.outer = 1, .split = rows, .inner = local / rows};
    if (fsdp_cuts_experts(plan, param)) {
        shape = (ShardShape){.outer = rows, .split = param->dims[1], .inner = local / rows / param->dims[1]};
    }
    shape.chunk = quantity_div_up(shape.split, n_shards);
    return shape;
}

int64_t shard_numel(const ShardShape *shape)
{
    return shape->outer * shape->chunk * shape->inner;
}

/* Slices of this shard's chunk that exist; the rest is padding. */
static int64_t shard_rows(const ShardShape *shape, int64_t idx)
{
    return CLAMP(shape->split - idx * shape->chunk, 0, shape->chunk);
}

void shard_take(const ShardShape *shape, int64_t idx, const double *whole, double *part)
{
    size_t n = (size_t)(shard_rows(shape, idx) * shape->inner);
    memset(part, 0, (size_t)shard_numel(shape) * sizeof *part);
    for (int64_t o = 0; o < shape->outer && n > 0; o++) {
        const double *from = whole + (o * shape->split + idx * shape->chunk) * shape->inner;
        memcpy(part + o * shape->chunk * shape->inner, from, n * sizeof *part);
    }
}

void shard_put(const ShardShape *shape, int64_t idx, const double *part, double *whole)
{
    size_t n = (size_t)(shard_rows(shape, idx) * shape->inner);
    for (int64_t o = 0; o < shape->outer && n > 0; o++) {
        double *to = whole + (o * shape->split + idx * shape->chunk) * shape->inner;
        memcpy(to, part + o * shape->chunk * shape->inner, n * sizeof *part);
    }
}

int64_t rank_expert_in_slot(const VirtualRanks *world, int64_t layer, int64_t slot)
{
    RowCounts rows = routing_row_counts(world->plan, world->options.routing, plan_moe_layer(world->plan, layer), 0);
    return rows.placement != NULL ? rows.placement->expert[slot] : slot;
}

/* This rank's part of a whole parameter before FSDP, its slots one behind the other; caller frees. */
static double *local_param(const Rank *rank, int64_t layer, const GraphParam *param, const Tensor *whole)
{
    const Plan *plan = rank->world->plan;
    int64_t local = fsdp_local_numel(plan, param), n_slots = param->dims[0] / plan->ep;
    double *part = g_new(double, local);
    if (param->split != PARAM_EXPERT) {
        return memcpy(part, whole->data, (size_t)local * sizeof *part);
    }
    int64_t size = local / n_slots;
    for (int64_t s = 0; s < n_slots; s++) {
        int64_t expert = rank_expert_in_slot(rank->world, layer, rank->ep_rank * n_slots + s);
        memcpy(part + s * size, (const double *)whole->data + expert * size, (size_t)size * sizeof *part);
    }
    return part;
}

int64_t rank_shard_index(const Rank *rank, const FsdpGroup *group)
{
    return group->n_shards == 1 ? 0 : group->mesh == GROUP_EXPERT ? rank->expert_shard : rank->shard;
}

static Part part_of(const Plan *plan, const FsdpGroup *group, guint i)
{
    const FsdpParam *entry = &g_array_index(group->params, FsdpParam, i);
    Part part = {.param = graph_param(entry->graph, entry->param)};
    part.shape = shard_shape(plan, part.param);
    part.numel = shard_numel(&part.shape);
    g_assert(part.numel == fsdp_shard_numel(plan, part.param));
    return part;
}

void rank_part_offset(const Plan *plan, const FsdpGroup *group, gint32 i, int64_t *ret_shard, int64_t *ret_grad)
{
    *ret_shard = *ret_grad = 0;
    for (gint32 k = 0; k < i; k++) {
        Part part = part_of(plan, group, (guint)k);
        *ret_shard += part.numel;
        *ret_grad += fsdp_has_grad(part.param) ? part.numel : 0;
    }
}

static int64_t layer_of_graph(const Rank *rank, const ProgramSite *site, const Graph *graph)
{
    return site->layer >= 0 ? site->layer : graph_is_variant(graph, rank->world->graphs->head) ? rank->world->graphs->n_layers : -1;
}

/* An empty tensor of a parameter's shape on this rank. */
static Tensor *local_new(const Plan *plan, const GraphParam *param)
{
    int64_t dims[3] = {param->dims[0], param->dims[1], param->dims[2]};
    dims[0] /= param->split == PARAM_EXPERT ? plan->ep : 1;
    return tensor_new(TENSOR_F64, param->n_dims, dims);
}

/* A buffer that is always there; value may be NULL. */
static void make_resident(Rank *rank, gint32 idx, Tensor *value, int64_t bytes)
{
    RankBuffer *buffer = &rank->buffers[idx];
    buffer->alive = buffer->resident = TRUE;
    buffer->value = value;
    buffer->bytes = bytes;
}

/* Whole parameters and gradients of a group that is gathered and reduced once a step. */
static void load_resident(Rank *rank, const ProgramSite *site, guint i, const GraphParam *param, const double *local)
{
    const Plan *plan = rank->world->plan;
    const FsdpGroup *group = site->group;
    Tensor *value = local_new(plan, param);
    memcpy(value->data, local, (size_t)tensor_numel(value) * sizeof(double));
    make_resident(rank, site->buffer + FSDP_PARAMS + (gint32)i, value, dtype_bytes(plan->compute, tensor_numel(value)));
    int64_t codes = fsdp_code_bytes(plan, &g_array_index(group->params, FsdpParam, i));
    if (codes > 0) {
        make_resident(rank, site->buffer + fsdp_codes_buffer(group, i), tensor_dup(value), codes);
    }
    if (i == 0) {
        make_resident(rank, site->buffer + FSDP_FLAT, NULL, dtype_bytes(plan->compute, group->padded_numel));
        make_resident(rank, site->buffer + FSDP_REDUCE_IN, NULL, dtype_bytes(plan->reduce, group->trainable_padded_numel));
        make_resident(rank, site->buffer + FSDP_GRAD, NULL, dtype_bytes(plan->reduce, group->trainable_shard_numel));
    }
}

void rank_load_shards(Rank *rank)
{
    const Plan *plan = rank->world->plan;
    const VirtualSource *source = rank->world->source;
    for (guint s = 0; s < rank->program->sites->len; s++) {
        const ProgramSite *site = &g_array_index(rank->program->sites, ProgramSite, s);
        RankSite *own = &rank->sites[s];
        int64_t at = 0;
        own->shard = tensor_new_2d(TENSOR_F64, 1, site->group->shard_numel);
        own->states = g_new0(OptimState, site->group->params->len + 1);
        own->guard.alive = TRUE;
        for (guint i = 0; i < site->group->params->len; i++) {
            const FsdpParam *entry = &g_array_index(site->group->params, FsdpParam, i);
            Part part = part_of(plan, site->group, i);
            const Tensor *whole = source->param(source->self, layer_of_graph(rank, site, entry->graph), entry->param);
            g_autofree double *local = local_param(rank, site->layer, part.param, whole);
            shard_take(&part.shape, rank_shard_index(rank, site->group), local, (double *)own->shard->data + at);
            if (site->group->resident) {
                load_resident(rank, site, i, part.param, local);
            }
            at += part.numel;
        }
    }
}

/* The site whose idx-th buffer the i-th operand is; NULL and an error when it is none. */
static const ProgramSite *operand_site(const RankAt *at, int i, gint32 idx, RankSite **ret_own, GError **error)
{
    const Rank *rank = at->rank;
    Place place = program_operand(at->segment, at->instr, i);
    const ProgramSite *site = place.arg != ARG_FRAME && place.idx == idx ? program_site(rank->program, at->call->args[place.arg]) : NULL;
    if (site == NULL) {
        rank_fail(at, error, "operand %d is not buffer %d of a group", i, idx);
        return NULL;
    }
    *ret_own = &rank->sites[site - (const ProgramSite *)(const void *)rank->program->sites->data];
    return site;
}

static const FsdpGroup *operand_group(const RankAt *at, int i, gint32 idx, RankSite **ret_own, GError **error)
{
    const ProgramSite *site = operand_site(at, i, idx, ret_own, error);
    return site != NULL ? site->group : NULL;
}

static Tensor *vector_new(int64_t n)
{
    return tensor_new_2d(TENSOR_F64, 1, n);
}

static gboolean shard_cast(const RankAt *at, GError **error)
{
    RankSite *own;
    return operand_group(at, 0, FSDP_CAST, &own, error) != NULL && rank_note_read(at, &own->guard, error) &&
           rank_write(at, rank_operand(at, 0), tensor_dup(own->shard), at->rank->world->plan->compute, error);
}

/* What other ranks will send is not a number until they have. */
static gboolean shard_place(const RankAt *at, GError **error)
{
    RankSite *own;
    const FsdpGroup *group = operand_group(at, 1, FSDP_FLAT, &own, error);
    if (group == NULL) {
        return FALSE;
    }
    RankBuffer *from = rank_operand(at, 0);
    const Tensor *shard = own->shard;
    if (from != NULL ? (shard = rank_read_as(at, from, TENSOR_F64, tensor_numel(own->shard), error)) == NULL
                     : !rank_note_read(at, &own->guard, error)) {
        return FALSE;
    }
    Tensor *flat = vector_new(group->padded_numel);
    double *values = flat->data;
    for (int64_t i = 0; i < group->padded_numel; i++) {
        values[i] = NAN;
    }
    memcpy(values + rank_shard_index(at->rank, group) * group->shard_numel, shard->data,
           (size_t)group->shard_numel * sizeof *values);
    return rank_write(at, rank_operand(at, 1), flat, at->rank->world->plan->compute, error);
}

static gboolean param_cast(const RankAt *at, GError **error)
{
    RankSite *own;
    const Plan *plan = at->rank->world->plan;
    gboolean is_copy = program_operand(at->segment, at->instr, 0).idx == FSDP_CAST;
    const FsdpGroup *group = operand_group(at, 0, is_copy ? FSDP_CAST : FSDP_PARAMS + at->instr->op, &own, error);
    int64_t first = 0;
    if (group == NULL) {
        return FALSE;
    }
    for (gint32 i = 0; i < at->instr->op; i++) {
        first += part_of(plan, group, (guint)i).numel;
    }
    Part part = part_of(plan, group, (guint)at->instr->op);
    Tensor *whole = local_new(plan, part.param);
    shard_put(&part.shape, 0, (const double *)own->shard->data + first, whole->data);
    if (!rank_note_read(at, &own->guard, error)) {
        tensor_free(whole);
        return FALSE;
    }
    return rank_write(at, rank_operand(at, 0), whole, plan->compute, error);
}

static gboolean copy_out(const RankAt *at, GError **error)
{
    RankSite *own;
    const Plan *plan = at->rank->world->plan;
    const FsdpGroup *group = operand_group(at, 0, FSDP_FLAT, &own, error);
    if (group == NULL) {
        return FALSE;
    }
    const Tensor *flat = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, group->padded_numel, error);
    int64_t first = 0;
    for (guint i = 0; flat != NULL && i < group->params->len; i++) {
        Part part = part_of(plan, group, i);
        Tensor *whole = local_new(plan, part.param);
        for (int64_t r = 0; r < group->n_shards; r++) {
            shard_put(&part.shape, r, (const double *)flat->data + r * group->shard_numel + first, whole->data);
        }
        first += part.numel;
        if (!rank_write(at, rank_operand(at, 1 + (int)i), whole, plan->compute, error)) {
            return FALSE;
        }
    }
    return flat != NULL;
}

static gboolean grad_in(const RankAt *at, GError **error)
{
    RankSite *own;
    const Plan *plan = at->rank->world->plan;
    const FsdpGroup *group = operand_group(at, 0, plan->plain ? FSDP_GRAD : FSDP_REDUCE_IN, &own, error);
    if (group == NULL) {
        return FALSE;
    }
    g_autoptr(Tensor) flat = vector_new(group->trainable_padded_numel);
    int64_t first = 0;
    int n = 0;
    for (guint i = 0; i < group->params->len; i++) {
        Part part = part_of(plan, group, i);
        if (!fsdp_has_grad(part.param)) {
            continue;
        }
        const Tensor *grad =
            rank_read_as(at, rank_operand(at, 1 + n++), TENSOR_F64, fsdp_local_numel(plan, part.param), error);
        if (grad == NULL) {
            g_prefix_error(error, "gradient of %s: ", part.param->name);
            return FALSE;
        }
        for (int64_t r = 0; r < group->n_shards; r++) {
            shard_take(&part.shape, r, grad->data, (double *)flat->data + r * group->trainable_shard_numel + first);
        }
        first += part.numel;
    }
    if (at->instr->op >= 0) { /* joins what earlier micro-batches left */
        const Tensor *sum = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, tensor_numel(flat), error);
        if (sum == NULL) {
            return FALSE;
        }
        execute_add_to(flat, sum);
    }
    return rank_write(at, rank_operand(at, 0), g_steal_pointer(&flat), rank_operand_dtype(at, 0, plan->reduce), error);
}

/* A vector's elements from a place on. */
static Tensor *slice_of(const Tensor *vector, int64_t first, int64_t n)
{
    Tensor *slice = vector_new(n);
    memcpy(slice->data, (const double *)vector->data + first, (size_t)n * sizeof(double));
    return slice;
}

static void put_slice(Tensor *vector, int64_t first, const Tensor *slice)
{
    memcpy((double *)vector->data + first, slice->data, (size_t)tensor_numel(slice) * sizeof(double));
}

/* One AdamW step of n elements of a part of the shard, from its first-th on. */
static void update_slice(const Rank *rank, RankSite *own, guint i, const Part *part, PartPlace at, int64_t first, int64_t n)
{
    OptimSettings settings = rank->world->options.optim;
    OptimState *states = &own->states[i];
    g_autoptr(Tensor) value = slice_of(own->shard, at.shard + first, n), grad = slice_of(own->grad, at.grad + first, n);
    settings.step = rank->world->n_steps;
    settings.n_heads = 1;
    settings.no_decay = part->param->role == PARAM_VECTOR;
    if (states->m == NULL) {
        *states = (OptimState){vector_new(part->numel), vector_new(part->numel)};
    }
    OptimState own_states = {slice_of(states->m, first, n), slice_of(states->v, first, n)};
    optim_class(OPTIM_adamw)->update(&settings, value, grad, &own_states);
    put_slice(states->m, first, own_states.m);
    put_slice(states->v, first, own_states.v);
    put_slice(own->shard, at.shard + first, value);
    optim_state_clear(&own_states);
}

/* Of dealt tensors this rank's own alone. */
static void update_part(const Rank *rank, guint site, guint i, const Part *part, PartPlace at)
{
    const GArray *dealt = rank->program->dealt;
    if (!rank->world->plan->layer_wise) {
        update_slice(rank, &rank->sites[site], i, part, at, 0, part->numel);
    }
    for (guint t = 0; t < dealt->len; t++) {
        const DealTensor *tensor = &g_array_index(dealt, DealTensor, t);
        if (tensor->site == (gint32)site && tensor->param == (gint32)i && rank_owns(rank, tensor)) {
            update_slice(rank, &rank->sites[site], i, part, at, tensor->matrix * tensor->numel, tensor->numel);
        }
    }
}

static gboolean update(const RankAt *at, GError **error)
{
    RankSite *own;
    const Plan *plan = at->rank->world->plan;
    gboolean on_host = program_operand(at->segment, at->instr, 0).idx == FSDP_HOST_GRAD;
    const FsdpGroup *group = operand_group(at, 0, on_host ? FSDP_HOST_GRAD : FSDP_GRAD, &own, error);
    const Tensor *grad =
        group != NULL ? rank_read_as(at, rank_operand(at, 0), TENSOR_F64, group->trainable_shard_numel, error) : NULL;
    PartPlace place = {0};
    gboolean streamed = at->instr->n_operands > 1;
    if (grad != NULL && on_host && !rank_host_sees(at, rank_operand(at, 0))) {
        return rank_fail(at, error, "the host steps before the gradients are known to be there");
    }
    if (grad == NULL || !rank_note_write(at, &own->guard, error) || (streamed && !rank_use_states(at, error))) {
        return FALSE;
    }
    tensor_free(own->grad);
    own->grad = tensor_dup(grad);
    for (guint i = 0; i < group->params->len; i++) {
        Part part = part_of(plan, group, i);
        if (fsdp_has_grad(part.param) && !whole_takes(plan, part.param)) {
            update_part(at->rank, (guint)(own - at->rank->sites), i, &part, place);
        }
        place.grad += fsdp_has_grad(part.param) ? part.numel : 0;
        place.shard += part.numel;
    }
    if (streamed) {
        rank_used_states(at);
    }
    return TRUE;
}

/* Products read the value in the place of its codes. */
static gboolean weight_codes(const RankAt *at, GError **error)
{
    RankSite *own;
    const FsdpGroup *group = operand_group(at, 0, FSDP_PARAMS + at->instr->op, &own, error);
    if (group == NULL || operand_group(at, 1, fsdp_codes_buffer(group, (guint)at->instr->op), &own, error) != group) {
        return FALSE;
    }
    const FsdpParam *entry = &g_array_index(group->params, FsdpParam, (guint)at->instr->op);
    const Tensor *value = rank_read(at, rank_operand(at, 0), error);
    return value != NULL && rank_write_sized(at, rank_operand(at, 1), tensor_dup(value), DTYPE_FP8, fsdp_code_bytes(at->rank->world->plan, entry), error);
}

gboolean rank_shard_value(const RankAt *at, GError **error)
{
    switch ((ValueAction)at->instr->action) {
    case VALUE_SHARD_CAST:
        return shard_cast(at, error);
    case VALUE_SHARD_PLACE:
        return shard_place(at, error);
    case VALUE_PARAM_CAST:
        return param_cast(at, error);
    case VALUE_COPY_OUT:
        return copy_out(at, error);
    case VALUE_GRAD_IN:
        return grad_in(at, error);
    case VALUE_UPDATE:
        return update(at, error);
    case VALUE_WEIGHT_CODES:
        return weight_codes(at, error);
    case VALUE_FORWARD:
    case VALUE_BACKWARD:
    case VALUE_COPY:
    case VALUE_ADD:
    case VALUE_LOSS_SUM:
    case VALUE_LOSS_GRAD:
    case VALUE_PLACE_ROWS:
    case VALUE_LOADS:
    case VALUE_BIASES:
    case VALUE_DIRECTION:
    case VALUE_ORTHOGONALIZE:
    case VALUE_DESCEND:
    case VALUE_STATES_IN:
    case VALUE_STATES_OUT:
    case VALUE_MOMENTUM_IN:
    case VALUE_MOMENTUM_OUT:
    case VALUE_MASTER_IN:
    case VALUE_MASTER_OUT:
    case VALUE_DEAL_PLACE:
    case VALUE_DEAL_TAKE:
    default:
        g_assert_not_reached();
    }
}

RankBuffer *rank_param_buffer(const RankAt *at, int param)
{
    const Program *program = at->rank->program;
    for (guint s = 0; s < program->sites->len; s++) {
        const ProgramSite *site = &g_array_index(program->sites, ProgramSite, s);
        int i = site->layer == at->call->layer ? fsdp_group_find(site->group, at->segment->graph, param) : -1;
        if (i >= 0) {
            gboolean coded = fsdp_code_bytes(at->rank->world->plan, &g_array_index(site->group->params, FsdpParam, i)) > 0;
            return &at->rank->buffers[site->buffer + (coded ? fsdp_codes_buffer(site->group, (guint)i) : FSDP_PARAMS + i)];
        }
    }
    return NULL;
}

int64_t rank_slot_offset(const Rank *rank, const GraphParam *param)
{
    return param->split == PARAM_EXPERT ? fsdp_local_numel(rank->world->plan, param) * rank->ep_rank : 0;
}

/* Gradients of one parameter of a group: every slot's, as the members hold them, become the sum over the copies. */
static void sum_part(const RankAt *ats, int64_t n, const ProgramSite *site, const Part *part, int64_t first, Tensor *const *grads)
{
    const VirtualRanks *world = ats->rank->world;
    int64_t slots = part->param->dims[0], size = graph_param_numel(part->param) / slots, experts = world->plan->model->n_experts;
    g_autofree double *all = g_new0(double, slots * size), *sum = g_new0(double, experts * size);
    for (int64_t i = 0; i < n; i++) {
        shard_put(&part->shape, rank_shard_index(ats[i].rank, site->group), (const double *)grads[i]->data + first,
                  all + rank_slot_offset(ats[i].rank, part->param));
    }
    for (int64_t k = 0; k < slots * size; k++) {
        sum[rank_expert_in_slot(world, site->layer, k / size) * size + k % size] += all[k];
    }
    for (int64_t s = 0; s < slots; s++) {
        memcpy(all + s * size, sum + rank_expert_in_slot(world, site->layer, s) * size, (size_t)size * sizeof *all);
    }
    for (int64_t i = 0; i < n; i++) {
        shard_take(&part->shape, rank_shard_index(ats[i].rank, site->group), all + rank_slot_offset(ats[i].rank, part->param),
                   (double *)grads[i]->data + first);
    }
}

/* What a rank sends when its slots become the sum over the copies: of m copies each sends 2 (m - 1) / m to those of
 * other ranks. */
static int64_t copies_bytes(const Rank *rank, const ProgramSite *site)
{
    const Plan *plan = rank->world->plan;
    int64_t slots = plan_expert_slots(plan), local = slots / plan->ep, bytes = 0;
    int64_t slot_bytes = dtype_bytes(plan->parameters, site->group->trainable_shard_numel) / local;
    for (int64_t own = rank->ep_rank * local; own < (rank->ep_rank + 1) * local; own++) {
        int64_t copies = 0, elsewhere = 0;
        for (int64_t s = 0; s < slots; s++) {
            gboolean is_copy =
                rank_expert_in_slot(rank->world, site->layer, s) == rank_expert_in_slot(rank->world, site->layer, own);
            copies += is_copy;
            elsewhere += is_copy && s / local != rank->ep_rank;
        }
        bytes += elsewhere * (2 * slot_bytes / copies);
    }
    return bytes;
}

gboolean rank_sum_copies(const RankAt *ats, int64_t n, GError **error)
{
    RankSite *own;
    const Plan *plan = ats->rank->world->plan;
    if (ats->instr->coll != COLL_all_reduce || ats->instr->group != GROUP_DENSE) {
        return rank_fail(ats, error, "copies are summed over all ranks of the replica, not by %s",
                         coll_name((CollKind)ats->instr->coll));
    }
    const ProgramSite *site = operand_site(&ats[0], 0, FSDP_GRAD, &own, error);
    g_autofree Tensor **grads = g_new0(Tensor *, n);
    int64_t first = 0;
    if (site == NULL) {
        return FALSE;
    }
    for (int64_t i = 0; i < n; i++) {
        grads[i] =
            rank_change(&ats[i], rank_operand(&ats[i], 0), TENSOR_F64, site->group->trainable_shard_numel, error);
        gboolean exact =
            ats->rank->world->options.exact_sizes; /* a program of its own for every place of the EP group */
        if (grads[i] == NULL || (exact && !rank_check_bytes(&ats[i], copies_bytes(ats[i].rank, site), error))) {
            return FALSE;
        }
    }
    for (guint p = 0; p < site->group->params->len; p++) {
        Part part = part_of(plan, site->group, p);
        if (fsdp_has_grad(part.param)) {
            sum_part(ats, n, site, &part, first, grads);
            first += part.numel;
        }
    }
    return TRUE;
}
