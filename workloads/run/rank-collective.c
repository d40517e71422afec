/*
 * Collectives between virtual ranks: what members give and get, with the sizes that they really have.
 */
#include <string.h>

#include "models/execute.h"
#include "models/moe-tables.h"
#include "workloads/lower/lowering.h"
#include "workloads/run/rank.h"
#include "workloads/run/run.h"

/* What the members of a group hold of a buffer: as much as the first. */
static gboolean members_values(const RankAt *ats, int64_t n, int operand, TensorType type, const Tensor **ret_values,
                               GError **error)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t numel = i > 0 ? tensor_numel(ret_values[0]) : -1;
        ret_values[i] = rank_read_as(&ats[i], rank_operand(&ats[i], operand), type, numel, error);
        if (ret_values[i] == NULL) {
            return FALSE;
        }
    }
    gboolean is_cut = ats->instr->coll != COLL_all_reduce;
    return !is_cut || tensor_numel(ret_values[0]) % n == 0 ||
           rank_fail(ats, error, "%" G_GINT64_FORMAT " elements have no %" G_GINT64_FORMAT " equal parts",
                     tensor_numel(ret_values[0]), n);
}

gboolean rank_check_bytes(const RankAt *at, int64_t bytes, GError **error)
{
    at->rank->n_exchanged++;
    at->rank->exchanged_bytes += bytes;
    return at->instr->bytes == bytes ||
           rank_fail(at, error, "moves %" G_GINT64_FORMAT " bytes, priced are %" G_GINT64_FORMAT, bytes,
                     at->instr->bytes);
}

gboolean rank_check_moved(const RankAt *at, int64_t n, int64_t bytes, GError **error)
{
    const Plan *plan = at->rank->world->plan;
    const Instr *instr = at->instr;
    if (!rank_check_bytes(at, bytes, error)) {
        return FALSE;
    }
    CollGroup group = run_group_geometry(plan, (GroupKind)instr->group);
    SimTime ns = coll_price(plan->cluster, (CollKind)instr->coll, &group, instr->bytes).ns;
    return (group.n_ranks == n && ns == instr->device_ns) ||
           rank_fail(at, error, "takes %" G_GINT64_FORMAT " ns between %" G_GINT64_FORMAT " ranks, priced are %" G_GINT64_FORMAT, ns,
                     group.n_ranks, instr->device_ns);
}

/* The same of all members, which move alike. */
static gboolean check_bytes(const RankAt *ats, int64_t n, Dtype dtype, const Tensor *value, GError **error)
{
    for (int64_t i = 0; i < n; i++) {
        if (!rank_check_moved(&ats[i], n, dtype_bytes(dtype, tensor_numel(value)), error)) {
            return FALSE;
        }
    }
    return TRUE;
}

