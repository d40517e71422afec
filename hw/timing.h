/*
 * Timing: work to nanoseconds on a device, by the device's laws.
 *
 * Dense tensor work draws the chip to its power limit: the larger the share of time that the tensor cores are busy, the
 * lower the clock (measured on H200: bursts near 880 TFLOP/s, steps 700 to 790, endless GEMM 665). A clock of 1 is that
 * of a burst. In a step the clock follows the mix, and long kernels bring their own share with them
 * (timing_in_step_ns).
 */
#pragma once

#include "hw/device.h"

/* Clock regime: a lone burst, an endless dense phase, or a training step of the usual mix. */
typedef enum TimingRegime { TIMING_BURST, TIMING_SUSTAINED, TIMING_STEP } TimingRegime;

/*
 * Duration of one launch of `work` alone on the device, in ns, at least 1. ret_evidence (may be NULL) gets what
 * the law rests on at this size. Never fails: a format without a datasheet peak is refused when the plan is
 * checked (timing_supports).
 */
SimTime timing_work_ns(const Device *device, const Work *work, TimingRegime regime, Evidence *ret_evidence);

/* The same at a given clock, a fraction of the burst clock. */
SimTime timing_work_at_clock_ns(const Device *device, const Work *work, double clock_frac, Evidence *ret_evidence);

/*
 * The same inside a step whose power share (timing_power_share() of its kernels, weighted by their time, over the time
 * of the step) is step_share: the clock lags the load by about two milliseconds, so a kernel that long runs at its own
 * sustained clock and a short one at the step's.
 */
SimTime timing_in_step_ns(const Device *device, const Work *work, double step_share, Evidence *ret_evidence);

/*
 * The same for several step shares at once. ret_ns[i] belongs to step_shares[i]; ret_power_share (may be NULL) gets
 * timing_power_share().
 */
void timing_in_step_curve(const Device *device, const Work *work, const double *step_shares, int n_shares,
                          SimTime *ret_ns, double *ret_power_share, Evidence *ret_evidence);

/*
 * Host calls that the wrapper of a kernel makes: 1 for most; fused kernels that are chains in Python take as long as
 * many operators.
 */
int timing_host_calls(const Work *work);

/* Tensor work of one launch, as a share of its duration at clock 1 and weighted by what it draws against a GEMM. */
double timing_power_share(const Device *device, const Work *work);

/* Clock that the power limit leaves when tensor work takes that share (0 to 1) of the time, as a fraction of the burst
 * clock. */
double timing_clock_frac(const Device *device, double tensor_share);

/* Whether the device has a peak for that format. */
gboolean timing_supports(const Device *device, Dtype dtype);

/* A host-device copy of `bytes` in one direction through pinned memory. */
SimTime timing_host_copy_ns(const Device *device, int64_t bytes, Evidence *ret_evidence);
