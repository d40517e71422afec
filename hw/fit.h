/*
 * Fits: the parameters of a law that explain a table of measurements best.
 *
 * Least squares of log(predicted / measured), so that a factor counts alike at every size, with a robust loss: a row
 * that no law explains (a kernel variant, a hiccup) does not bend the rest. Parameters move on a logarithmic scale
 * inside their bounds. The same rows give the same parameters, bit for bit.
 */
#pragma once

#include "hw/cluster.h"
#include "hw/law.h"

enum { FIT_WORKS_MAX = 8 };

/* One measurement. */
typedef struct FitSample {
    char *label; /* how a report names the row; owned */
    char *shape; /* rows of one shape are left out together; owned */
    int n_works;
    Work works[FIT_WORKS_MAX]; /* kernels in the measured loop; their group_rows are owned */
    gboolean is_link;          /* a transfer: seconds come from `link` */
    double link_bytes;         /* moved over the link */
    double link_bytes_per_s;
    double size;          /* law_size() of the row, for the measured range */
    double host_before_s; /* links: host time before the kernel starts, inside the measured time */
    double host_more_s;    /* of a link: of host_min_s, beyond what all take to issue one */
    double one_way_bytes;  /* of a link: of an exchange with unequal parts, in the direction that has more; else 0 */
    double host_min_s;    /* the host needs at least this for the measured loop */
    double seconds;       /* measured */
} FitSample;

/* Frees what a sample owns; a GArray of samples wants it as its clear function. */
void fit_sample_clear(FitSample *sample);

/* Seconds that a measurement of the sample would show under laws. */
double fit_predict(const Device *device, const Laws *laws, LawKind law, const FitSample *sample);

/*
 * Fits `law` in laws to the samples (FitSample) and fills its LawFit, leave-one-shape-out error included. source names
 * the table. Laws that the samples' other kernels follow stay as they are.
 */
void fit_law(const Device *device, Laws *laws, LawKind law, const GArray *samples, const char *source);

/* Whether a measurement is of the thing itself: a kernel above 20 us, a transfer of 1 MiB and more. */
gboolean fit_sample_is_large(const FitSample *sample);

/* Mean absolute error over the large samples; 0 when there are none. */
double fit_large_error(const Device *device, const Laws *laws, LawKind law, const GArray *samples);

/* Errors of a law over samples as they are, without fitting. */
void fit_judge(const Device *device, const Laws *laws, LawKind law, const GArray *samples, LawFit *ret_errors);
