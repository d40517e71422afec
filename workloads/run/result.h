/*
 * Result: what one run yields, as plain data, in the order and under the names of the result schema
 * "moesim.result/1". Times in seconds, sizes in bytes, rates per second, fractions 0..1.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "hw/cluster.h"
#include "models/graph.h"

typedef struct ResultOperator {
    char *name;     /* operator class title */
    double seconds; /* device time of the slowest rank over one step, forward + backward + recomputation */
    double recomputed_s; /* of that, recomputation */
    int64_t launches;
    double flops;
} ResultOperator;

typedef struct ResultCollective {
    char *name; /* "all_gather (dense FSDP)" */
    char *tier; /* "scale-up" or "scale-out" */
    int64_t group_size;
    int64_t count; /* per rank and step */
    int64_t bytes; /* whole tensor, summed over the step */
    double seconds; /* each alone, summed */
    guint32 meets;  /* levels of the network (bits by NetLevel) at which it shares links; 0 = closed form */
} ResultCollective;

/* Expected load of the busiest rank among n expert-parallel groups. */
typedef struct ResultGrowth {
    int64_t n;
    double rank_load_max_over_mean;
} ResultGrowth;
/* What became of the results of one operator of one kind of layer. */
typedef struct ResultKept {
    char *name;     /* "self_attn.q_proj" */
    int64_t bytes;  /* of one layer */
    double seconds; /* to make them again, alone on the device */
    int64_t hbm_layers, ddr_layers, recomputed_layers;
} ResultKept;

/* Tiers of memory: caches of results, and what moves between HBM and DDR. Counts and sizes of entries are of one micro-batch, seconds of a step. */
typedef struct ResultTiers {
    char *policy; /* of memory.cache, or NULL */
    int64_t entries, hbm_hits, ddr_hits, misses, evictions;
    int64_t hit_bytes, miss_bytes, hbm_bytes, ddr_bytes;
    double saved_s, recomputed_s;            /* recomputation, alone on the device */
    double next_hbm_gib_s, next_ddr_gib_s;   /* what one more GiB of either would save, by the closed form */
    int64_t moved_out_bytes, moved_in_bytes; /* of a step, on the rank observed */
    double stall_s;                          /* copies running while the device neither computes nor communicates */
    int64_t host_peak_bytes, host_capacity_bytes; /* pinned host memory per GPU; capacity 0 = unknown */
    int64_t host_mean_bytes;                 /* what counts against it: of the mean rank, where a super-node's DDR is one pool */
    int64_t hbm_budget_bytes, ddr_budget_bytes; /* of memory.cache; with hbm_bytes "fit" what was found: with policy "choice" what is held */
    int64_t hbm_tried_bytes, ddr_tried_bytes;   /* at even loads, of the trial that was best: no part of the report */
    int64_t hbm_held_bytes, ddr_held_bytes;     /* what entries take of them on the rank that holds most */
    GPtrArray *kept;                         /* ResultKept */
} ResultTiers;

/* Moments of a step at which memory is looked at. */
typedef enum MemoryMoment {
    MOMENT_BETWEEN_STEPS, /* after the optimizer; gradients are gone */
    MOMENT_AFTER_FORWARD, /* of the last micro-batch, as the next one */
    MOMENT_PEAK,
    MOMENT_AFTER_BACKWARD,
    N_MOMENTS
} MemoryMoment;

/* What the allocator of a rank holds then. */
typedef struct ResultMoment {
    int64_t allocated_bytes;
    int64_t reserved_bytes;   /* allocated or cached */
    int64_t fragmented_bytes; /* cached, but in segments that are partly in use: they cannot go back to the device */
    int64_t largest_free_bytes; /* the largest block that is cached */
} ResultMoment;

/* The allocator in a step that is not the first; see moments.h. */
typedef struct ResultPhases {
    ResultMoment moments[N_MOMENTS];
    int64_t n_retries; /* requests for which cached segments had to go back to the device first */
} ResultPhases;

