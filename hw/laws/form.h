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
