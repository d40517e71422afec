/*
 * Token exchanges between virtual ranks: each token goes once to every rank that has one of its kept choices, or to all
 * ranks; what comes back is added up by token.
 *
 * What arrives at a rank stands by source, then by token; sources may have different numbers of tokens. Sums run in the order of
 * the members.
 */
#include <string.h>

#include "models/execute.h"
#include "models/ops/token-combine.h"
#include "models/ops/token-dispatch.h"
#include "workloads/run/rank.h"

/* Tokens of a part: a chunk, or all. */
static int64_t part_tokens(const RankAt *at, int part)
{
    const Graph *graph = at->segment->graph;
    return rank_rows(at).rows[row_space_of_chunk(ROWS_TOKENS, graph->n_chunks > 0 ? part + 1 : 0)];
}

/* Marks in sent_to where the tokens of a source go, and in local[member][token * k + choice] the slot of a choice there. */
static void mark_source(const RankAt *at, int part, int64_t n, const Tensor *order, int64_t *local)
{
    RankRouting *routing = rank_part_routing(at, part);
    gboolean to_all = token_dispatch_to_all(graph_op(at->segment->graph, at->instr->op));
    const int64_t *sent = routing->sent->data, *choice = order->data;
    int64_t slots = tensor_numel(routing->sent), per_rank = slots / n, tokens = part_tokens(at, part),
            k = tensor_numel(order) / MAX(tokens, 1), s = 0;
    tensor_free(routing->sent_to);
    routing->sent_to = tensor_new_2d(TENSOR_I64, n, tokens);
    int64_t *sent_to = routing->sent_to->data;
    for (int64_t i = 0; i < n * tokens; i++) {
        sent_to[i] = to_all ? 1 : 0;
    }
    for (int64_t i = 0; i < n * tokens * k; i++) {
        local[i] = -1;
    }
    for (int64_t slot = 0; slot < slots; slot++) {
        for (int64_t i = 0; i < sent[slot] && s < tokens * k; i++, s++) {
            int64_t member = slot / per_rank;
            sent_to[member * tokens + choice[s] / k] = 1;
            local[member * tokens * k + choice[s]] = slot % per_rank;
        }
    }
}

/* The order of a part's slots names choices of its tokens. */
static gboolean check_order(const RankAt *at, int part, const Tensor *order, GError **error)
{
    int64_t n = tensor_numel(order), slots = rank_part_routing(at, part)->slots;
    gboolean ok = slots <= n;
    for (int64_t s = 0; ok && s < slots; s++) {
        int64_t choice = ((const int64_t *)order->data)[s];
        ok = choice >= 0 && choice < n;
    }
    return ok || rank_fail(at, error, "the order of its slots is not one of its %" G_GINT64_FORMAT " choices", n);
}

gboolean rank_token_ids(const RankAt *ats, int64_t n, int part, int order_operand, GError **error)
{
    g_autoptr(GPtrArray) locals = g_ptr_array_new_with_free_func(g_free);
    int64_t k = 0, all_tokens = 0;
    for (int64_t source = 0; source < n; source++) {
        int64_t tokens = part_tokens(&ats[source], part);
        k = graph_tensor(ats->segment->graph, graph_op(ats->segment->graph, ats->instr->op)->inputs[1])->width;
        const Tensor *order = rank_read_as(&ats[source], rank_operand(&ats[source], order_operand), TENSOR_I64, tokens * k, error);
        if (order == NULL || !check_order(&ats[source], part, order, error)) {
            return FALSE;
        }
        all_tokens += tokens;
        int64_t *local = g_new(int64_t, n * tokens * k);
        g_ptr_array_add(locals, local);
        mark_source(&ats[source], part, n, order, local);
    }
    for (int64_t member = 0; member < n; member++) {
        RankRouting *routing = rank_part_routing(&ats[member], part);
        tensor_free(routing->choices);
        routing->choices = tensor_new_2d(TENSOR_I64, all_tokens, k);
        routing->arrived_tokens = 0;
        for (int64_t source = 0; source < n; source++) {
            int64_t tokens = part_tokens(&ats[source], part);
            const int64_t *sent_to = (const int64_t *)rank_part_routing(&ats[source], part)->sent_to->data + member * tokens;
            const int64_t *local = (const int64_t *)g_ptr_array_index(locals, source) + member * tokens * k;
            for (int64_t t = 0; t < tokens; t++) {
                if (sent_to[t] != 0) {
                    int64_t *row = (int64_t *)routing->choices->data + routing->arrived_tokens++ * k;
                    memcpy(row, local + t * k, (size_t)k * sizeof *row);
                }
            }
        }
    }
    return TRUE;
}

/* Copies a token's row to where it arrives, or adds what comes back to it. */
static void move_row(double *there, double *own, int64_t width, gboolean back)
{
    for (int64_t c = 0; c < width; c++) {
        if (back) {
            own[c] += there[c];
        } else {
            there[c] = own[c];
        }
    }
}

