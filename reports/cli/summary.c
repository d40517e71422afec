#include "reports/cli/summary.h"

#include <math.h>

#include "reports/out/text.h"

/* A blank at which no line is broken. */
#define NO_BREAK "\302\240"

enum { WIDTH = 90, BAR_WIDTH = 60, N_LONGEST = 6, LABEL = 12 };

static const char *const recompute_names[] = {
    [PLAN_RECOMPUTE_NONE] = "none", [PLAN_RECOMPUTE_FULL] = "full", [PLAN_RECOMPUTE_SELECTIVE] = "selective"};

/* "Label       text…", wrapped under the text. */
static void append_labelled(GString *out, const char *label, const char *text)
{
    g_string_append_printf(out, "%-*s", LABEL, label);
    text_append_wrapped(out, text, LABEL, WIDTH);
}

static void append_seconds(GString *out, const char *label, double seconds, double step)
{
    g_autofree char *time = text_seconds(seconds);
    g_string_append_printf(out, "  %-*s%-10s %5.1f %%\n", LABEL - 2, label, time, step > 0 ? 100 * seconds / step : 0);
}

/* ---- what runs where ---- */

static void append_model(GString *out, const Plan *plan, const Result *result)
{
    g_autofree char *total = text_count((double)result->params_total);
    g_autofree char *active = text_count((double)result->params_active);
    g_autofree char *trainable = text_count((double)result->params_trainable);
    g_autoptr(GString) text = g_string_new(NULL);
    g_string_append_printf(text, "%s: %s parameters, %s active per token, %s trained", plan->model->name, total, active,
                           trainable);
    if (plan->mode == PLAN_LORA) {
        g_string_append_printf(text, " (LoRA, rank %" G_GINT64_FORMAT ")", plan->lora_rank);
    }
    append_labelled(out, "Model", text->str);
}

static void append_degree(GString *text, const char *name, int64_t degree)
{
    if (degree > 1) {
        g_string_append_printf(text, ", %s %" G_GINT64_FORMAT, name, degree);
    }
}

static void append_machine(GString *out, const Plan *plan)
{
    const Cluster *cluster = plan->cluster;
    g_autoptr(GString) text = g_string_new(NULL);
    g_string_append_printf(
        text, "%" G_GINT64_FORMAT " x %" G_GINT64_FORMAT " %s, %" G_GINT64_FORMAT " in all: FSDP %" G_GINT64_FORMAT,
        cluster->n_nodes, cluster->gpus_per_node, cluster->device->title, cluster->n_ranks, plan->dp_shard);
    append_degree(text, "replicas", plan->dp_replicate);
    append_degree(text, "PP", plan->pp);
    append_degree(text, "TP", plan->tp);
    append_degree(text, "CP", plan->cp);
    append_degree(text, "EP", plan->ep);
    append_degree(text, "ETP", plan->etp);
    if (plan->ep > 1) {
        g_string_append_printf(text, " (expert FSDP %" G_GINT64_FORMAT ")", plan->efsdp);
    }
    append_labelled(out, "Machine", text->str);
}

static void append_batch(GString *out, const Plan *plan)
{
    g_autoptr(GString) text = g_string_new(NULL);
    g_string_append_printf(text,
                           "%" G_GINT64_FORMAT " sequences of %" G_GINT64_FORMAT " tokens a step (%" G_GINT64_FORMAT
                           " x %" G_GINT64_FORMAT " per rank); %s parameters, %s compute; recompute %s",
                           plan->global_batch, plan->seq_len, plan->n_micro_batches, plan->micro_batch,
                           dtype_name(plan->parameters), dtype_name(plan->compute), recompute_names[plan->recompute]);
    append_labelled(out, "Work", text->str);
}

/* ---- time ---- */

static void append_utilisation(GString *out, const Plan *plan, const Result *result)
{
    double peak = plan->cluster->device->peak_flops_per_s[plan->compute];
    if (!isfinite(result->mfu) || !(peak > 0)) {
        g_string_append_printf(out, "  MFU unknown: %s has no dense peak for %s; %.1f TFLOP/s per GPU\n",
                               plan->cluster->device->name, dtype_name(plan->compute), result->tflops_per_gpu);
        return;
    }
    g_string_append_printf(out, "  MFU %.1f %%, HFU %.1f %% of %.0f TFLOP/s (dense %s peak); %.1f TFLOP/s per GPU\n",
                           100 * result->mfu, 100 * result->hfu, peak / 1e12, dtype_name(plan->compute),
                           result->tflops_per_gpu);
}

