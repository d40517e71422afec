/*
 * Collectives between virtual ranks: what members give and get, with the sizes that they really have.
 */
#include <string.h>

#include "models/execute.h"
#include "models/moe-tables.h"
#include "workloads/run/rank.h"

/* What a member of a group holds of a buffer of n elements, or NULL and an error. */
static const Tensor *member_value(const RankAt *at, int operand, int64_t n, GError **error)
{
    const Tensor *value = rank_read(at, rank_operand(at, operand), error);
    if (value != NULL && tensor_numel(value) != n) {
        rank_fail(at, error, "its part of the collective has %" G_GINT64_FORMAT " elements, the first member's %" G_GINT64_FORMAT,
                  tensor_numel(value), n);
        return NULL;
    }
    return value;
}

static gboolean members_values(const RankAt *ats, int64_t n, int operand, const Tensor **ret_values, GError **error)
{
    for (int64_t i = 0; i < n; i++) {
        const RankBuffer *first = rank_operand(&ats[0], operand);
        int64_t numel = first->value != NULL ? tensor_numel(first->value) : 0;
        ret_values[i] = member_value(&ats[i], operand, numel, error);
        if (ret_values[i] == NULL) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean all_gather(const RankAt *ats, int64_t n, GError **error)
{
    Dtype dtype = ats->rank->world->plan->compute;
    g_autofree const Tensor **parts = g_new0(const Tensor *, n);
    if (!members_values(ats, n, 0, parts, error)) {
        return FALSE;
    }
    int64_t numel = tensor_numel(parts[0]), chunk = numel / n;
    g_autoptr(Tensor) whole = tensor_new_2d(TENSOR_F64, 1, numel);
    for (int64_t i = 0; i < n; i++) {
        memcpy((double *)whole->data + i * chunk, (const double *)parts[i]->data + i * chunk, (size_t)chunk * sizeof(double));
    }
    for (int64_t i = 0; i < n; i++) {
        if (!rank_write(&ats[i], rank_operand(&ats[i], 0), tensor_dup(whole), dtype, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* Sum over the members, in their order. */
static Tensor *sum_of(const Tensor *const *parts, int64_t n)
{
    Tensor *sum = tensor_dup(parts[0]);
    for (int64_t i = 1; i < n; i++) {
        execute_add_to(sum, parts[i]);
    }
    return sum;
}

static gboolean reduce_scatter(const RankAt *ats, int64_t n, GError **error)
{
    Dtype dtype = ats->rank->world->plan->reduce;
    g_autofree const Tensor **parts = g_new0(const Tensor *, n);
    if (!members_values(ats, n, 0, parts, error)) {
        return FALSE;
    }
    g_autoptr(Tensor) sum = sum_of(parts, n);
    int64_t chunk = tensor_numel(sum) / n;
    for (int64_t i = 0; i < n; i++) {
        Tensor *part = tensor_new_2d(TENSOR_F64, 1, chunk);
        memcpy(part->data, (const double *)sum->data + i * chunk, (size_t)chunk * sizeof(double));
        if (!rank_write(&ats[i], rank_operand(&ats[i], 1), part, dtype, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static gboolean all_reduce(const RankAt *ats, int64_t n, GError **error)
{
    Dtype dtype = ats->rank->world->plan->reduce;
    g_autofree const Tensor **parts = g_new0(const Tensor *, n);
    if (!members_values(ats, n, 0, parts, error)) {
        return FALSE;
    }
    g_autoptr(Tensor) sum = sum_of(parts, n);
    for (int64_t i = 0; i < n; i++) {
        if (!rank_write(&ats[i], rank_operand(&ats[i], 0), tensor_dup(sum), dtype, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

static RankRouting *routing_of(const RankAt *at)
{
    return &at->rank->routing[at->call->layer];
}

/* Every member learns how many rows each other one will send to each of its experts. */
static gboolean exchange_counts(const RankAt *ats, int64_t n, GError **error)
{
    g_autofree const Tensor **counts = g_new0(const Tensor *, n);
    if (!members_values(ats, n, 0, counts, error)) {
        return FALSE;
    }
    int64_t local = tensor_numel(counts[0]) / n;
    for (int64_t i = 0; i < n; i++) {
        RankRouting *routing = routing_of(&ats[i]);
        tensor_free(routing->sent);
        tensor_free(routing->arrived);
        routing->sent = tensor_dup(counts[i]);
        routing->arrived = tensor_new_2d(TENSOR_I64, n * local, 1);
        int64_t *arrived = routing->arrived->data;
        for (int64_t source = 0; source < n; source++) {
            memcpy(arrived + source * local, (const int64_t *)counts[source]->data + i * local, (size_t)local * sizeof *arrived);
        }
        routing->received = moe_arrival(arrived, n, local, NULL, routing->expert_rows);
        routing->has_counts = TRUE;
        rank_note_counts(&ats[i], routing);
    }
    return TRUE;
}

/* Rows that the source sends to the experts of a member, and the first of them in its slots. */
static int64_t sent_rows(const RankAt *source, int64_t n, int64_t member, int64_t *ret_first)
{
    const int64_t *sent = routing_of(source)->sent->data;
    int64_t local = tensor_numel(routing_of(source)->sent) / n, rows = 0;
    *ret_first = 0;
    for (int64_t e = 0; e < (member + 1) * local; e++) {
        *(e < member * local ? ret_first : &rows) += sent[e];
    }
    return rows;
}

static gboolean check_rows(const RankAt *at, const Tensor *value, int64_t rows, GError **error)
{
    return value->dims[0] == rows ||
           rank_fail(at, error, "exchanges %" G_GINT64_FORMAT " rows, its counts say %" G_GINT64_FORMAT, value->dims[0], rows);
}

/*
 * Rows to the ranks of their experts, or back. Slots of a source stand by expert; what arrives stands by source.
 */
static gboolean exchange_rows(const RankAt *ats, int64_t n, GError **error)
{
    const Graph *graph = ats->segment->graph;
    gboolean is_dispatch = graph_op(graph, ats->instr->op)->kind == OP_dispatch;
    gboolean back = is_dispatch == (ats->instr->phase == PHASE_BACKWARD);
    g_autofree const Tensor **from = g_new0(const Tensor *, n);
    g_autofree Tensor **to = g_new0(Tensor *, n);
    g_autofree int64_t *arrived = g_new0(int64_t, n);
    for (int64_t i = 0; i < n; i++) {
        const RankRouting *routing = routing_of(&ats[i]);
        if (!rank_knows_counts(&ats[i], routing)) {
            return rank_fail(&ats[i], error, "the host sizes the exchange before the counts are known to have come");
        }
        if (is_dispatch && !back && !routing->has_counts) {
            return rank_fail(&ats[i], error, "rows are sent without an exchange of their counts");
        }
        from[i] = rank_read(&ats[i], rank_operand(&ats[i], 0), error);
        if (from[i] == NULL || !check_rows(&ats[i], from[i], back ? routing->received : routing->slots, error)) {
            return FALSE;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const RankRouting *routing = routing_of(&ats[i]);
        to[i] = tensor_new_2d(TENSOR_F64, back ? routing->slots : routing->received, from[i]->dims[1]);
    }
    size_t row = (size_t)from[0]->dims[1] * sizeof(double);
    for (int64_t source = 0; source < n; source++) {
        for (int64_t member = 0; member < n; member++) {
            int64_t first, rows = sent_rows(&ats[source], n, member, &first);
            const char *read = (const char *)(back ? from[member] : from[source])->data;
            char *write = (back ? to[source] : to[member])->data;
            size_t slot = (size_t)first * row, place = (size_t)arrived[member] * row;
            memcpy(write + (back ? slot : place), read + (back ? place : slot), (size_t)rows * row);
            arrived[member] += rows;
        }
    }
    gboolean ok = TRUE;
    for (int64_t i = 0; i < n; i++) {
        if (ok) {
            ok = rank_write(&ats[i], rank_operand(&ats[i], 1), to[i], graph->compute, error);
        } else {
            tensor_free(to[i]);
        }
    }
    return ok;
}

gboolean rank_collective(const RankAt *ats, int64_t n, GError **error)
{
    const Instr *instr = ats->instr;
    if (instr->action == VALUE_SUM_COPIES) {
        return rank_sum_copies(ats, n, error);
    }
    switch ((CollKind)instr->coll) {
    case COLL_all_gather:
        return all_gather(ats, n, error);
    case COLL_reduce_scatter:
        return reduce_scatter(ats, n, error);
    case COLL_all_reduce:
        return all_reduce(ats, n, error);
    case COLL_all_to_all:
        if (instr->group != GROUP_EP) {
            return rank_whole_exchange(ats, n, error);
        }
        if (instr->n_operands == 1) {
            return exchange_counts(ats, n, error);
        }
        return exchange_rows(ats, n, error);
    default:
        return rank_fail(ats, error, "%s is no collective of a program", coll_name((CollKind)instr->coll));
    }
}
