/*
 * Laws: formulas with a few parameters that turn a kernel's work into seconds on a device.
 *
 * A form is the formula; a law is a form for one kind of kernels, whose parameters a descriptor holds. Parameters
 * are fractions of datasheet values, counts, or times (names end in _ns), so that they can be carried to another device.
 */
#pragma once

#include <jansson.h>

#include "hw/device.h"
#include "hw/timing.h"
#include "sim/base/json-read.h"

typedef enum LawKind {
#define LAW(id, name, form) LAW_##id,
#include "hw/law.def"
#undef LAW
    N_LAWS
} LawKind;

enum { LAW_PARAMS_MAX = 12 };

typedef struct LawParam {
    const char *name;
    double initial, min, max; /* where a fit starts and may go */
} LawParam;

typedef struct LawForm {
    int n_params;
    LawParam params[LAW_PARAMS_MAX];
    double (*seconds)(const Device *device, const double *params, const Work *work, TimingRegime regime);
} LawForm;

/* What a fit left behind. */
typedef struct LawFit {
    double params[LAW_PARAMS_MAX];
    gboolean fitted;    /* on a table of measurements */
    gboolean own;       /* on this device */
    char *source;       /* the table, or where the parameters come from */
    int64_t n_rows;
    double mean_abs_error, left_out_error, bias, worst_error; /* fractions; left_out = leave one shape out */
    char *worst_row;
    double size_min, size_max; /* measured range of law_size() */
} LawFit;

struct Laws {
    LawFit fits[N_LAWS];
};

const char *law_name(LawKind law);
gboolean law_from_name(const char *name, LawKind *ret_law);
const LawForm *law_form(LawKind law);

/* The law that prices a kernel. */
LawKind law_of_work(WorkLaw work_law);

/* The size by which a measured range is told: FLOPs of compute laws, bytes of the others. */
double law_size(const Work *work);

/* Fresh laws at their initial parameters; a copy; end. */
Laws *laws_new(void);
Laws *laws_copy(const Laws *laws);
void laws_free(Laws *laws);

/* Reads "laws" of a descriptor over what is there. Mistakes stick to the object. */
void laws_read(Laws *laws, JsonObject *object);

/* The laws as a descriptor holds them; own_only leaves out what was taken over. New reference. */
json_t *laws_to_json(const Laws *laws, gboolean own_only);

/* Fit quality of a whole law as evidence at a size. */
Evidence law_evidence(const LawFit *fit, double size);
