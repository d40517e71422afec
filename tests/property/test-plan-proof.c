/*
 * Programs in values: shipped plans, reduced; drawn plans; and programs with a fault, which must not pass.
 */
#include "tests/check.h"

#include "sim/base/error.h"
#include "sim/base/rng.h"
#include "workloads/lower/fsdp.h"
#include "workloads/plan/plan.h"
#include "workloads/run/plan-proof.h"
#include "workloads/run/shrink.h"

enum { N_DRAWN = 100 };

static Plan *load_reduced(const char *json, const char *name, GError **error)
{
    json_t *value = json_loads(json, 0, NULL);
    assert_non_null(value);
    Plan *plan = plan_from_json(value, name, NULL, error);
    json_decref(value);
    if (plan != NULL) {
        g_autofree char *what = shrink_plan(plan);
        assert_non_null(what);
    }
    return plan;
}

static gboolean prove(const Plan *plan, int64_t n_steps, const PlanMutation *mutation, GError **error)
{
    PlanProof proof;
    gboolean ok = plan_proof_run(plan, n_steps, 1, mutation, &proof, error);
    plan_proof_clear(&proof);
    return ok;
}

static void test_presets(void **state)
{
    static const char *const names[] = {"deepseek-v3-gb200-256", "kimi-k3-lora-128",    "kimi-k3-pretrain-1024", "kimi-linear-48b-64",
                                        "llama-3.1-405b-1024",   "llama-3.1-70b-64",    "mixtral-8x22b-128",     "qwen3-235b-256",
                                        "qwen3-30b-8",           "qwen3-235b-mi355x-64"};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        GError *error = NULL;
        g_autofree char *path = g_strdup_printf("%s/workloads/presets/%s.json", g_getenv("MOESIM_SOURCE_ROOT"), names[i]);
        g_autoptr(Plan) plan = plan_load(path, &error);
        check_no_error(error);
        g_autofree char *what = shrink_plan(plan);
        prove(plan, 1, NULL, &error);
        check_no_error(error);
    }
}

static const char *choose(uint64_t seed, uint64_t *draw, const char *const *choices, size_t n)
{
    return choices[rng_below(seed, RNG_TEST, (*draw)++, n)];
}

#define CHOOSE(...)                                                                                                             \
    choose(seed, &draw, (const char *const[]){__VA_ARGS__}, G_N_ELEMENTS(((const char *const[]){__VA_ARGS__})))

/* A plan of a seed; not every one is legal. */
static char *drawn_plan(uint64_t seed)
{
    uint64_t draw = 0;
    const char *model = CHOOSE("llama-3.1-8b", "mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v3", "kimi-k3", "kimi-linear-48b-a3b", "olmoe-1b-7b",
                               "glm-4.5", "qwen3-next-80b-a3b", "gpt-oss-120b", "kimi-k2-instruct", "minimax-m2");
    const char *replicas = CHOOSE("1", "1", "2"), *ep = CHOOSE("1", "1", "2", "4");
    const char *reshard = CHOOSE("true", "true", "false"), *prefetch = CHOOSE("explicit", "implicit");
    const char *mode = CHOOSE("\"mode\": \"pretrain\"", "\"mode\": \"pretrain\"", "\"mode\": \"lora\"",
                              "\"mode\": \"lora\", \"lora\": {\"targets\": [\"attention\", \"experts\"]}");
    const char *batch = CHOOSE("8", "16", "32"), *micro = CHOOSE("1", "1", "2");
    const char *recompute = CHOOSE("\"none\"", "\"full\"", "\"selective\"", "\"selective\", \"keep\": [\"attention\", \"all_to_all\"]");
    const char *loss = CHOOSE("", "\"seq_chunk\": 32", "\"vocab_chunk\": 512", "\"seq_chunk\": 32, \"vocab_chunk\": 512");
    const char *precision = CHOOSE("\"parameters\": \"fp32\"", "\"parameters\": \"bf16\"", "\"parameters\": \"bf16\", \"reduce\": \"bf16\"");
    const char *ranks = CHOOSE("1", "2", "4", "8");
    return g_strdup_printf("{\"model\": \"%s\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 1, \"gpus_per_node\": %s}, "
                           "\"parallel\": {\"dp_replicate\": %s, \"ep\": %s, \"fsdp\": {\"reshard_after_forward\": %s, \"prefetch\": \"%s\"}}, "
                           "\"workload\": {%s, \"seq_len\": 64, \"micro_batch\": %s, \"global_batch\": %s}, "
                           "\"memory\": {\"recompute\": %s}, \"loss\": {%s}, \"precision\": {%s}}",
                           model, ranks, replicas, ep, reshard, prefetch, mode, micro, batch, recompute, loss, precision);
}

