/*
 * Programs in values: shipped plans, reduced; and programs with a fault, which must not pass.
 */
#include "tests/check.h"

#include "sim/base/error.h"
#include "workloads/lower/whole.h"
#include "workloads/lower/fsdp.h"
#include "workloads/plan/plan.h"
#include "workloads/run/plan-proof.h"
#include "workloads/run/shrink.h"

static Plan *load_reduced(const char *json, const char *name, GError **error)
{
    json_t *value = json_loads(json, 0, NULL);
    assert_non_null(value);
    Plan *plan = plan_from_json(value, name, NULL, error);
    json_decref(value);
    ShrinkReport reduced;
    if (plan != NULL) {
        shrink_plan(plan, &reduced);
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
                                        "qwen3-30b-8",           "qwen3-235b-mi355x-64", "kimi-k3-skew-1024",     "deepseek-v3-eplb-512",
                                        "deepseek-v3-bias-256",  "qwen3-235b-capacity-256"};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(names); i++) {
        GError *error = NULL;
        g_autofree char *path = g_strdup_printf("%s/workloads/presets/%s.json", g_getenv("MOESIM_SOURCE_ROOT"), names[i]);
        g_autoptr(Plan) plan = plan_load(path, &error);
        check_no_error(error);
        ShrinkReport reduced;
        shrink_plan(plan, &reduced);
        prove(plan, 1, NULL, &error);
        check_no_error(error);
    }
}

/* Drawn plans that once failed, made small: each holds a mechanism that no preset has. */
typedef struct Small {
    const char *name;
    const char *json;
} Small;

#define ONE_LAYER(gpus, config, more) \
    "{\"cluster\": {\"preset\": \"h200-sxm\", \"gpus_per_node\": " gpus "}, " \
    "\"model\": {\"config\": \"" config "\", \"overrides\": {\"num_hidden_layers\": 1"  more

static const Small smalls[] = {
    {"a slice of three experts as large as one",
     ONE_LAYER(
         "4", "mixtral-8x7b",
         ", \"n_routed_experts\": 3}}, ") "\"workload\": {\"mode\": \"lora\", \"lora\": {\"targets\": [\"experts\"]}, "
                                          "\"seq_len\": 1}, \"optimizer\": {\"kind\": \"muon\"}}"},
    {"a slice of six experts as large as one",
     ONE_LAYER("7", "mixtral-8x7b",
               ", \"n_routed_experts\": 6}}, ") "\"workload\": {\"seq_len\": 1}, \"optimizer\": {\"kind\": \"muon\"}}"},
    {"whole gradients of adapters joined",
     ONE_LAYER("1", "llama-3.1-8b", "}}, ") "\"parallel\": {\"sharding\": \"none\", \"gradient_buffers\": false}, "
                                            "\"workload\": {\"mode\": \"lora\", \"seq_len\": 1, \"global_batch\": 2}}"},
    {"padded rows sent again, their counts kept",
     "{\"cluster\": {\"preset\": \"h200-sxm\", \"gpus_per_node\": 4}, \"model\": {\"config\": \"kimi-linear-48b-a3b\", "
     "\"overrides\": {\"num_hidden_layers\": 4, \"num_experts_per_tok\": 2}}, \"parallel\": {\"ep\": 2}, "
     "\"workload\": {\"mode\": \"lora\", \"lora\": {\"targets\": [\"shared\"]}, \"seq_len\": 1}, "
     "\"moe\": {\"capacity_factor\": 1, \"pad_to_capacity\": true}, "
     "\"memory\": {\"recompute\": \"selective\", \"cache\": {\"ddr_bytes\": 49919, \"policy\": \"cost_benefit\"}}}"},
    {"the output of a cached chain copied again",
     ONE_LAYER("1", "llama-3.1-8b", "}}, ") "\"workload\": {\"seq_len\": 1}, \"kernels\": {\"default\": \"eager\"}, "
                                            "\"memory\": {\"recompute\": \"selective\", \"cache\": {\"ddr_bytes\": "
                                            "99907, \"policy\": \"belady\"}}}"},
    {"states of Muon fetched into memory that activations came back to",
     "{\"cluster\": {\"preset\": \"h200-sxm\", \"gpus_per_node\": 1}, \"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": "
     "{\"num_hidden_layers\": 2, \"vocab_size\": 1}}, \"workload\": {\"mode\": \"lora\", \"seq_len\": 1}, \"moe\": {\"capacity_factor\": 1, "
     "\"aux_loss_coeff\": 0.02}, \"memory\": {\"recompute\": \"selective\", \"cache\": {\"ddr_bytes\": 6166}}, \"optimizer\": "
     "{\"kind\": \"muon\", \"offload\": true}}"},
    {"slots padded to the loads that were drawn, not to those of the router, and counted for the biases",
     ONE_LAYER("1", "minimax-m2", "}}, ") "\"workload\": {\"seq_len\": 2}, \"moe\": {\"pad_to_capacity\": true, \"balance\": \"quantile\"}}"},
    {"whole gradients joined",
     ONE_LAYER(
         "1", "llama-3.1-8b",
         "}}, ") "\"parallel\": {\"sharding\": \"none\", \"gradient_buffers\": false}, "
                 "\"precision\": {\"parameters\": \"bf16\"}, \"workload\": {\"seq_len\": 1, \"global_batch\": 3}}"},
};

