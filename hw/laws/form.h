/*
 * Parts that the forms share.
 */
#pragma once

#include "hw/law.h"

/*
 * Seconds for moving bytes: a fixed time, a share of the datasheet bandwidth, and a ramp that costs at most ramp_ns
 * and half of that at half_bytes (pipelines fill, pages and channels spread).
 */
double form_stream_seconds(double bytes, double bytes_per_s, double fixed_ns, double ramp_ns, double half_bytes);

/* Two limits that overlap imperfectly: the p-norm, the larger one as p grows. */
double form_overlap(double a, double b, double p);

/* Elements that a launch writes, by its format (bf16 when it says none). */
double form_elements(const Work *work, double bytes);