static int by_recomputed(gconstpointer a, gconstpointer b)
{
    const ResultOperator *x = *(ResultOperator *const *)a, *y = *(ResultOperator *const *)b;
    return x->recomputed_s < y->recomputed_s ? 1 : x->recomputed_s > y->recomputed_s ? -1 : strcmp(x->name, y->name);
}

/* What backward computes again, and what of it takes the longest. */
static void append_recomputation(GString *out, const Result *result)
{
    const guint most = 2;
    g_autoptr(GPtrArray) again = g_ptr_array_new();
    for (guint i = 0; i < result->operators->len; i++) {
        if (((const ResultOperator *)g_ptr_array_index(result->operators, i))->recomputed_s > 0) {
            g_ptr_array_add(again, g_ptr_array_index(result->operators, i));
        }
    }
    if (again->len == 0) {
        return;
    }
    g_ptr_array_sort(again, by_recomputed);
    g_autofree char *all = text_seconds(result->recompute_s);
    g_string_append_printf(out, "  backward computes %s of kernels again:", all);
    for (guint i = 0; i < MIN(again->len, most); i++) {
        const ResultOperator *entry = g_ptr_array_index(again, i);
        g_autofree char *time = text_seconds(entry->recomputed_s);
        g_string_append_printf(out, "%s %s %s", i > 0 ? "," : "", entry->name, time);
    }
    g_string_append(out, again->len > most ? " and others\n" : "\n");
}

/* How much the host has to do, where the device waits for it. */
static void append_host_work(GString *out, const Result *result)
{
    const double worth_it = 0.01;
    if (!(result->exposed_host_s > worth_it * result->step_time_s)) {
        return;
    }
    g_autofree char *work = text_seconds(result->host_s);
    g_string_append_printf(out, "  the host works %s to issue it", work);
    if (result->host_tables_s > worth_it * result->step_time_s) {
        g_autofree char *tables = text_seconds(result->host_tables_s);
        g_string_append_printf(out, ", %s of that on tables for copy-ins of gradients", tables);
    }
    if (result->host_pages_s > worth_it * result->step_time_s) {
        g_autofree char *pages = text_seconds(result->host_pages_s);
        g_string_append_printf(out, ",\n  %s on fresh pages of copy-ins' tables (none with memory.host_keeps_pages)", pages);
    }
    g_string_append_c(out, '\n');
}

static void append_time(GString *out, const Plan *plan, const Result *result)
{
    g_autofree char *step = text_seconds(result->step_time_s);
    g_autofree char *per_gpu = text_count(result->tokens_per_s_per_gpu);
    g_autofree char *all = text_count(result->tokens_per_s);
    g_string_append_printf(out, "\n%-*s%-10s %s tokens/s per GPU, %s in all", LABEL, "Step", step, per_gpu, all);
    if (result->dropped_fraction > 0) {
        g_autofree char *useful = text_count(result->useful_tokens_per_s_per_gpu);
        g_string_append_printf(out, "; %s useful per GPU (%.2f %% of slots dropped)", useful,
                               100 * result->dropped_fraction);
    }
    g_string_append_c(out, '\n');
    append_seconds(out, "forward", result->forward_s, result->step_time_s);
    append_seconds(out, "backward", result->backward_s, result->step_time_s);
    append_seconds(out, "optimizer", result->optimizer_s, result->step_time_s);
    g_autofree char *comm = text_seconds(result->exposed_comm_s);
    g_autofree char *host = text_seconds(result->exposed_host_s);
    g_autofree char *bubble = text_seconds(result->bubble_s);
    g_string_append_printf(out, "  waiting for communication %s, for the host %s, in pipeline bubbles %s\n", comm, host,
                           bubble);
    if (result->crowded_s > 0) {
        g_autofree char *crowded = text_seconds(result->crowded_s);
        g_string_append_printf(out, "  collectives slow each other down on shared links for %s\n", crowded);
    }
    append_recomputation(out, result);
    append_host_work(out, result);
    append_utilisation(out, plan, result);
}

