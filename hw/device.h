/*
 * Device: one accelerator and its host, as a JSON descriptor says it, every value with its source.
 *
 * Values that a descriptor leaves out are inherited from the descriptor named in "laws_from" (fitted laws as
 * fractions of datasheet values) and count as EVIDENCE_DATASHEET.
 */
#pragma once

#include <glib.h>
#include <jansson.h>
#include <stdint.h>

#include "hw/evidence.h"
#include "sim/base/dtype.h"
#include "sim/base/quantity.h"
#include "sim/base/work.h"

typedef struct Laws Laws; /* fitted laws; hw/laws.h */

typedef struct Device {
    char *name;  /* "h200-sxm" */
    char *title; /* "NVIDIA H200 SXM 141 GB" */
    double peak_flops_per_s[N_DTYPES]; /* dense datasheet peak; 0 = format not supported */
    int64_t hbm_bytes;
    double hbm_bytes_per_s;
    int64_t usable_bytes;    /* of HBM: what a process can allocate */
    int64_t non_framework_bytes; /* device context and communicators, outside the allocator */
    int64_t workspace_bytes; /* library workspace inside the allocator, static on every GPU (64 MiB on H200) */
    int64_t host_bytes;      /* DDR per GPU; 0 = unknown */
    double host_link_bytes_per_s; /* PCIe or C2C, one direction */
    int n_sms;
    gboolean unified_memory; /* super-node with unified memory addressing */

    /* Host issue costs (nanoseconds); see ERRATA-like notes in hw/README.md. */
    SimTime eager_op_ns;      /* host time of one eager operator, forward */
    SimTime backward_op_ns;   /* the same when autograd issues it */
    SimTime graph_op_ns;      /* device time between kernels of a captured graph */
    SimTime selective_op_ns;  /* extra host time per operator under selective checkpointing */
    SimTime checkpoint_ns;    /* extra host time per checkpointed region */
    SimTime fsdp_group_ns;    /* host time of one FSDP unshard, wait, reshard or reduce call */
    SimTime host_sync_ns;     /* host time of one synchronisation after the device is done */
    SimTime optimizer_launch_ns; /* host time per optimizer launch */
    SimTime kernel_gap_ns;    /* device idle time between dependent kernels of one stream */

    /* Sharing: share of a compute kernel's rate left while a communication kernel, or a host copy, runs. */
    double compute_rate_under_comm;
    double compute_rate_under_copy;

    Laws *laws;
} Device;

/* Loads a preset by name, or a file by path. */
Device *device_load(const char *name_or_path, GError **error);
void device_free(Device *device);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Device, device_free)

/* Names of the shipped device presets, sorted, NULL-terminated; free with g_strfreev. */
char **device_preset_names(void);

/*
 * The descriptor as the user may see it: {"name", "title", "values": [{"key", "value", "origin"}…], laws with fit
 * error and measured range}. New reference.
 */
json_t *device_to_json(const Device *device);
