/*
 * Timing: work to nanoseconds on a device, by the device's laws.
 *
 * Dense tensor work draws the chip to its power limit: the larger the share of time that the tensor cores are busy, the
 * lower the clock (measured on H200: bursts near 880 TFLOP/s, steps 700 to 790, endless GEMM 665). A clock of 1 is that of a
 * burst. A whole step is priced in two passes: at clock 1 to learn its tensor share, then at the clock for that share.
 */
#pragma once

#include "hw/device.h"

/* Clock regime: a lone burst, an endless dense phase, or a training step of the usual mix (tensor share 0.6). */
typedef enum TimingRegime { TIMING_BURST, TIMING_SUSTAINED, TIMING_STEP } TimingRegime;

/*
 * Duration of one launch of `work` alone on the device, in ns, at least 1. ret_evidence (may be NULL) gets what
 * the law rests on at this size. Never fails: a format without a datasheet peak is refused when the plan is
 * checked (timing_supports).
 */
SimTime timing_work_ns(const Device *device, const Work *work, TimingRegime regime, Evidence *ret_evidence);

/* The same at a given clock, a fraction of the burst clock. */
SimTime timing_work_at_clock_ns(const Device *device, const Work *work, double clock_frac, Evidence *ret_evidence);

/* Tensor work of one launch, as a share of its duration at clock 1 and weighted by what it draws against a GEMM. */
double timing_power_share(const Device *device, const Work *work);

/* Clock that the power limit leaves when tensor work takes that share (0 to 1) of the time, as a fraction of the burst clock. */
double timing_clock_frac(const Device *device, double tensor_share);

/* Whether the device has a peak for that format. */
gboolean timing_supports(const Device *device, Dtype dtype);

/* A host-device copy of `bytes` in one direction through pinned memory. */
SimTime timing_host_copy_ns(const Device *device, int64_t bytes, Evidence *ret_evidence);