/* ---- memory ---- */

/* What has to be there: the allocator gives back what it only caches before it fails. */
static int64_t needed_bytes(const Result *result)
{
    return result->peak_memory_bytes + result->non_framework_bytes;
}

/* # allocated, = outside the framework, + cached by the allocator, . free. */
static void append_memory_bar(GString *out, const Result *result)
{
    double scale = BAR_WIDTH / (double)MAX(result->capacity_bytes, 1);
    double ends[] = {(double)result->peak_memory_bytes, (double)needed_bytes(result),
                     (double)(result->reserved_memory_bytes + result->non_framework_bytes)};
    static const char marks[] = "#=+";
    g_string_append(out, "  [");
    for (int i = 0; i < BAR_WIDTH; i++) {
        char mark = '.';
        for (int part = 2; part >= 0; part--) {
            mark = ends[part] * scale >= i + 0.5 ? marks[part] : mark;
        }
        g_string_append_c(out, mark);
    }
    g_string_append_printf(out, "] %.1f %%\n", 100 * ends[1] * scale / BAR_WIDTH);
}

static void append_parts_at_peak(GString *out, const Result *result)
{
    g_autoptr(GString) text = g_string_new("at the peak ");
    const char *separator = "";
    for (int tag = 0; tag < N_MEM_TAGS; tag++) {
        if (result->at_peak[tag] > 0) {
            g_autofree char *gib = text_gib(result->at_peak[tag]);
            g_string_append_printf(text, "%s%s" NO_BREAK "%s", separator, result_mem_tag_name((MemTag)tag), gib);
            separator = ", ";
        }
    }
    g_string_append(out, "  ");
    text_append_wrapped(out, text->str, 2, WIDTH);
}

/* What is cached between blocks in use, and so is of no use to anybody else. */
static void append_fragments(GString *out, const ResultPhases *phases)
{
    static const char *const titles[N_MOMENTS] = {"between steps", "after forward", "at the peak", "after backward"};
    g_autoptr(GString) text = g_string_new("free between blocks in use:");
    for (int i = 0; i < N_MOMENTS; i++) {
        g_autofree char *gib = text_gib(phases->moments[i].fragmented_bytes);
        g_string_append_printf(text, "%s %s" NO_BREAK "%s", i > 0 ? "," : "", titles[i], gib);
    }
    g_autofree char *largest = text_gib(phases->moments[MOMENT_PEAK].largest_free_bytes);
    g_string_append_printf(text, "; largest free block at the peak" NO_BREAK "%s", largest);
    g_string_append(out, "  ");
    text_append_wrapped(out, text->str, 2, WIDTH);
}

static char *verdict(const Result *result)
{
    if (!result->fits) {
        return g_strdup("DOES NOT FIT");
    }
    if (result->phases != NULL && result->phases->n_retries > 0) {
        return g_strdup_printf("fits, but the allocator's cache does not: it is emptied %" G_GINT64_FORMAT " times a step", result->phases->n_retries);
    }
    gboolean tight = result->phases == NULL && result->reserved_memory_bytes + result->non_framework_bytes > result->capacity_bytes;
    return g_strdup(tight ? "fits, but the allocator's cache does not: it will be emptied again and again" : "fits");
}

