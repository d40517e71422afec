/*
 * What a result says, in the order of its schema: the one list of its members.
 */
#include <math.h>

#include "workloads/run/result.h"

typedef struct Teller {
    const ResultSink *sink;
    void *self;
} Teller;

static gboolean begin(const Teller *to, const char *key, gboolean is_list)
{
    return to->sink->begin(to->self, key, is_list);
}

/* An object in a list. */
static void begin_item(const Teller *to)
{
    gboolean wanted = begin(to, NULL, FALSE);
    g_assert(wanted); /* who wants a list wants what is in it */
}

static void end(const Teller *to)
{
    to->sink->end(to->self);
}

static void number(const Teller *to, const char *key, double value)
{
    if (isfinite(value)) {
        to->sink->number(to->self, key, value);
    } else {
        to->sink->text(to->self, key, NULL);
    }
}

static void integer(const Teller *to, const char *key, int64_t value)
{
    to->sink->integer(to->self, key, value);
}

static void truth(const Teller *to, const char *key, gboolean value)
{
    to->sink->truth(to->self, key, value);
}

static void text(const Teller *to, const char *key, const char *value)
{
    to->sink->text(to->self, key, value);
}

static void tell_strings(const Teller *to, const char *key, const GPtrArray *strings)
{
    if (begin(to, key, TRUE)) {
        for (guint i = 0; i < strings->len; i++) {
            text(to, NULL, g_ptr_array_index(strings, i));
        }
        end(to);
    }
}

static void tell_time(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        number(to, "forward_s", result->forward_s);
        number(to, "backward_s", result->backward_s);
        number(to, "optimizer_s", result->optimizer_s);
        number(to, "exposed_comm_s", result->exposed_comm_s);
        number(to, "bubble_s", result->bubble_s);
        if (begin(to, "by_operator", FALSE)) {
            for (guint i = 0; i < result->operators->len; i++) {
                const ResultOperator *entry = g_ptr_array_index(result->operators, i);
                number(to, entry->name, entry->seconds);
            }
            end(to);
        }
        number(to, "exposed_host_s", result->exposed_host_s);
        number(to, "network_shared_s", result->crowded_s);
        number(to, "recompute_s", result->recompute_s);
        number(to, "host_s", result->host_s);
        number(to, "host_tables_s", result->host_tables_s);
        number(to, "host_pages_s", result->host_pages_s);
        if (result->matrix_max_over_mean > 0) {
            number(to, "matrix_max_over_mean", result->matrix_max_over_mean);
        }
        end(to);
    }
}

static void tell_kept(const Teller *to, const char *key, const GPtrArray *kept)
{
    if (begin(to, key, TRUE)) {
        for (guint i = 0; i < kept->len; i++) {
            const ResultKept *entry = g_ptr_array_index(kept, i);
            begin_item(to);
            text(to, "operator", entry->name);
            integer(to, "bytes", entry->bytes);
            number(to, "recompute_s", entry->seconds);
            integer(to, "hbm_layers", entry->hbm_layers);
            integer(to, "ddr_layers", entry->ddr_layers);
            integer(to, "recomputed_layers", entry->recomputed_layers);
            end(to);
        }
        end(to);
    }
}

static void tell_tiers(const Teller *to, const char *key, const ResultTiers *tiers)
{
    if (begin(to, key, FALSE)) {
        text(to, "policy", tiers->policy);
        integer(to, "entries", tiers->entries);
        integer(to, "hbm_hits", tiers->hbm_hits);
        integer(to, "ddr_hits", tiers->ddr_hits);
        integer(to, "misses", tiers->misses);
        integer(to, "evictions", tiers->evictions);
        integer(to, "hit_bytes", tiers->hit_bytes);
        integer(to, "miss_bytes", tiers->miss_bytes);
        integer(to, "hbm_bytes", tiers->hbm_bytes);
        integer(to, "ddr_bytes", tiers->ddr_bytes);
        number(to, "saved_s", tiers->saved_s);
        number(to, "recomputed_s", tiers->recomputed_s);
        number(to, "next_hbm_gib_s", tiers->next_hbm_gib_s);
        number(to, "next_ddr_gib_s", tiers->next_ddr_gib_s);
        integer(to, "moved_out_bytes", tiers->moved_out_bytes);
        integer(to, "moved_in_bytes", tiers->moved_in_bytes);
        number(to, "stall_s", tiers->stall_s);
        integer(to, "host_peak_bytes", tiers->host_peak_bytes);
        integer(to, "host_mean_bytes", tiers->host_mean_bytes);
        integer(to, "host_capacity_bytes", tiers->host_capacity_bytes);
        integer(to, "hbm_budget_bytes", tiers->hbm_budget_bytes);
        integer(to, "ddr_budget_bytes", tiers->ddr_budget_bytes);
        integer(to, "hbm_held_bytes", tiers->hbm_held_bytes);
        integer(to, "ddr_held_bytes", tiers->ddr_held_bytes);
        tell_kept(to, "kept", tiers->kept);
        end(to);
    }
}

