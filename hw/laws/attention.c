/*
 * Flash attention, forward or backward.
 *
 * Scores cost tensor work and an exponential each, which overlap imperfectly; that is why small heads run slower. A
 * block of 128 queries is one unit for a multiprocessor: it has a fixed time, it computes whole blocks at the diagonal,
 * and the longest one (the last of a causal sequence) may start late. Passes over q, k, v, o and their gradients
 * besides (delta, conversion of dq) cost memory time in backward.
 */
#include <math.h>

#include "hw/laws/form.h"

enum { FIXED_NS, TENSOR_FRACTION, SCORE_PS, OVERLAP, TAIL, BLOCK_NS, MEMORY_SHARE };

static const double block = 128.0;

static double attention_seconds(const Device *device, const double *params, const Work *work, double clock_frac)
{
    double heads = fmax(1.0, (double)work->n), sequences = fmax(1.0, (double)work->n_groups);
    double seq = fmax(1.0, (double)work->m / sequences);
    double head_size = fmax(1.0, (double)work->k);
    double sms = (double)device->n_sms;
    /* Pairs of positions, for a value size like the head size. */
    double scores = work->flops / (4.0 * head_size + 5.0) * (work->law == WORK_ATTENTION_BACKWARD ? 0.4 : 1.0);
    double tensor = work->flops / (form_tensor_rate(device, work->dtype) * params[TENSOR_FRACTION]);
    double exponentials = scores * params[SCORE_PS] * 1e-12 * form_core_scale(device);
    double per_flop = form_overlap(tensor, exponentials, params[OVERLAP]) / clock_frac;
    double blocks = ceil(seq / block) * heads * sequences;
    double diagonal = per_flop * block / (seq + block);
    double longest = per_flop * sms / blocks * 2.0; /* the last block of a causal sequence has twice the mean */
    double overhead = ceil(blocks / sms) * params[BLOCK_NS] * 1e-9 / clock_frac;
    double bytes = (double)work->read_bytes + (double)work->write_bytes;
    return params[FIXED_NS] * 1e-9 + per_flop + diagonal + params[TAIL] * longest + overhead +
           params[MEMORY_SHARE] * bytes / device->hbm_bytes_per_s;
}

const LawForm law_form_attention = {
    .n_params = 7,
    .params = {{"fixed_ns", 3000.0, 1000.0, 60000.0},
               {"tensor_fraction", 0.72, 0.1, 1.0},
               {"score_ps", 0.5, 0.01, 5.0},
               {"overlap", 2.5, 2.5, 2.5},
               {"tail", 0.5, 0.05, 1.5},
               {"block_ns", 2300.0, 100.0, 10000.0},
               {"memory_share", 0.1, 0.01, 2.0}},
    .seconds = attention_seconds,
};