static void append_memory(GString *out, const Plan *plan, const Result *result)
{
    g_autofree char *needed = text_gib(needed_bytes(result));
    g_autofree char *capacity = text_gib(result->capacity_bytes);
    g_autofree char *allocated = text_gib(result->peak_memory_bytes);
    g_autofree char *reserved = text_gib(result->reserved_memory_bytes);
    g_autofree char *outside = text_gib(result->non_framework_bytes);
    g_autofree char *still = text_gib(result->static_memory_bytes);
    g_autofree char *after = text_gib(result->after_forward_memory_bytes);
    g_autofree char *mean = text_gib(result->mean_rank_peak_bytes);
    g_autofree char *fits = verdict(result);
    g_string_append_printf(out, "\n%-*s%s of %s GiB: %s\n", LABEL, "Memory", needed, capacity, fits);
    append_memory_bar(out, result);
    g_string_append_printf(out, "  # allocated %s, = outside the framework %s, + reserved by the allocator %s GiB\n",
                           allocated, outside, reserved);
    if (result->communicators_bytes > 0) {
        g_autofree char *context = text_gib(result->context_bytes), *communicators = text_gib(result->communicators_bytes);
        g_string_append_printf(out, "  outside: context and kernels %s, buffers of communicators %s\n", context, communicators);
    }
    if (plan->seq_chunk_fits && result->seq_chunk > 0) {
        g_string_append_printf(out, "  loss.seq_chunk found: %" G_GINT64_FORMAT " tokens\n", result->seq_chunk);
    } else if (plan->seq_chunk_fits) {
        g_string_append(out, "  loss.seq_chunk found: 0, the whole micro-batch at once\n");
    }
    if (result->largest_seq_chunk > 0) {
        g_string_append_printf(out, "  largest loss.seq_chunk that fits: %" G_GINT64_FORMAT " tokens\n", result->largest_seq_chunk);
    }
    append_parts_at_peak(out, result);
    g_autofree char *when =
        isfinite(result->peak_time_s) ? g_strdup_printf(", %.4g s into the step", result->peak_time_s) : g_strdup("");
    g_autofree char *place = g_strdup_printf("peak on rank %" G_GINT64_FORMAT ", %s%s", result->peak_rank,
                                             result->peak_place != NULL ? result->peak_place : "place unknown", when);
    g_string_append(out, "  ");
    text_append_wrapped(out, place, 2, WIDTH);
    g_string_append_printf(out, "  allocated between steps %s, after forward %s, peak of the mean rank %s\n", still,
                           after, mean);
    if (result->phases != NULL) {
        append_fragments(out, result->phases);
    }
}

/* The operators that pay most per byte, and where their results are; those with nothing kept end the list. */
static void append_kept(GString *out, const ResultTiers *tiers)
{
    enum { KEPT_MAX = 8 };
    g_autoptr(GString) text = g_string_new("kept (layers in HBM + DDR of all):");
    int n = 0;
    for (guint i = 0; i < tiers->kept->len && n < KEPT_MAX; i++) {
        const ResultKept *kept = g_ptr_array_index(tiers->kept, i);
        int64_t all = kept->hbm_layers + kept->ddr_layers + kept->recomputed_layers;
        if (kept->hbm_layers + kept->ddr_layers > 0 && kept->bytes >= 1 << 20) {
            g_string_append_printf(text, "%s %s %" G_GINT64_FORMAT "+%" G_GINT64_FORMAT "/%" G_GINT64_FORMAT, n++ > 0 ? "," : "", kept->name,
                                   kept->hbm_layers, kept->ddr_layers, all);
        }
    }
    if (n > 0) {
        g_string_append(out, "  ");
        text_append_wrapped(out, text->str, 2, WIDTH);
    }
}

/* What entries take on the rank that holds most, of what was given. */
static void append_budgets(GString *out, const Plan *plan, const ResultTiers *tiers)
{
    g_autofree char *hbm = text_gib(tiers->hbm_held_bytes), *ddr = text_gib(tiers->ddr_held_bytes);
    g_autofree char *given_hbm = text_gib(plan->cache_hbm_bytes), *given_ddr = text_gib(plan->cache_ddr_bytes);
    g_string_append_printf(out, "  budgets used: %s%s%s GiB in HBM%s, %s of %s GiB in DDR\n", hbm, plan->cache_fits ? "" : " of ",
                           plan->cache_fits ? "" : given_hbm, plan->cache_fits ? ", what the device had left" : "", ddr, given_ddr);
}