static void tell_phases(const Teller *to, const char *key, const ResultPhases *phases)
{
    if (begin(to, key, FALSE)) {
        for (int i = 0; i < N_MOMENTS; i++) {
            const ResultMoment *moment = &phases->moments[i];
            if (begin(to, result_moment_name((MemoryMoment)i), FALSE)) {
                integer(to, "allocated_bytes", moment->allocated_bytes);
                integer(to, "reserved_bytes", moment->reserved_bytes);
                integer(to, "cached_bytes", moment->reserved_bytes - moment->allocated_bytes);
                integer(to, "fragmented_bytes", moment->fragmented_bytes);
                integer(to, "largest_free_bytes", moment->largest_free_bytes);
                end(to);
            }
        }
        integer(to, "allocator_retries", phases->n_retries);
        end(to);
    }
}

static void tell_memory(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        integer(to, "capacity_bytes", result->capacity_bytes);
        integer(to, "non_framework_bytes", result->non_framework_bytes);
        if (begin(to, "at_peak", FALSE)) {
            for (int tag = 0; tag < N_MEM_TAGS; tag++) {
                integer(to, result_mem_tag_name((MemTag)tag), result->at_peak[tag]);
            }
            end(to);
        }
        integer(to, "mean_rank_peak_bytes", result->mean_rank_peak_bytes);
        integer(to, "context_bytes", result->context_bytes);
        integer(to, "communicators_bytes", result->communicators_bytes);
        integer(to, "seq_chunk", result->seq_chunk);
        if (result->largest_seq_chunk > 0) {
            integer(to, "largest_seq_chunk", result->largest_seq_chunk);
        }
        integer(to, "cached_bytes", MAX(0, result->reserved_memory_bytes - result->peak_memory_bytes));
        text(to, "peak_place", result->peak_place);
        if (isfinite(result->peak_time_s)) {
            number(to, "peak_time_s", result->peak_time_s);
        }
        if (result->phases != NULL) {
            tell_phases(to, "phases", result->phases);
        }
        tell_tiers(to, "tiers", result->tiers);
        end(to);
    }
}

static void tell_parameters(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        integer(to, "total", result->params_total);
        integer(to, "active", result->params_active);
        integer(to, "trainable", result->params_trainable);
        integer(to, "per_rank", result->params_per_rank);
        end(to);
    }
}

/* Sampled groups, and how the busiest rank's load grows with their number. */
static void tell_replicas(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        integer(to, "in_all", result->groups_in_all);
        integer(to, "sampled", result->groups_sampled);
        integer(to, "simulated", result->groups_simulated);
        if (begin(to, "growth", TRUE)) {
            for (guint i = 0; i < result->group_growth->len; i++) {
                const ResultGrowth *entry = &g_array_index(result->group_growth, ResultGrowth, i);
                begin_item(to);
                integer(to, "replicas", entry->n);
                number(to, "rank_load_max_over_mean", entry->rank_load_max_over_mean);
                end(to);
            }
            end(to);
        }
        end(to);
    }
}

static void tell_replacement(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        integer(to, "moved_experts", result->replacement_moved_experts);
        integer(to, "bytes_per_rank", result->replacement_bytes_per_rank);
        number(to, "move_s", result->replacement_s);
        number(to, "s_per_step", result->replacement_s_per_step);
        number(to, "rank_load_before", result->replacement_load_before);
        number(to, "rank_load_after", result->replacement_load_after);
        end(to);
    }
}

