#include "reports/cli/proof.h"

#include <math.h>

#include "reports/cli/command.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h" /* g_autoptr(json_t) */
#include "workloads/draw.h"
#include "workloads/run/drawn.h"
#include "workloads/run/shrink.h"
#include "workloads/run/trials.h"

enum { N_STEPS = 3, N_DRAWN_STEPS = 1 };

static gboolean print_json(json_t *root, GError **error)
{
    char *text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    gboolean ok = command_print(error, "%s\n", text);
    free(text);
    return ok;
}

static json_t *finite(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *proof_values(const PlanProof *proof)
{
    json_t *object = json_object();
    json_object_set_new(object, "bound", json_real(proof->bound));
    json_object_set_new(object, "loss", finite(proof->worst_loss));
    json_object_set_new(object, "gradient", finite(proof->worst_grad));
    json_object_set_new(object, "parameter", finite(proof->worst_param));
    json_object_set_new(object, "worst_at", proof->worst_at != NULL ? json_string(proof->worst_at) : json_null());
    json_object_set_new(object, "parameters_compared", json_integer((json_int_t)proof->n_params));
    return object;
}

static json_t *proof_memory_json(const PlanProof *proof)
{
    return json_pack("{s:I, s:I, s:s, s:f}", "instructions_compared", (json_int_t)proof->n_ledger, "peak_bytes",
                     (json_int_t)proof->peak_bytes, "peak_at", proof->peak_at != NULL ? proof->peak_at : "",
                     "peak_time_s", proof->peak_time_s);
}

static gboolean print_proof_json(const Plan *plan, const ShrinkReport *reduced, const PlanProof *proof, const GError *fault,
                                 GError **error)
{
    g_autoptr(json_t) root = json_object();
    json_t *sizes = json_array();
    for (int i = 0; i < reduced->n; i++) {
        const ShrinkNote *note = &reduced->notes[i];
        json_array_append_new(sizes, json_pack("{s:s, s:I, s:I}", "what", note->what, "from", (json_int_t)note->from, "to",
                                               (json_int_t)note->to));
    }
    json_object_set_new(root, "schema", json_string("moesim.proof/1"));
    json_object_set_new(root, "plan", json_string(plan->name));
    json_object_set_new(root, "passed", json_boolean(fault == NULL));
    json_object_set_new(root, "fault", fault != NULL ? json_string(fault->message) : json_null());
    json_object_set_new(root, "reduced", sizes);
    json_object_set_new(root, "ranks", json_integer((json_int_t)proof->n_ranks));
    json_object_set_new(root, "steps", json_integer((json_int_t)proof->n_steps));
    json_object_set_new(root, "instructions", json_integer((json_int_t)proof->n_instrs));
    json_object_set_new(root, "operators", json_integer((json_int_t)proof->n_ops));
    json_object_set_new(root, "eager_operators", json_integer((json_int_t)proof->n_chains));
    json_object_set_new(root, "layer_losses", json_integer((json_int_t)proof->n_layer_losses));
    json_object_set_new(root, "values", proof_values(proof));
    json_object_set_new(root, "memory", proof_memory_json(proof));
    json_object_set_new(root, "measured_loads", json_boolean(proof->is_measured));
    json_object_set_new(root, "accesses_in_order", json_integer((json_int_t)proof->n_ordered));
    json_object_set_new(root, "collectives",
                        json_pack("{s:I, s:I}", "compared", (json_int_t)proof->n_exchanged, "bytes",
                                  (json_int_t)proof->exchanged_bytes));
    return print_json(root, error);
}

static gboolean print_proof_text(const Plan *plan, const ShrinkReport *reduced, const PlanProof *proof, GError **error)
{
    g_autofree char *sizes = shrink_text(reduced);
    g_autofree char *losses = proof->n_layer_losses > 0
                                  ? g_strdup_printf("losses (%" G_GINT64_FORMAT " of layers beside the main one)", proof->n_layer_losses)
                                  : g_strdup("loss");
    return command_print(
        error,
        "%s: the program computes what one rank computes\n"
        "  reduced   %s\n"
        "  ran       %" G_GINT64_FORMAT " virtual ranks, %" G_GINT64_FORMAT " steps in float64, %" G_GINT64_FORMAT
        " instructions a step and rank,\n"
        "            %" G_GINT64_FORMAT " operators a forward pass, %" G_GINT64_FORMAT
        " of them eager: backward reads what their chains keep\n"
        "  values    %s within %.1g, gradients %.1g, parameters after each step %.1g (bound %g; %" G_GINT64_FORMAT
        " tensors compared); expert loads equal%s\n"
        "  memory    bytes by part equal to the ledger's after each of %" G_GINT64_FORMAT
        " instructions of all ranks, every value as\n"
        "            large as its buffer; peak %" G_GINT64_FORMAT " bytes: %s, %.3g s into the step\n"
        "  streams   %" G_GINT64_FORMAT
        " pairs of accesses that exclude one another are in order, by clocks and by sets of actions;\n"
        "            no use after free, no leak, no collective called differently\n"
        "  network   %" G_GINT64_FORMAT " collectives moved the %" G_GINT64_FORMAT " bytes that they are priced with\n",
        plan->name, sizes, proof->n_ranks, proof->n_steps, proof->n_instrs, proof->n_ops, proof->n_chains, losses,
        proof->worst_loss, proof->worst_grad, proof->worst_param, proof->bound, proof->n_params,
        proof->is_measured ? ", and those measured" : "", proof->n_ledger, proof->peak_bytes, proof->peak_at,
        proof->peak_time_s, proof->n_ordered, proof->n_exchanged, proof->exchanged_bytes);
}

gboolean proof_plan(const char *path, gboolean json, GError **error)
{
    g_autoptr(Plan) plan = plan_load(path, error);
    if (plan == NULL) {
        return FALSE;
    }
    GError *fault = NULL;
    ShrinkReport reduced;
    PlanProof proof;
    if (!trials_close(plan, error)) {
        return FALSE;
    }
    shrink_plan(plan, &reduced);
    gboolean holds = plan_proof_run(plan, N_STEPS, 1, NULL, &proof, &fault);
    gboolean ok = json    ? print_proof_json(plan, &reduced, &proof, fault, error)
                  : holds ? print_proof_text(plan, &reduced, &proof, error)
                          : TRUE;
    plan_proof_clear(&proof);
    if (ok && !holds) {
        g_propagate_prefixed_error(error, fault, "%s: ", plan->name);
        return FALSE;
    }
    g_clear_error(&fault);
    return ok;
}

/* What all drawn plans showed together. */
typedef struct Drawn {
    gint64 n, seed;
    gint64 n_proven, n_ranks, n_instrs, n_ops, n_chains;
    double worst;
    json_t *smallest; /* plan that fails, or NULL */
    char *fault;
    gint64 fault_seed;
} Drawn;

static void prove_one(Drawn *drawn, gint64 seed)
{
    g_autoptr(json_t) object = draw_plan((uint64_t)seed, NULL);
    PlanProof proof;
    if (drawn_prove(object, N_DRAWN_STEPS, NULL, &proof, NULL, NULL)) {
        drawn->n_proven++;
        drawn->n_ranks += proof.n_ranks;
        drawn->n_instrs += proof.n_instrs * proof.n_ranks;
        drawn->n_ops += proof.n_ops;
        drawn->n_chains += proof.n_chains;
        drawn->worst = fmax(drawn->worst, fmax(proof.worst_loss, fmax(proof.worst_grad, proof.worst_param)));
    } else {
        drawn->smallest = drawn_minimise(object, N_DRAWN_STEPS, NULL, &drawn->fault);
        drawn->fault_seed = seed;
    }
    plan_proof_clear(&proof);
}

static gboolean print_drawn(const Drawn *drawn, gboolean json, GError **error)
{
    if (json) {
        g_autoptr(json_t) root = json_object();
        json_object_set_new(root, "schema", json_string("moesim.drawn/1"));
        json_object_set_new(root, "seed", json_integer(drawn->seed));
        json_object_set_new(root, "plans", json_integer(drawn->n));
        json_object_set_new(root, "proven", json_integer(drawn->n_proven));
        json_object_set_new(root, "worst", finite(drawn->worst));
        json_object_set_new(root, "fault", drawn->fault != NULL ? json_string(drawn->fault) : json_null());
        json_object_set(root, "smallest_plan", drawn->smallest != NULL ? drawn->smallest : json_null());
        return print_json(root, error);
    }
    if (drawn->smallest != NULL) {
        return print_json(drawn->smallest, error);
    }
    return command_print(error,
                         "%" G_GINT64_FORMAT " drawn plans (seeds %" G_GINT64_FORMAT " to %" G_GINT64_FORMAT
                         "): every program computes what one rank computes\n"
                         "  ran       %" G_GINT64_FORMAT " virtual ranks, %" G_GINT64_FORMAT
                         " instructions in values; %" G_GINT64_FORMAT " of %" G_GINT64_FORMAT " operators eager\n"
                         "  values    losses, gradients and parameters within %.1g, expert loads and memory equal\n",
                         drawn->n_proven, drawn->seed, drawn->seed + drawn->n - 1, drawn->n_ranks, drawn->n_instrs,
                         drawn->n_chains, drawn->n_ops, drawn->worst);
}

gboolean proof_drawn(gint64 n, gint64 seed, gboolean json, GError **error)
{
    Drawn drawn = {.n = n, .seed = seed};
    if (n < 1 || n > 1000000 || seed < 0 || seed > G_MAXINT32) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_USAGE, "%s: %" G_GINT64_FORMAT " is out of range; %s",
                    seed < 0 || seed > G_MAXINT32 ? "--seed" : "--plans", seed < 0 || seed > G_MAXINT32 ? seed : n,
                    seed < 0 || seed > G_MAXINT32 ? "0 to 2^31 - 1 is possible" : "1 to 1000000 is possible");
        return FALSE;
    }
    command_catch_interrupt();
    for (gint64 i = 0; i < n && drawn.smallest == NULL; i++) {
        if (command_interrupted(error)) {
            return FALSE;
        }
        prove_one(&drawn, seed + i);
        command_progress((size_t)i, (size_t)n, "plans");
    }
    command_progress(1, 1, "");
    gboolean ok = print_drawn(&drawn, json, error);
    if (ok && drawn.smallest != NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_FAILED,
                    "seed %" G_GINT64_FORMAT ": the smallest plan that fails is on standard output: %s", drawn.fault_seed, drawn.fault);
        ok = FALSE;
    }
    json_decref(drawn.smallest);
    g_free(drawn.fault);
    return ok;
}