static void test_drawn(void **state)
{
    int n = 0;
    (void)state;
    for (uint64_t seed = 1; n < N_DRAWN; seed++) {
        GError *error = NULL;
        g_autofree char *json = drawn_plan(seed);
        g_autoptr(Plan) plan = load_reduced(json, "drawn", &error);
        if (plan == NULL) {
            check_error(&error, MOESIM_ERROR_INPUT, "drawn");
            continue;
        }
        n++;
        if (!prove(plan, 1, NULL, &error)) {
            fail_msg("%s\n# %s", json, error->message);
        }
    }
}

/* What a fault does to the first instruction, or call, that it fits. */
typedef struct Fault {
    const char *name;
    InstrKind kind;
    int what; /* VALUE: action; COLLECTIVE: collective; WAIT, RECORD: token; -1 = any */
    int stream; /* -1 = any */
    enum { REMOVE, DOUBLE, SWAP_OPERANDS, SHIFT_CHUNK } how;
    gboolean done;
} Fault;

static gboolean fault_fits(const Fault *fault, const Instr *instr)
{
    int what = instr->kind == INSTR_VALUE ? instr->action : instr->kind == INSTR_COLLECTIVE ? instr->coll : instr->place.idx;
    return instr->kind == fault->kind && (fault->what < 0 || what == fault->what) &&
           (fault->stream < 0 || instr->stream == fault->stream) &&
           (fault->how != SWAP_OPERANDS || instr->n_operands >= 3) &&
           (fault->kind != INSTR_COLLECTIVE || fault->what != COLL_all_to_all || instr->n_operands == 2); /* rows, not counts */
}

static void apply_to(Fault *fault, Segment *segment, guint i)
{
    Instr *instr = &g_array_index(segment->instrs, Instr, i);
    Instr copy = *instr;
    fault->done = TRUE;
    if (fault->how == REMOVE) {
        instr->kind = INSTR_HOST;
    } else if (fault->how == DOUBLE) {
        g_array_insert_val(segment->instrs, i, copy);
    } else {
        Place *places = &g_array_index(segment->operands, Place, instr->first_operand);
        Place last = places[instr->n_operands - 1];
        places[instr->n_operands - 1] = places[instr->n_operands - 2];
        places[instr->n_operands - 2] = last;
    }
}

static void apply_fault(void *self, Program *program)
{
    Fault *fault = self;
    for (guint c = 0; fault->how == SHIFT_CHUNK && c < program->calls->len; c++) {
        Call *call = &g_array_index(program->calls, Call, c);
        if (call->n_rows > 1 && !fault->done) {
            call->first_row += 1;
            fault->done = TRUE;
        }
    }
    /* the last segments first: reductions and updates of what was computed */
    for (guint s = program->segments->len; s-- > 0;) {
        Segment *segment = program_segment(program, (int)s);
        for (guint i = 0; i < segment->instrs->len && !fault->done; i++) {
            if (fault_fits(fault, &g_array_index(segment->instrs, Instr, i))) {
                apply_to(fault, segment, i);
            }
        }
    }
}