static void append_tiers(GString *out, const Plan *plan, const ResultTiers *tiers)
{
    if (tiers->policy == NULL && tiers->host_peak_bytes == 0) {
        return;
    }
    g_autofree char *host = text_gib(tiers->host_peak_bytes), *moved = text_gib(tiers->moved_out_bytes);
    g_autofree char *stall = text_seconds(tiers->stall_s);
    g_string_append_printf(out, "\n%-*s%s GiB of pinned host memory per GPU; %s GiB moved out and back a step; stalls %s\n", LABEL, "Tiers", host,
                           moved, stall);
    if (tiers->policy == NULL) {
        return;
    }
    append_budgets(out, plan, tiers);
    g_autofree char *saved = text_seconds(tiers->saved_s), *again = text_seconds(tiers->recomputed_s);
    g_string_append_printf(out,
                           "  cache (%s): of %" G_GINT64_FORMAT " results of a micro-batch %" G_GINT64_FORMAT " in HBM, %" G_GINT64_FORMAT " in DDR, %" G_GINT64_FORMAT
                           " not; evicted %" G_GINT64_FORMAT "\n",
                           tiers->policy, tiers->entries, tiers->hbm_hits, tiers->ddr_hits, tiers->misses, tiers->evictions);
    g_string_append_printf(out, "  recomputation saved %s a step, left %s; one more GiB would save %.1f ms a step in HBM, %.1f ms in DDR\n", saved, again,
                           1e3 * tiers->next_hbm_gib_s, 1e3 * tiers->next_ddr_gib_s);
    append_kept(out, tiers);
}

/* ---- where the time goes ---- */

static void append_operators(GString *out, const Result *result)
{
    if (result->operators->len == 0) {
        return;
    }
    g_autoptr(Table) table = table_new();
    size_t name = table_add_column(table, "Longest operators", TABLE_TEXT, TABLE_PLAIN);
    size_t time = table_add_column(table, "time", TABLE_NUMBER, TABLE_SECONDS);
    size_t share = table_add_column(table, "of step", TABLE_NUMBER, TABLE_PERCENT);
    size_t launches = table_add_column(table, "kernels", TABLE_INTEGER, TABLE_PLAIN);
    for (guint i = 0; i < MIN(result->operators->len, (guint)N_LONGEST); i++) {
        const ResultOperator *entry = g_ptr_array_index(result->operators, i);
        table_add_row(table);
        table_put_text(table, name, entry->name);
        table_put_number(table, time, entry->seconds);
        table_put_number(table, share, 100 * entry->seconds / result->step_time_s);
        table_put_integer(table, launches, entry->launches);
    }
    g_string_append_c(out, '\n');
    text_append_table(out, table, 0);
}

/* Where collectives share links with others, or that they do not. */
static char *network_text(guint32 meets)
{
    GString *text = g_string_new(meets != 0 ? "shares " : "closed form");
    const char *separator = "";
    for (int level = 0; level < N_NET_LEVELS; level++) {
        if (meets >> level & 1u) {
            g_string_append_printf(text, "%s%s", separator, net_level_name((NetLevel)level));
            separator = ", ";
        }
    }
    return g_string_free(text, FALSE);
}

static void append_collectives(GString *out, const Result *result)
{
    if (result->collectives->len == 0) {
        return;
    }
    g_autoptr(Table) table = table_new();
    size_t name = table_add_column(table, "Collectives per rank", TABLE_TEXT, TABLE_PLAIN);
    size_t tier = table_add_column(table, "tier", TABLE_TEXT, TABLE_PLAIN);
    size_t group = table_add_column(table, "group", TABLE_INTEGER, TABLE_PLAIN);
    size_t count = table_add_column(table, "count", TABLE_INTEGER, TABLE_PLAIN);
    size_t bytes = table_add_column(table, "size", TABLE_INTEGER, TABLE_BYTES);
    size_t time = table_add_column(table, "time", TABLE_NUMBER, TABLE_SECONDS);
    size_t rate = table_add_column(table, "rate", TABLE_NUMBER, TABLE_BYTES_PER_S);
    size_t network = table_add_column(table, "network", TABLE_TEXT, TABLE_PLAIN);
    for (guint i = 0; i < result->collectives->len; i++) {
        const ResultCollective *entry = g_ptr_array_index(result->collectives, i);
        table_add_row(table);
        table_put_text(table, name, entry->name);
        table_put_text(table, tier, entry->tier != NULL ? entry->tier : "");
        table_put_integer(table, group, entry->group_size);
        table_put_integer(table, count, entry->count);
        table_put_integer(table, bytes, entry->bytes);
        table_put_number(table, time, entry->seconds);
        table_put_number(table, rate, (double)entry->bytes / entry->seconds);
        g_autofree char *how = network_text(entry->meets);
        table_put_text(table, network, how);
    }
    g_string_append_c(out, '\n');
    text_append_table(out, table, 0);
}