static void move_rows(const RankAt *ats, int64_t n, Tensor *const *own, Tensor *const *arrived, gboolean back)
{
    const Op *op = graph_op(ats->segment->graph, ats->instr->op);
    int64_t width = graph_tensor(ats->segment->graph, op->inputs[0])->width;
    int part = op_part(op);
    for (int64_t member = 0; member < n; member++) {
        double *there = arrived[member]->data;
        for (int64_t source = 0; source < n; source++) {
            int64_t tokens = part_tokens(&ats[source], part);
            const int64_t *sent_to = (const int64_t *)rank_routing(&ats[source])->sent_to->data + member * tokens;
            for (int64_t t = 0; t < tokens; t++) {
                if (sent_to[t] != 0) {
                    move_row(there, (double *)own[source]->data + t * width, width, back);
                    there += width;
                }
            }
        }
    }
}

/* The sizes of the exchange are known to whoever needs them. */
static gboolean knows_sizes(const RankAt *at, gboolean back, GError **error)
{
    const Op *op = graph_op(at->segment->graph, at->instr->op);
    const RankRouting *routing = rank_routing(at);
    if (routing->sent_to == NULL) {
        return rank_fail(at, error, "tokens are sent without an exchange of their choices");
    }
    gboolean is_first = op->kind == OP_token_dispatch && !token_dispatch_follows(op) && !back;
    if (!rank_knows_counts(at, routing)) {
        return rank_fail(at, error, "the host sizes the exchange before the counts are known to have come");
    }
    return !is_first || routing->has_counts || rank_fail(at, error, "tokens are sent without an exchange of their choices");
}

/* A copy of the rows that a rank sends; a chunk's own tokens, on their way to the experts, lie among all of them. NULL and an error. */
static Tensor *sent_value(const RankAt *at, int64_t rows, int64_t width, GError **error)
{
    const Op *op = graph_op(at->segment->graph, at->instr->op);
    gboolean is_part = op->chunk > 0 && op_class(op->kind)->to_experts && at->instr->phase != PHASE_BACKWARD;
    int64_t all = is_part ? rank_rows(at).rows[ROWS_TOKENS] : rows;
    int64_t first = is_part ? token_chunk_start(all, at->segment->graph->n_chunks, op->chunk - 1) : 0;
    const Tensor *value = rank_read_as(at, rank_operand(at, 0), TENSOR_F64, all * width, error);
    if (value == NULL) {
        return NULL;
    }
    Tensor *sent = tensor_new_2d(TENSOR_F64, rows, width);
    memcpy(sent->data, (const double *)value->data + first * width, (size_t)(rows * width) * sizeof(double));
    return sent;
}

gboolean rank_token_rows(const RankAt *ats, int64_t n, GError **error)
{
    int part = op_part(graph_op(ats->segment->graph, ats->instr->op));
    gboolean to_experts = op_class(graph_op(ats->segment->graph, ats->instr->op)->kind)->to_experts;
    gboolean back = to_experts == (ats->instr->phase == PHASE_BACKWARD);
    g_autoptr(GPtrArray) from = g_ptr_array_new_with_free_func((GDestroyNotify)tensor_free);
    g_autoptr(GPtrArray) to = g_ptr_array_new_with_free_func((GDestroyNotify)tensor_free);
    g_autofree int64_t *bytes = g_new0(int64_t, n); /* of a rank's own tokens, there or back */
    const GraphTensor *info =
        graph_tensor(ats->segment->graph, graph_op(ats->segment->graph, ats->instr->op)->inputs[0]);
    for (int64_t i = 0; i < n; i++) {
        const Tensor *sent_to = rank_routing(&ats[i])->sent_to;
        int64_t own = part_tokens(&ats[i], part), arrived = rank_routing(&ats[i])->arrived_tokens;
        if (!knows_sizes(&ats[i], back, error)) {
            return FALSE;
        }
        Tensor *sent = sent_value(&ats[i], back ? arrived : own, info->width, error);
        if (sent == NULL) {
            return FALSE;
        }
        for (int64_t t = 0; t < tensor_numel(sent_to); t++) {
            bytes[i] += ((const int64_t *)sent_to->data)[t] * dtype_bytes(info->dtype, info->width);
        }
        g_ptr_array_add(from, sent);
        g_ptr_array_add(to, tensor_new_2d(TENSOR_F64, back ? own : arrived, info->width));
    }
    if (!rank_check_busiest(ats, n, bytes, error)) {
        return FALSE;
    }
    move_rows(ats, n, (Tensor **)(back ? to : from)->pdata, (Tensor **)(back ? from : to)->pdata, back);
    for (int64_t i = 0; i < n; i++) {
        Tensor *value = g_ptr_array_index(to, i);
        g_ptr_array_index(to, i) = NULL;
        if (!rank_write(&ats[i], rank_operand(&ats[i], 1), value, info->dtype, error)) {
            return FALSE;
        }
    }
    return TRUE;
}
