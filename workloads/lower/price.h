/*
 * Prices: what a kernel costs on a device at the clocks of a step.
 *
 * Layers of a kind, and the passes of a layer, ask for the same kernels again and again; a list remembers what it has
 * priced, for grouped kernels with the rows of each group.
 */
#pragma once

#include "hw/timing.h"
#include "workloads/lower/clock.h"

typedef struct Price {
    SimTime one_ns[N_CLOCK_SHARES]; /* one launch, at clock_shares */
    double power_share;
    Evidence evidence;
} Price;

typedef struct PriceList PriceList;

PriceList *price_list_new(void);
void price_list_free(PriceList *list);

/* Memory that it takes. */
size_t price_list_size_bytes(const PriceList *list);

/* Price of one launch of a kernel; one list serves one device. list NULL: nothing is remembered. */
Price price_list_get(PriceList *list, const Device *device, const Work *work);