/* Groups that draw tokens of their own: the load that the step waits for, by their number. */
static void append_replicas(GString *out, const Result *result)
{
    if (result->group_growth->len < 2) {
        return;
    }
    g_string_append_printf(out, "%-*s  busiest rank of", LABEL, "");
    for (guint i = 0; i < result->group_growth->len; i++) {
        const ResultGrowth *entry = &g_array_index(result->group_growth, ResultGrowth, i);
        g_string_append_printf(out, "%s %" G_GINT64_FORMAT ": %.3f x", i > 0 ? "," : "", entry->n, entry->rank_load_max_over_mean);
    }
    g_string_append_printf(out, " expert-parallel groups; sampled %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT "\n", result->groups_sampled,
                           result->groups_in_all);
}

static void append_moe(GString *out, const Plan *plan, const Result *result)
{
    if (plan->model->n_experts == 0) {
        return;
    }
    g_autofree char *sent = text_gib(result->all_to_all_bytes_per_rank);
    g_string_append_printf(out,
                           "\n%-*sbusiest expert %.2f x the mean, busiest rank %.2f x; all-to-all %s GiB per rank\n",
                           LABEL, "Routing", result->expert_load_max_over_mean, result->rank_load_max_over_mean, sent);
    if (result->expert_capacity > 0) {
        g_string_append_printf(out, "%-*s  an expert takes at most %" G_GINT64_FORMAT " rows of a rank; dropped %.2f %%, padding %.2f %%\n", LABEL,
                               "", result->expert_capacity, 100 * result->dropped_fraction, 100 * result->padding_fraction);
    }
    append_replicas(out, result);
    if (plan->moe.replace_every > 0) {
        g_autofree char *bytes = text_gib(result->replacement_bytes_per_rank);
        g_autofree char *time = text_seconds(result->replacement_s);
        g_string_append_printf(out, "%-*s  every %" G_GINT64_FORMAT " steps %" G_GINT64_FORMAT " experts move, %s GiB of a rank in %s; busiest rank %.3f x to %.3f x\n",
                               LABEL, "", plan->moe.replace_every, result->replacement_moved_experts, bytes, time,
                               result->replacement_load_before, result->replacement_load_after);
    }
}

/* ---- what to know ---- */

static void append_strings(GString *out, const char *label, const GPtrArray *strings)
{
    for (guint i = 0; i < strings->len; i++) {
        append_labelled(out, i == 0 ? label : "", g_ptr_array_index(strings, i));
    }
}

static void append_evidence(GString *out, const Result *result)
{
    g_autoptr(GString) text = g_string_new("step time rests on");
    const char *separator = "";
    for (int i = 0; i < N_EVIDENCES; i++) {
        if (result->evidence[i] > 0) {
            g_string_append_printf(text, "%s %.0f %% %s", separator, 100 * result->evidence[i],
                                   evidence_name((Evidence)i));
            separator = ",";
        }
    }
    if (separator[0] == '\0') {
        g_string_append(text, " nothing that is known");
    }
    append_labelled(out, "Evidence", text->str);
}

char *summary_text(const Plan *plan, const Result *result)
{
    GString *out = g_string_new(NULL);
    append_model(out, plan, result);
    append_machine(out, plan);
    append_batch(out, plan);
    append_time(out, plan, result);
    append_memory(out, plan, result);
    append_tiers(out, plan, result->tiers);
    append_operators(out, result);
    append_collectives(out, result);
    append_moe(out, plan, result);
    g_string_append_c(out, '\n');
    if (!result->fits) {
        append_strings(out, "To fit", result->advice);
    }
    append_strings(out, "Warnings", result->warnings);
    append_evidence(out, result);
    append_labelled(out, "Units", "GiB = 2^30 bytes; GB/s = 10^9 bytes, TFLOP/s = 10^12 operations a second");
    return g_string_free(out, FALSE);
}
