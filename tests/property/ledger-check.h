/* Two ledgers of one program must be the same in every number. */
#pragma once

#include "tests/check.h"

#include "workloads/run/ledger.h"

/* folded: with a memo; alone: without. */
static inline void check_ledger(const Ledger *folded, const Ledger *alone, const char *what)
{
    gboolean same = folded->peak_bytes == alone->peak_bytes && folded->after_forward_bytes == alone->after_forward_bytes &&
                    folded->reserved_bytes == alone->reserved_bytes && folded->rounded_peak_bytes == alone->rounded_peak_bytes &&
                    folded->rounded_after_forward_bytes == alone->rounded_after_forward_bytes &&
                    folded->host_peak_bytes == alone->host_peak_bytes && memcmp(folded->at_peak, alone->at_peak, sizeof folded->at_peak) == 0 &&
                    folded->peak_phase == alone->peak_phase && folded->peak_layer == alone->peak_layer &&
                    folded->peak_op == alone->peak_op && folded->peak_segment == alone->peak_segment &&
                    folded->peak_call == alone->peak_call && folded->peak_instr == alone->peak_instr;
    if (!same) {
        fail_msg("peak %" G_GINT64_FORMAT " and %" G_GINT64_FORMAT ", reserved %" G_GINT64_FORMAT " and %" G_GINT64_FORMAT ", call %d and %d: %s",
                 folded->peak_bytes, alone->peak_bytes, folded->reserved_bytes, alone->reserved_bytes, folded->peak_call, alone->peak_call,
                 what);
    }
}