gboolean rank_check_busiest(const RankAt *ats, int64_t n, const int64_t *bytes, GError **error)
{
    int64_t most = 0;
    for (int64_t i = 0; i < n; i++) {
        most = MAX(most, bytes[i]);
    }
    for (int64_t i = 0; ats->rank->world->options.exact_sizes && i < n; i++) {
        if (!rank_check_bytes(&ats[i], most, error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* The group whose flat buffer the first operand is, or NULL. */
static const ProgramSite *operand_site(const RankAt *at)
{
    Place place = program_operand(at->segment, at->instr, 0);
    return place.arg != ARG_FRAME && place.idx == FSDP_FLAT ? program_site(at->rank->program, at->call->args[place.arg]) : NULL;
}

static gboolean all_gather(const RankAt *ats, int64_t n, GError **error)
{
    Dtype dtype = ats->rank->world->plan->compute;
    g_autofree const Tensor **parts = g_new0(const Tensor *, n);
    if (!members_values(ats, n, 0, TENSOR_F64, parts, error)) {
        return FALSE;
    }
    for (int64_t i = 0; i < n; i++) { /* codes of weights travel with a byte an element */
        const ProgramSite *site = operand_site(&ats[i]);
        int64_t bytes = site != NULL && site->group->resident ? site->group->gather_bytes : dtype_bytes(dtype, tensor_numel(parts[i]));
        if (!rank_check_moved(&ats[i], n, bytes, error)) {
            return FALSE;
        }
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
    if (!members_values(ats, n, 0, TENSOR_F64, parts, error) || !check_bytes(ats, n, dtype, parts[0], error)) {
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
    if (!members_values(ats, n, 0, TENSOR_F64, parts, error) || !check_bytes(ats, n, dtype, parts[0], error)) {
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

/* Counts are those of the slots that there are. */
static gboolean check_counts(const RankAt *at, int part, const Tensor *counts, GError **error)
{
    int64_t slots = rank_part_routing(at, part)->slots, sum = 0;
    for (int64_t i = 0; i < tensor_numel(counts); i++) {
        sum += ((const int64_t *)counts->data)[i];
    }
    return sum == slots || rank_fail(at, error, "counts %" G_GINT64_FORMAT " rows, its slots are %" G_GINT64_FORMAT, sum, slots);
}

/* Every member learns how many rows each other one will send to each of its experts, of a part of the tokens. */
static gboolean exchange_part_counts(const RankAt *ats, int64_t n, int part, int operand, GError **error)
{
    g_autofree const Tensor **counts = g_new0(const Tensor *, n);
    if (!members_values(ats, n, operand, TENSOR_I64, counts, error)) {
        return FALSE;
    }
    int64_t local = tensor_numel(counts[0]) / n, slots = plan_expert_slots(ats->rank->world->plan);
    if (tensor_numel(counts[0]) != slots) {
        return rank_fail(ats, error, "exchanges what is no table of the rows of %" G_GINT64_FORMAT " experts", slots);
    }
    for (int64_t i = 0; i < n; i++) {
        if (!check_counts(&ats[i], part, counts[i], error)) {
            return FALSE;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        RankRouting *routing = rank_part_routing(&ats[i], part);
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
    const Tensor *counts = rank_routing(source)->sent;
    const int64_t *sent = counts->data;
    int64_t local = tensor_numel(counts) / n, rows = 0;
    *ret_first = 0;
    for (int64_t e = 0; e < (member + 1) * local; e++) {
        *(e < member * local ? ret_first : &rows) += sent[e];
    }
    return rows;
}

/* Rows of one rank for another. */
typedef struct Hop {
    const char *read;
    char *write;
    size_t bytes;
    int64_t from, to;
} Hop;

/* Where rows stop on their way: in a hierarchical exchange at the rank of the own node that stands where the target does. */
static int64_t relay_of(const Plan *plan, const Hop *hop)
{
    int64_t per = cluster_group(plan->cluster, 0, 1, plan->ep).per_domain;
    gboolean stops = plan->moe.dispatch == PLAN_DISPATCH_HIERARCHICAL && plan->ep % per == 0;
    return stops ? hop->from / per * per + hop->to % per : hop->to;
}

/* All rows to their relays, then from there on. */
static void carry(const Plan *plan, const Hop *hops, int64_t n_hops, int64_t n)
{
    g_autoptr(GPtrArray) relays = g_ptr_array_new_with_free_func((GDestroyNotify)g_byte_array_unref);
    g_autofree size_t *at = g_new(size_t, n_hops);
    for (int64_t i = 0; i < n; i++) {
        g_ptr_array_add(relays, g_byte_array_new());
    }
    for (int64_t i = 0; i < n_hops; i++) {
        GByteArray *relay = g_ptr_array_index(relays, relay_of(plan, &hops[i]));
        at[i] = relay->len;
        g_byte_array_append(relay, (const guint8 *)hops[i].read, (guint)hops[i].bytes);
    }
    for (int64_t i = 0; i < n_hops; i++) {
        const GByteArray *relay = g_ptr_array_index(relays, relay_of(plan, &hops[i]));
        if (hops[i].bytes > 0) {
            memcpy(hops[i].write, relay->data + at[i], hops[i].bytes);
        }
    }
}

/*
 * The bytes that are stated are those of the busiest rank's own rows, and the time is what the law says of the rows that really
 * go from each rank to each: inside domains, between them, over uplinks. hops: by rank that owns the rows, then by peer.
 */
static gboolean check_exchange(const RankAt *ats, int64_t n, const Hop *hops, int64_t width, GError **error)
{
    Dtype dtype = ats->segment->graph->compute;
    size_t row = (size_t)width * sizeof(double);
    g_autofree int64_t *bytes = g_new0(int64_t, n), *rows = g_new0(int64_t, n * n);
    for (int64_t i = 0; i < n * n; i++) {
        rows[i] = (int64_t)(hops[i].bytes / row);
        bytes[i / n] += dtype_bytes(dtype, rows[i] * width);
    }
    if (!ats->rank->world->options.exact_sizes) {
        return TRUE;
    }
    if (!rank_check_busiest(ats, n, bytes, error)) {
        return FALSE;
    }
    SimTime ns = lowering_price_rows(ats->rank->world->plan, rows, dtype_bytes(dtype, width)).ns;
    for (int64_t i = 0; i < n; i++) {
        if (ats[i].instr->device_ns != ns) {
            return rank_fail(&ats[i], error, "takes %" G_GINT64_FORMAT " ns by the rows that it moves, priced are %" G_GINT64_FORMAT,
                             ns, ats[i].instr->device_ns);
        }
    }
    return TRUE;
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
    g_autofree Hop *hops = g_new0(Hop, n * n);
    int64_t width = graph_tensor(graph, graph_op(graph, ats->instr->op)->inputs[0])->width;
    for (int64_t i = 0; i < n; i++) {
        const RankRouting *routing = rank_routing(&ats[i]);
        if (!rank_knows_counts(&ats[i], routing)) {
            return rank_fail(&ats[i], error, "the host sizes the exchange before the counts are known to have come");
        }
        if (routing->sent == NULL || (is_dispatch && !back && !routing->has_counts)) {
            return rank_fail(&ats[i], error, "rows are sent without an exchange of their counts");
        }
        int64_t rows = back ? routing->received : routing->slots;
        from[i] = rank_read_as(&ats[i], rank_operand(&ats[i], 0), TENSOR_F64, rows * width, error);
        if (from[i] == NULL) {
            return FALSE;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        const RankRouting *routing = rank_routing(&ats[i]);
        to[i] = tensor_new_2d(TENSOR_F64, back ? routing->slots : routing->received, width);
    }
    size_t row = (size_t)width * sizeof(double);
    for (int64_t source = 0; source < n; source++) {
        for (int64_t member = 0; member < n; member++) {
            int64_t first, rows = sent_rows(&ats[source], n, member, &first);
            const char *read = (const char *)(back ? from[member] : from[source])->data;
            char *write = (back ? to[source] : to[member])->data;
            size_t slot = (size_t)first * row, place = (size_t)arrived[member] * row;
            hops[source * n + member] = (Hop){.read = read + (back ? place : slot),
                                              .write = write + (back ? slot : place),
                                              .bytes = (size_t)rows * row,
                                              .from = back ? member : source,
                                              .to = back ? source : member};
            arrived[member] += rows;
        }
    }
    carry(ats->rank->world->plan, hops, n * n, n);
    gboolean ok = check_exchange(ats, n, hops, width, error);
    for (int64_t i = 0; i < n; i++) {
        if (ok) {
            ok = rank_write(&ats[i], rank_operand(&ats[i], 1), to[i], graph->compute, error);
        } else {
            tensor_free(to[i]);
        }
    }
    return ok;
}

/* Counts of all chunks, or of all tokens; of tokens that travel as they are the order of their slots, too. */
static gboolean exchange_counts(const RankAt *ats, int64_t n, gboolean tokens, GError **error)
{
    int each = tokens ? 2 : 1, n_parts = MAX(ats->segment->graph->n_chunks, 1);
    if (ats->instr->n_operands != n_parts * each) {
        return rank_fail(ats, error, "exchanges counts of %d parts of the tokens, there are %d", ats->instr->n_operands / each, n_parts);
    }
    for (int part = 0; part < n_parts; part++) {
        if (!exchange_part_counts(ats, n, part, part * each, error) || (tokens && !rank_token_ids(ats, n, part, part * each + 1, error))) {
            return FALSE;
        }
    }
    for (int64_t i = 0; i < n; i++) {
        if (!rank_check_bytes(&ats[i], n_parts * dtype_bytes(DTYPE_INT64, plan_expert_slots(ats->rank->world->plan)), error)) {
            return FALSE;
        }
    }
    return TRUE;
}

/* What an operator of a MoE layer exchanges: counts before its rows, then rows or tokens. */
static gboolean exchange(const RankAt *ats, int64_t n, GError **error)
{
    const Instr *instr = ats->instr;
    OpKind kind = graph_op(ats->segment->graph, instr->op)->kind;
    gboolean tokens = kind == OP_token_dispatch || kind == OP_token_combine, counts = instr->action == VALUE_EXCHANGE_COUNTS;
    gboolean gathers = !counts && ats->rank->world->plan->moe.dispatch == PLAN_DISPATCH_ALL_GATHER;
    gboolean back = op_class(kind)->to_experts == (instr->phase == PHASE_BACKWARD);
    CollKind wanted = !gathers ? COLL_all_to_all : back ? COLL_reduce_scatter : COLL_all_gather;
    if (op_class(kind)->collective != OP_COLLECTIVE_ALL_TO_ALL || instr->coll != wanted) {
        return rank_fail(ats, error, "rows change ranks by %s, priced is %s", coll_name(wanted),
                         coll_name((CollKind)instr->coll));
    }
    if (counts) {
        return exchange_counts(ats, n, tokens, error);
    }
    return tokens ? rank_token_rows(ats, n, error) : exchange_rows(ats, n, error);
}

gboolean rank_collective(const RankAt *ats, int64_t n, GError **error)
{
    const Instr *instr = ats->instr;
    if (instr->action == VALUE_SUM_COPIES) {
        return rank_sum_copies(ats, n, error);
    }
    if (instr->action == VALUE_DEAL_GATHER) {
        return rank_deal_gather(ats, n, error);
    }
    if (instr->group == GROUP_WORLD) {
        return rank_sum_counts(ats, n, error);
    }
    if (instr->group == GROUP_EP && instr->op >= 0) {
        return exchange(ats, n, error);
    }
    switch ((CollKind)instr->coll) {
    case COLL_all_gather:
        return all_gather(ats, n, error);
    case COLL_reduce_scatter:
        return reduce_scatter(ats, n, error);
    case COLL_all_reduce:
        return all_reduce(ats, n, error);
    case COLL_all_to_all:
        return rank_whole_exchange(ats, n, error);
    default:
        return rank_fail(ats, error, "%s is no collective of a program", coll_name((CollKind)instr->coll));
    }
}
