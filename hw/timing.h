/*
 * Timing: work to nanoseconds on a device, by the device's laws.
 */
#pragma once

#include "hw/device.h"

/* Clock regime: short bursts run at full clocks, long dense phases at the power limit. */
typedef enum TimingRegime { TIMING_BURST, TIMING_SUSTAINED } TimingRegime;

/*
 * Duration of one launch of `work` alone on the device, in ns, at least 1. ret_evidence (may be NULL) gets what
 * the law rests on at this size. Never fails: a format without a datasheet peak is refused when the plan is
 * checked (timing_supports).
 */
SimTime timing_work_ns(const Device *device, const Work *work, TimingRegime regime, Evidence *ret_evidence);

/* Whether the device has a peak for that format. */
gboolean timing_supports(const Device *device, Dtype dtype);

/* A host-device copy of `bytes` in one direction through pinned memory. */
SimTime timing_host_copy_ns(const Device *device, int64_t bytes, Evidence *ret_evidence);
