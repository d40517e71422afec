#include "workloads/run/chunk-bound.h"

#include "sim/base/quantity.h"
#include "workloads/lower/lower.h"
#include "workloads/run/footprint.h"

enum { LEAST_TOKENS = 64 };

static gboolean fits(const Plan *plan, const ModelGraph *graphs, gboolean *ret_claimed)
{
    Footprint footprint;
    *ret_claimed = footprint_compute(plan, graphs, NULL, NULL, 0, &footprint);
    return footprint.peak_bytes + plan_outside_bytes(plan) <= plan->cluster->device->usable_bytes;
}

int64_t chunk_bound_tokens(const Plan *plan)
{
    Plan changed = *plan; /* borrows everything that it points at */
    int64_t tokens = plan->seq_len * plan->micro_batch;
    gboolean claimed = TRUE;
    for (int64_t parts = 1; claimed && (parts == 1 || tokens / parts >= LEAST_TOKENS); parts *= 2) {
        changed.seq_chunk = quantity_div_up(tokens, parts);
        g_autoptr(ModelGraph) graphs = lower_graphs(&changed);
        if (fits(&changed, graphs, &claimed) && claimed) {
            return changed.seq_chunk;
        }
    }
    return 0;
}