static void test_small(void **state)
{
    const Small *small = *state;
    GError *error = NULL;
    g_autoptr(Plan) plan = load_reduced(small->json, small->name, &error);
    check_no_error(error);
    prove(plan, 2, NULL, &error);
    check_no_error(error);
}

/* Muon's stacks of experts over every number of shards about the number of experts. */
static void test_expert_shards(void **state)
{
    (void)state;
    for (int experts = 2; experts <= 6; experts++) {
        for (int gpus = 1; gpus <= 8; gpus++) {
            GError *error = NULL;
            g_autofree char *json = g_strdup_printf(
                "{\"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 1, \"gpus_per_node\": %d}, \"model\": {\"config\": \"mixtral-8x7b\", "
                "\"overrides\": {\"n_routed_experts\": %d, \"num_hidden_layers\": 1}}, \"workload\": {\"seq_len\": 1}, "
                "\"optimizer\": {\"kind\": \"muon\"}}", gpus, experts);
            g_autoptr(Plan) plan = load_reduced(json, "plan", &error);
            check_no_error(error);
            prove(plan, 1, NULL, &error);
            g_prefix_error(&error, "%d experts over %d shards: ", experts, gpus);
            check_no_error(error);
        }
    }
}

/* What a fault does to the first instruction, or call, that it fits. */
typedef struct Fault {
    const char *name;
    InstrKind kind;
    int what; /* VALUE: action; COLLECTIVE: collective; WAIT, RECORD: token; -1 = any */
    int stream; /* -1 = any; of a token: of FSDP, else of whole matrices */
    enum { REMOVE, DOUBLE, SWAP_OPERANDS, SHIFT_CHUNK } how;
    gboolean done;
} Fault;

