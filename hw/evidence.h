/*
 * Evidence: what a predicted time rests on, from strongest to weakest.
 */
#pragma once

typedef enum Evidence {
    EVIDENCE_MEASURED,  /* inside the measured range of a table taken on this device */
    EVIDENCE_FITTED,    /* a law fitted on this device, outside the measured range */
    EVIDENCE_DATASHEET, /* the device's datasheet values under laws fitted elsewhere */
    EVIDENCE_ASSUMED,   /* no source for this device */
    N_EVIDENCES
} Evidence;

/* "measured", "fitted", "datasheet", "assumed". */
const char *evidence_name(Evidence evidence);