typedef struct Result {
    int64_t ranks;
    double step_time_s;
    double tokens_per_s, tokens_per_s_per_gpu, useful_tokens_per_s_per_gpu;
    double model_flops_per_token;
    double tflops_per_gpu;
    double mfu, hfu; /* NAN when the device has no dense peak for the compute type: null in JSON */
    double matrix_max_over_mean; /* Muon: products of the rank that owns the costliest matrices over the mean rank's; 0 = no Muon */
    double forward_s, backward_s, optimizer_s, exposed_comm_s, bubble_s, exposed_host_s, crowded_s;
    double recompute_s;          /* device time of what backward computes again */
    double host_s;                /* what the host works to issue a step */
    double host_tables_s, host_pages_s; /* of that, to fill tables that copy-ins of gradients read, and on fresh pages of these */
    GPtrArray *operators;   /* ResultOperator, most time first */
    GPtrArray *collectives; /* ResultCollective */
    int64_t peak_memory_bytes, reserved_memory_bytes, static_memory_bytes, after_forward_memory_bytes;
    int64_t peak_rank;
    char *peak_place; /* "backward of layer 7, mlp.down_proj" */
    double peak_time_s; /* of the step, when the host issues what makes the peak; NAN = not asked */
    ResultPhases *phases; /* NULL = not asked */
    gboolean fits;
    int64_t capacity_bytes, non_framework_bytes;
    int64_t seq_chunk;         /* tokens of a chunk of the loss, found if the plan leaves it open; 0 = not chunked */
    int64_t largest_seq_chunk; /* tokens of the largest chunk of the loss that fits; 0 = not asked, or none */
    int64_t context_bytes, communicators_bytes; /* of what is outside the framework: device context and kernels; communicators */
    int64_t at_peak[N_MEM_TAGS];
    int64_t mean_rank_peak_bytes;
    int64_t params_total, params_active, params_trainable, params_per_rank;
    double dropped_fraction, padding_fraction, expert_load_max_over_mean, rank_load_max_over_mean;
    int64_t expert_capacity; /* rows of one rank that an expert takes in the layer that takes most; 0 = all */
    int64_t busiest_rank;
    int64_t groups_sampled, groups_simulated, groups_in_all; /* expert-parallel groups with tokens of their own */
    GArray *group_growth;                                    /* ResultGrowth */
    int64_t replacement_moved_experts, replacement_bytes_per_rank;
    double replacement_s, replacement_s_per_step, replacement_load_before, replacement_load_after;
    int64_t all_to_all_bytes_per_rank;
    ResultTiers *tiers;           /* all zero: everything stays where it is made */
    GPtrArray *warnings;          /* char * */
    GPtrArray *advice;            /* char *: what would have to change if it does not fit */
    double evidence[N_EVIDENCES]; /* share of the step time's kernels */
} Result;

/* "flows" or "closed_form": how collectives that meet others at these levels (bits) are timed. */
const char *result_network_name(guint32 meets);

Result *result_new(void);
void result_free(Result *result);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Result, result_free)

/* Name of a part of memory.at_peak ("unsharded"), of memory.phases ("after_forward"). */
const char *result_mem_tag_name(MemTag tag);
const char *result_moment_name(MemoryMoment moment);

/*
 * Who is told what a result holds: its members in the order of the schema. key NULL: an element of a list. begin: an object or a
 * list, FALSE = its content is not wanted, and it has no end. Numbers that are not finite come as a text of NULL, as do
 * texts that are unknown.
 */
typedef struct ResultSink {
    gboolean (*begin)(void *self, const char *key, gboolean is_list);
    void (*end)(void *self);
    void (*number)(void *self, const char *key, double value);
    void (*integer)(void *self, const char *key, int64_t value);
    void (*truth)(void *self, const char *key, gboolean value);
    void (*text)(void *self, const char *key, const char *value);
} ResultSink;

void result_tell(const Result *result, const ResultSink *sink, void *self);

/* The result object; new reference. What is not finite is null. */
json_t *result_to_json(const Result *result);

/*
 * Value at a dotted result path ("time.forward_s"): number, boolean, string or null; NULL if there is none, or
 * if the path names an object or a list. result_value_at reads it from an object made once (borrowed),
 * result_get makes the object for it (new reference).
 */
json_t *result_value_at(json_t *object, const char *path);
json_t *result_get(const Result *result, const char *path);

/* The number at a path; truth values are 0 and 1, everything else NAN. */
double result_number_at(json_t *object, const char *path);