static const Fault faults[] = {
    {"cast not waited for", INSTR_WAIT, TOKEN_CAST, -1, REMOVE, FALSE},
    {"gradients not waited for", INSTR_WAIT, TOKEN_GRADS_IN, -1, REMOVE, FALSE},
    {"cast not recorded", INSTR_RECORD, TOKEN_CAST, -1, REMOVE, FALSE},
    {"gradients not recorded", INSTR_RECORD, TOKEN_GRADS_IN, -1, REMOVE, FALSE},
    {"buffer never allocated", INSTR_ALLOC, -1, -1, REMOVE, FALSE},
    {"buffer allocated twice", INSTR_ALLOC, -1, -1, DOUBLE, FALSE},
    {"buffer never freed", INSTR_FREE, -1, -1, REMOVE, FALSE},
    {"buffer freed twice", INSTR_FREE, -1, -1, DOUBLE, FALSE},
    {"gather skipped", INSTR_COLLECTIVE, COLL_all_gather, -1, REMOVE, FALSE},
    {"reduction skipped", INSTR_COLLECTIVE, COLL_reduce_scatter, -1, REMOVE, FALSE},
    {"replicas not summed", INSTR_COLLECTIVE, COLL_all_reduce, -1, REMOVE, FALSE},
    {"replicas summed twice", INSTR_COLLECTIVE, COLL_all_reduce, -1, DOUBLE, FALSE},
    {"exchange skipped", INSTR_COLLECTIVE, COLL_all_to_all, -1, REMOVE, FALSE},
    {"operator skipped", INSTR_VALUE, VALUE_FORWARD, -1, REMOVE, FALSE},
    {"backward skipped", INSTR_VALUE, VALUE_BACKWARD, -1, REMOVE, FALSE},
    {"sum skipped", INSTR_VALUE, VALUE_ADD, -1, REMOVE, FALSE},
    {"sum made twice", INSTR_VALUE, VALUE_ADD, -1, DOUBLE, FALSE},
    {"update skipped", INSTR_VALUE, VALUE_UPDATE, -1, REMOVE, FALSE},
    {"update made twice", INSTR_VALUE, VALUE_UPDATE, -1, DOUBLE, FALSE},
    {"parameters exchanged", INSTR_VALUE, VALUE_COPY_OUT, -1, SWAP_OPERANDS, FALSE},
    {"gradients exchanged", INSTR_VALUE, VALUE_GRAD_IN, -1, SWAP_OPERANDS, FALSE},
    {"chunk off by one", INSTR_HOST, -1, -1, SHIFT_CHUNK, FALSE},
    {"chunk counted twice", INSTR_VALUE, VALUE_LOSS, -1, DOUBLE, FALSE},
};

static void test_fault(void **state)
{
    static const char *json = "{\"model\": \"qwen3-30b-a3b\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 1, \"gpus_per_node\": 8}, "
                              "\"parallel\": {\"dp_replicate\": 2, \"ep\": 2}, \"workload\": {\"seq_len\": 64, \"global_batch\": 16}, "
                              "\"memory\": {\"recompute\": \"full\"}, \"loss\": {\"seq_chunk\": 32}}";
    Fault fault = *(const Fault *)*state;
    PlanMutation mutation = {apply_fault, &fault};
    GError *error = NULL;
    g_autoptr(Plan) plan = load_reduced(json, "plan", &error);
    check_no_error(error);
    gboolean passed = prove(plan, 2, &mutation, &error);
    assert_true(fault.done);
    assert_false(passed);
    print_message("# %s: %s\n", fault.name, error->message);
    g_clear_error(&error);
}

int main(void)
{
    enum { N_FAULTS = G_N_ELEMENTS(faults) };
    struct CMUnitTest tests[N_FAULTS + 2] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < N_FAULTS; i++) {
        tests[n++] = (struct CMUnitTest){faults[i].name, test_fault, NULL, NULL, (void *)(guintptr)&faults[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_presets);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_drawn);
    return _cmocka_run_group_tests("plan proof", tests, n, NULL, NULL);
}
