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

/*
 * Rate of the tensor cores at the burst clock, as a share of which laws are written: the datasheet peak of a format,
 * scaled by how much of its peak the device reaches in practice, against the H200.
 */
double form_tensor_rate(const Device *device, Dtype dtype);

/*
 * Time of work bound by the cores' own arithmetic, against the chip that laws are written for: by their number, but no
 * more than memory is slower (chips with few, wide cores).
 */
double form_core_scale(const Device *device);

/* Elements that a launch writes, by its format (bf16 when it says none). */
double form_elements(const Work *work, double bytes);
