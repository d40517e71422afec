/*
 * Device: one accelerator, its host and its place in a node, as a JSON descriptor says it, every value with its source.
 *
 * A descriptor that names another in "like" takes over what software costs there (host times, sharing; marked as taken
 * over) and the fitted laws, never what the chip and its node are. A law is a set of fractions of datasheet values and
 * of fixed times, so that it can be carried to another device; what rests on a law taken over counts as
 * EVIDENCE_DATASHEET.
 *
 * A descriptor that names another in "base" is of the same device in another machine: everything is taken over, with its
 * sources and evidence, but what the descriptor says itself.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "hw/evidence.h"
#include "sim/base/dtype.h"
#include "sim/base/quantity.h"
#include "sim/base/work.h"

typedef struct Laws Laws; /* fitted laws; hw/law.h */

/* The fields that a descriptor fills, in the order of values.def, then the peaks by number format. */
typedef enum DeviceValue {
#define VALUE(field, unit) DEVICE_##field,
#include "hw/values.def"
#undef VALUE
    DEVICE_PEAK_FIRST,
    N_DEVICE_VALUES = DEVICE_PEAK_FIRST + N_DTYPES
} DeviceValue;

/* Where a value comes from. */
typedef struct DeviceOrigin {
    char *source;     /* in words; NULL = the descriptor does not say the value */
    char *confidence; /* "high", "medium", "low" */
    char *from;       /* name of the descriptor that it was taken over from, or NULL */
} DeviceOrigin;

typedef struct Device {
    char *name;                        /* "h200-sxm" */
    char *title;                       /* "NVIDIA H200 SXM 141 GB" */
    double peak_flops_per_s[N_DTYPES]; /* dense datasheet peak; 0 = format not supported */
    double matmul_flops_per_s; /* best bf16 product that others measured; 0 = unknown: laws go by the peak alone */
    int64_t hbm_bytes;
    double hbm_bytes_per_s;
    int64_t usable_bytes;         /* of HBM: what a process can allocate */
    int64_t non_framework_bytes;  /* device context and loaded kernels, outside the allocator */
    int64_t communicator_bytes;   /* buffers of one communicator, outside the allocator … */
    int64_t communicator_exchange_bytes; /* … and more if it exchanges all to all */
    int64_t workspace_bytes;      /* library workspace inside the allocator, static on every GPU (64 MiB on H200) */
    int64_t host_bytes;           /* DDR per GPU; 0 = unknown */
    double host_link_bytes_per_s; /* PCIe or C2C, one direction, datasheet */
    double host_memory_bytes_per_s; /* of the host's DDR, per GPU when all that share it copy; 0 = unknown, no limit */
    gboolean nic_on_host_link;      /* traffic between nodes crosses the GPU's own PCIe link */
    int64_t n_sms;
    int64_t l2_bytes;
    gboolean unified_memory; /* super-node with unified memory addressing */

    /* The node that it usually sits in. */
    int64_t gpus_per_node;
    int64_t gpus_per_host;        /* GPUs that share one host memory and its bandwidth; 0 = all of a node */
    int64_t domain_gpus;          /* GPUs of one scale-up domain; it may span nodes */
    double scale_up_bytes_per_s;  /* per GPU, one direction, datasheet */
    double scale_out_bytes_per_s; /* per GPU, one direction (its NIC rail), datasheet */
    gboolean scale_up_mesh;       /* a link to each peer of the domain instead of a port into a switch */
    int64_t nics_per_node;        /* 0 = one a GPU */
    gboolean rails;               /* the n-th NICs of many nodes meet in the n-th leaf switch */
    int64_t nodes_per_leaf;       /* 0 = all nodes on one fabric that never fills */
    double leaf_uplink_frac;      /* uplinks of a leaf over the NICs below it; 0.5 = oversubscribed 2:1; 0 = 1 */
    int64_t leaves_per_pod;       /* groups of nodes_per_leaf nodes under one spine; 0 = all */
    double pod_uplink_frac;       /* uplinks of a pod over those of its leaves; 0 = 1 */
    SimTime scale_out_latency_ns; /* of one message between nodes */

    /* Host issue costs (nanoseconds); hw/README.md says how they were found. */
    SimTime eager_op_ns;             /* host time of one eager operator, forward */
    SimTime backward_op_ns;          /* the same when autograd issues it */
    SimTime graph_op_ns;             /* device time between kernels of a captured graph */
    SimTime selective_op_ns;         /* extra host time per operator under selective checkpointing */
    SimTime selective_collective_ns; /* the same per all-to-all of rows that is a chain of framework operators */
    SimTime checkpoint_ns;           /* extra host time per checkpointed region, each time that it runs … */
    SimTime checkpoint_tensor_ns;    /* … and per tensor that its operators hand to be kept */
    SimTime fsdp_group_ns;           /* host time of one FSDP unshard, wait, reshard or reduce call */
    double fsdp_copy_in_bytes_per_s; /* of one shard of a group's gradients: host work before they are copied into one buffer; 0 = none */
    SimTime host_page_ns;            /* host time of a page that came fresh from the system, when it is first written */
    SimTime host_sync_ns;            /* host time of one synchronisation after the device is done */
    SimTime optimizer_tensor_ns;     /* host time per tensor that an optimizer steps, before its first launch … */
    SimTime optimizer_launch_ns;     /* … and per launch */
    double host_update_bytes_per_s; /* DDR traffic of an optimizer step on the host cores of one GPU, copies included; 0 = unknown */
    SimTime kernel_gap_ns;           /* device idle time between dependent kernels of one stream */

    /* Sharing: share of a compute kernel's rate left while a communication kernel, or a host copy, runs. */
    double compute_rate_under_comm;
    double grouped_rate_under_comm;   /* the same of a grouped product, while one collective runs */
    double attention_rate_under_comm;
    double compute_rate_under_copy;
    double comm_rate_under_compute; /* the same of a communication kernel while the device computes … */
    double comm_rate_under_grouped; /* … a grouped product */
    double compute_rate_under_comms; /* of a compute kernel while several collectives run; 0 = unknown, as under one */
    double comms_rate_under_compute; /* of each of them, of what links leave it; 0 = unknown, as of one */
    double scale_up_shared_frac; /* share of the scale-up port's datasheet rate that collectives reach together; 0 = unknown, all */
    double comm_power_share; /* power of collectives that fill the scale-up port, as timing_power_share(); 0 = unknown, none */
    double host_duplex_rate; /* share of a host copy's rate left while one in the other direction runs; 0 = unknown, all */

    Laws *laws;
    char *laws_from; /* name of the descriptor whose laws these are, when not this one's; NULL = own */
    DeviceOrigin origins[N_DEVICE_VALUES];
} Device;

/* Loads a preset by name, or a file by path (a name with '/' or ending in ".json"). */
Device *device_load(const char *name_or_path, GError **error);
void device_free(Device *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Device, device_free)

/* Names of the shipped device presets, sorted, NULL-terminated; free with g_strfreev. */
char **device_preset_names(void);

/* The descriptor itself, as its file says it. New reference. */
json_t *device_descriptor(const char *name_or_path, GError **error);

/*
 * The descriptor as the user may see it: {"name", "title", "values": [{"key", "value", "source", "confidence",
 * "taken_over_from"}…], "laws": [{"name", "parameters", fit error, measured range}…]}. New reference.
 */
json_t *device_to_json(const Device *device);
