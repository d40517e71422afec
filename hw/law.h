/*
 * Laws: formulas with a few parameters that turn a kernel's work into seconds on a device.
 *
 * A form is the formula; a law is a form for one kind of kernels, whose parameters a descriptor holds. Parameters
 * are fractions of datasheet values, counts, or times (names end in _ns or _ps), so that they can be carried to another
 * device.
 *
 * What a table of measurements holds is not the kernel's time alone: two events around a launch add a little, a flush
 * of the cache before each launch lets the chip rest, and chains of many small kernels wait for the host.
 * law_measured_seconds() says what such a loop would have shown, so that fits and comparisons see the same thing as the
 * stopwatch.
 */
#pragma once

#include <jansson.h>

#include "hw/device.h"
#include "hw/timing.h"
#include "sim/base/json-read.h"

typedef enum LawKind {
#define LAW(id, name, form, power) LAW_##id,
#include "hw/law.def"
#undef LAW
    N_LAWS
} LawKind;

enum { LAW_PARAMS_MAX = 12 };

typedef struct LawParam {
    const char *name;
    double initial, min, max; /* where a fit starts and may go; equal ends = not fitted */
} LawParam;

typedef struct LawForm {
    int n_params;
    LawParam params[LAW_PARAMS_MAX];
    /* One launch at a clock that is a fraction of the burst clock; NULL for links. */
    double (*seconds)(const Device *device, const double *params, const Work *work, double clock_frac);
} LawForm;

/* What a fit left behind. */
typedef struct LawFit {
    double params[LAW_PARAMS_MAX];
    gboolean fitted; /* on a table of measurements */
    gboolean own;    /* on this device */
    char *source;    /* the table, or where the parameters come from */
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

/* Seconds of one launch under given laws. */
double law_seconds(const Device *device, const Laws *laws, const Work *work, double clock_frac);

/* See timing_power_share() and timing_clock_frac(). */
double law_power_share(const Device *device, const Laws *laws, const Work *work);
double law_clock_frac(const Laws *laws, double tensor_share);

/* Seconds of a transfer of `bytes` over a link under a link law. */
double law_link_seconds(const LawFit *fit, double link_bytes_per_s, double bytes);

/* Its fixed part: launch, handshake, first bytes. */
double law_link_fixed_seconds(const LawFit *fit);

/*
 * What events around a chain of kernels show when the cache is flushed before each repetition: launches at the clock
 * that the loop's tensor share leaves, no less than the host needs to issue the chain, and the events themselves.
 */
double law_measured_seconds(const Device *device, const Laws *laws, const Work *works, int n_works,
                            double host_seconds);

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