static gboolean fault_fits(const Fault *fault, const Instr *instr)
{
    int what = instr->kind == INSTR_VALUE ? instr->action : instr->kind == INSTR_COLLECTIVE ? instr->coll : instr->place.idx;
    gboolean is_token = instr->kind == INSTR_WAIT || instr->kind == INSTR_RECORD;
    return instr->kind == fault->kind && (!is_token || (instr->place.arg == ARG_GLOBAL) == (fault->stream < 0)) && (fault->what < 0 || what == fault->what) &&
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
    {"exchange skipped", INSTR_COLLECTIVE, COLL_all_to_all, STREAM_ALL_TO_ALL, REMOVE, FALSE},
    {"matrices not exchanged", INSTR_COLLECTIVE, COLL_all_to_all, STREAM_REDUCE, REMOVE, FALSE},
    {"matrices not waited for", INSTR_WAIT, WHOLE_ARRIVED, STREAM_COMPUTE, REMOVE, FALSE},
    {"slices not waited for", INSTR_WAIT, WHOLE_RETURNED, STREAM_COMPUTE, REMOVE, FALSE},
    {"slices not ready", INSTR_RECORD, WHOLE_READY, STREAM_COMPUTE, REMOVE, FALSE},
    {"matrices not done", INSTR_RECORD, WHOLE_DONE, STREAM_COMPUTE, REMOVE, FALSE},
    {"no direction", INSTR_VALUE, VALUE_DIRECTION, -1, REMOVE, FALSE},
    {"momentum twice", INSTR_VALUE, VALUE_DIRECTION, -1, DOUBLE, FALSE},
    {"not orthogonal", INSTR_VALUE, VALUE_ORTHOGONALIZE, -1, REMOVE, FALSE},
    {"orthogonal twice", INSTR_VALUE, VALUE_ORTHOGONALIZE, -1, DOUBLE, FALSE},
    {"descent skipped", INSTR_VALUE, VALUE_DESCEND, -1, REMOVE, FALSE},
    {"descent made twice", INSTR_VALUE, VALUE_DESCEND, -1, DOUBLE, FALSE},
    {"operator skipped", INSTR_VALUE, VALUE_FORWARD, -1, REMOVE, FALSE},
    {"backward skipped", INSTR_VALUE, VALUE_BACKWARD, -1, REMOVE, FALSE},
    {"sum skipped", INSTR_VALUE, VALUE_ADD, -1, REMOVE, FALSE},
    {"sum made twice", INSTR_VALUE, VALUE_ADD, -1, DOUBLE, FALSE},
    {"update skipped", INSTR_VALUE, VALUE_UPDATE, -1, REMOVE, FALSE},
    {"update made twice", INSTR_VALUE, VALUE_UPDATE, -1, DOUBLE, FALSE},
    {"parameters exchanged", INSTR_VALUE, VALUE_COPY_OUT, -1, SWAP_OPERANDS, FALSE},
    {"gradients exchanged", INSTR_VALUE, VALUE_GRAD_IN, -1, SWAP_OPERANDS, FALSE},
    {"chunk off by one", INSTR_HOST, -1, -1, SHIFT_CHUNK, FALSE},
    {"chunk counted twice", INSTR_VALUE, VALUE_LOSS_SUM, -1, DOUBLE, FALSE},
};

/* Faults in how whole matrices of Muon change ranks. */
static gboolean is_of_matrices(const Fault *fault)
{
    return (fault->kind == INSTR_VALUE && fault->what >= VALUE_DIRECTION) || (fault->stream >= 0 && fault->stream != STREAM_ALL_TO_ALL);
}

static void test_fault(void **state)
{
    static const char *const format = "{\"model\": \"qwen3-30b-a3b\", \"cluster\": {\"preset\": \"h200-sxm\", \"nodes\": 1, \"gpus_per_node\": 8}, "
                              "\"parallel\": {\"dp_replicate\": 2, \"ep\": 2}, \"workload\": {\"seq_len\": 64, \"global_batch\": 16}, "
                              "\"memory\": {\"recompute\": \"full\"}, \"loss\": {\"seq_chunk\": 32}, \"optimizer\": {\"kind\": \"%s\"}}";
    Fault fault = *(const Fault *)*state;
    g_autofree char *json = g_strdup_printf(format, is_of_matrices(&fault) ? "muon" : "adamw");
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
    enum { N_FAULTS = G_N_ELEMENTS(faults), N_SMALLS = G_N_ELEMENTS(smalls) };
    struct CMUnitTest tests[N_FAULTS + N_SMALLS + 2] = {{0}};
    size_t n = 0;
    for (size_t i = 0; i < N_FAULTS; i++) {
        tests[n++] = (struct CMUnitTest){faults[i].name, test_fault, NULL, NULL, (void *)(guintptr)&faults[i]};
    }
    for (size_t i = 0; i < N_SMALLS; i++) {
        tests[n++] = (struct CMUnitTest){smalls[i].name, test_small, NULL, NULL, (void *)(guintptr)&smalls[i]};
    }
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_expert_shards);
    tests[n++] = (struct CMUnitTest)cmocka_unit_test(test_presets);
    return _cmocka_run_group_tests("plan proof", tests, n, NULL, NULL);
}