static void tell_moe(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        number(to, "dropped_fraction", result->dropped_fraction);
        number(to, "expert_load_max_over_mean", result->expert_load_max_over_mean);
        number(to, "rank_load_max_over_mean", result->rank_load_max_over_mean);
        integer(to, "all_to_all_bytes_per_rank", result->all_to_all_bytes_per_rank);
        number(to, "padding_fraction", result->padding_fraction);
        integer(to, "expert_capacity", result->expert_capacity);
        integer(to, "busiest_rank", result->busiest_rank);
        tell_replicas(to, "replicas", result);
        tell_replacement(to, "replacement", result);
        end(to);
    }
}

static void tell_evidence(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, FALSE)) {
        for (int i = 0; i < N_EVIDENCES; i++) {
            number(to, evidence_name((Evidence)i), result->evidence[i]);
        }
        end(to);
    }
}

static void tell_operators(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, TRUE)) {
        for (guint i = 0; i < result->operators->len; i++) {
            const ResultOperator *entry = g_ptr_array_index(result->operators, i);
            begin_item(to);
            text(to, "name", entry->name);
            number(to, "time_s", entry->seconds);
            number(to, "recomputed_s", entry->recomputed_s);
            integer(to, "launches", entry->launches);
            number(to, "flops", entry->flops);
            end(to);
        }
        end(to);
    }
}

static void tell_levels(const Teller *to, const char *key, guint32 levels)
{
    if (begin(to, key, TRUE)) {
        for (int level = 0; level < N_NET_LEVELS; level++) {
            if (levels >> level & 1u) {
                text(to, NULL, net_level_name((NetLevel)level));
            }
        }
        end(to);
    }
}

static void tell_collectives(const Teller *to, const char *key, const Result *result)
{
    if (begin(to, key, TRUE)) {
        for (guint i = 0; i < result->collectives->len; i++) {
            const ResultCollective *collective = g_ptr_array_index(result->collectives, i);
            begin_item(to);
            text(to, "name", collective->name);
            text(to, "tier", collective->tier);
            integer(to, "group_size", collective->group_size);
            integer(to, "count", collective->count);
            integer(to, "bytes", collective->bytes);
            number(to, "time_s", collective->seconds);
            text(to, "network", result_network_name(collective->meets));
            tell_levels(to, "shared_links", collective->meets);
            end(to);
        }
        end(to);
    }
}

void result_tell(const Result *result, const ResultSink *sink, void *self)
{
    const Teller teller = {sink, self}, *to = &teller;
    text(to, "schema", "moesim.result/1");
    integer(to, "ranks", result->ranks);
    number(to, "step_time_s", result->step_time_s);
    number(to, "tokens_per_s", result->tokens_per_s);
    number(to, "tokens_per_s_per_gpu", result->tokens_per_s_per_gpu);
    number(to, "useful_tokens_per_s_per_gpu", result->useful_tokens_per_s_per_gpu);
    number(to, "model_flops_per_token", result->model_flops_per_token);
    number(to, "tflops_per_gpu", result->tflops_per_gpu);
    number(to, "mfu", result->mfu);
    number(to, "hfu", result->hfu);
    tell_time(to, "time", result);
    integer(to, "peak_memory_bytes", result->peak_memory_bytes);
    integer(to, "reserved_memory_bytes", result->reserved_memory_bytes);
    integer(to, "static_memory_bytes", result->static_memory_bytes);
    integer(to, "after_forward_memory_bytes", result->after_forward_memory_bytes);
    integer(to, "peak_rank", result->peak_rank);
    truth(to, "fits", result->fits);
    tell_memory(to, "memory", result);
    tell_parameters(to, "parameters", result);
    tell_moe(to, "moe", result);
    tell_strings(to, "warnings", result->warnings);
    tell_evidence(to, "evidence", result);
    tell_operators(to, "operators", result);
    tell_collectives(to, "collectives", result);
    tell_strings(to, "advice", result->advice);
}
