#include "hw/evidence.h"

#include <glib.h>

const char *evidence_name(Evidence evidence)
{
    static const char *const names[N_EVIDENCES] = {
        [EVIDENCE_MEASURED] = "measured",
        [EVIDENCE_FITTED] = "fitted",
        [EVIDENCE_DATASHEET] = "datasheet",
        [EVIDENCE_ASSUMED] = "assumed",
    };
    g_assert(evidence < N_EVIDENCES);
    return names[evidence];
}
