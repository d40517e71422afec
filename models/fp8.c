#include "models/fp8.h"

#include "sim/base/quantity.h"

static const int64_t SCALE_BYTES = 4;

/* Codes and scales, a block being 1 x 128. */
static int64_t row_bytes(int64_t rows, int64_t width)
{
    return rows * width + SCALE_BYTES * rows * quantity_div_up(width, FP8_BLOCK);
}

int64_t fp8_weight_bytes(int64_t n_weights, int64_t n, int64_t k)
{
    return n_weights * (n * k + SCALE_BYTES * quantity_div_up(n, FP8_BLOCK) * quantity_div_up(k, FP8_BLOCK));
}

/* Codes of w that live as long as the product: what it makes for itself. */
static int64_t own_weight_bytes(const Fp8Product *p)
{
    return p->has_codes ? 0 : fp8_weight_bytes(p->n_weights, p->n, p->k);
}

void fp8_save_input(OpSaved *saved, RowSpace rows, int64_t k)
{
    (void)op_saved_aux(saved, rows, k, DTYPE_FP8);
    (void)op_saved_aux(saved, rows, quantity_div_up(k, FP8_BLOCK), DTYPE_FP32);
    saved->idle_aux |= 1u << FP8_AUX_SCALES;
}

static void quantise(OpCost *cost, int64_t read_bytes, int64_t write_bytes)
{
    op_cost_stream(cost, WORK_COPY, 0, read_bytes, write_bytes);
}

void fp8_forward_operands(OpCost *cost, const Fp8Product *p, gboolean keeps_input)
{
    int64_t by_rows = row_bytes(p->m, p->k), weight = own_weight_bytes(p);
    quantise(cost, p->m * p->k * p->elem_bytes, by_rows + (keeps_input ? row_bytes(p->m, p->k) : 0));
    cost->n_works_to_save = keeps_input ? cost->n_works : 0;
    if (!p->has_codes) {
        quantise(cost, p->n_weights * p->n * p->k * p->elem_bytes, weight);
    }
    cost->workspace_bytes += by_rows + weight;
}

void fp8_backward_operands(OpCost *cost, const Fp8Product *p, gboolean to_input, gboolean to_weight)
{
    int64_t codes = (to_input + to_weight) * row_bytes(p->m, p->n), weight = to_input ? own_weight_bytes(p) : 0;
    if (to_input || to_weight) {
        quantise(cost, p->m * p->n * p->elem_bytes, codes);
    }
    if (to_input && !p->has_codes) {
        quantise(cost, p->n_weights * p->n * p->k * p->elem_bytes, weight);
    }
    cost->workspace_bytes += codes + weight;
}

void fp8_product(OpCost *cost)
{
    Work *work = &cost->works[cost->n_works - 1];
    work->read_bytes = work->read_bytes * dtype_bytes(DTYPE_FP8, 1) / dtype_bytes(work->dtype, 1);
    work->dtype = DTYPE_FP8;
}
