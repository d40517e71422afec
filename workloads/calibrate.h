/*
 * Calibration: tables of measured operators and transfers to a hardware descriptor with fitted laws.
 *
 * A table is a CSV file; the operator family is its file name after "op_" ("op_gemm.csv"), and a name that begins with
 * "collectives" holds transfers. Each row becomes the kernels that the measured operator launches, and the law of its
 * main kernel is fitted to it. This lives where models and hardware meet: what an operator launches is the one's, how
 * long that takes the other's.
 */
#pragma once

#include <glib.h>
#include <jansson.h>

#include "hw/fit.h"

typedef struct Calibration {
    Device *device;          /* the base with its laws fitted */
    json_t *descriptor;      /* the base's descriptor with the fitted laws */
    GArray *samples[N_LAWS]; /* FitSample, by the law that they were fitted with */
    GPtrArray *unused;       /* char *: rows that no law explains, told by table and name */
} Calibration;

/* Called between fits with how many laws are done; FALSE stops the calibration with MOESIM_ERROR_CANCELED. */
typedef gboolean (*CalibrateProgress)(size_t done, size_t total, void *data);

/*
 * Reads the tables and fits. base names the descriptor that holds everything but the laws. Errors name file, line and
 * column.
 */
Calibration *calibrate(const char *const *paths, const char *base, CalibrateProgress progress, void *data,
                       GError **error);
void calibration_free(Calibration *calibration);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Calibration, calibration_free)

/*
 * Reads tables into samples without fitting: the rows of law i are appended to samples[i], which are made. For tests
 * and comparisons.
 */
gboolean calibrate_read(const char *const *paths, const Device *device, GArray *samples[N_LAWS], GPtrArray *unused,
                        GError **error);
