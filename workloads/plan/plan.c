#include "workloads/plan/plan.h"

#include <math.h>
#include <string.h>

#include "models/fp8.h"
#include "sim/base/error.h"
#include "sim/base/json-read.h"
#include "workloads/plan/plan-cache.h"
#include "workloads/plan/plan-check.h"
#include "workloads/plan/plan-drafts.h"
#include "workloads/plan/plan-read.h"
#include "workloads/plan/plan-moe.h"

int64_t plan_n_communicators(const Plan *plan, int64_t *ret_n_exchanging)
{
    gboolean nested = plan->ep > 1 && plan->efsdp > 1;
    gboolean travels = plan->optimizer == PLAN_MUON && plan_n_shards(plan, FALSE) > 1;
    *ret_n_exchanging = (plan->ep > 1) + travels;
    gboolean sums = plan->moe.aux_loss_coeff > 0 && plan->moe.aux_loss_scope == BALANCE_GLOBAL_BATCH && plan->dp_replicate > 1 &&
                    plan->dp_shard * plan->cp > 1; /* over all ranks, which are no other group */
    return (plan->dp_shard * plan->cp > 1) + (plan->dp_replicate > 1) + (plan->ep > 1) + nested + sums;
}

int64_t plan_outside_bytes(const Plan *plan)
{
    const Device *device = plan->cluster->device;
    int64_t exchanging, n = plan_n_communicators(plan, &exchanging);
    return device->non_framework_bytes + n * device->communicator_bytes + exchanging * device->communicator_exchange_bytes;
}

int64_t plan_n_shards(const Plan *plan, gboolean expert)
{
    if (plan->sharding == PLAN_SHARDING_NONE || plan->layer_wise) {
        return 1;
    }
    return expert && plan->ep > 1 ? plan->efsdp : plan->dp_shard * plan->cp;
}

void plan_free(Plan *plan)
{
    if (plan == NULL || g_atomic_int_add(&plan->extra_refs, -1) > 0) {
        return;
    }
    g_free(plan->name);
    json_doc_free(plan->doc);
    model_free(plan->model);
    cluster_free(plan->cluster);
    g_clear_pointer(&plan->routing_order, g_array_unref);
    json_doc_free(plan->routing_loads);
    g_clear_pointer(&plan->warnings, g_ptr_array_unref);
    g_free(plan);
}

const Plan *plan_ref(const Plan *plan)
{
    const Plan *owner = plan->owner != NULL ? plan->owner : plan;
    g_atomic_int_inc(&((Plan *)(uintptr_t)owner)->extra_refs); /* counting owners changes no plan */
    return owner;
}

char *plan_read_path(const char *base_dir, const char *path)
{
    if (g_path_is_absolute(path) || base_dir == NULL || strcmp(base_dir, ".") == 0) {
        return g_strdup(path);
    }
    return g_build_filename(base_dir, path, NULL);
}

int64_t plan_expert_slots(const Plan *plan)
{
    return plan->model->n_experts + plan->moe.redundant_experts;
}

gboolean plan_sends_tokens(const Plan *plan)
{
    return plan->ep > 1 && plan->moe.dispatch >= PLAN_DISPATCH_ALL_GATHER;
}

int64_t plan_moe_layer(const Plan *plan, int64_t layer)
{
    int64_t n = 0;
    if (layer < 0 || layer >= plan->model->n_layers || plan->model->layers[layer].ffn != FFN_MOE) {
        return -1;
    }
    for (int64_t i = 0; i < layer; i++) {
        n += plan->model->layers[i].ffn == FFN_MOE ? 1 : 0;
    }
    return n;
}

gboolean plan_capacity_is_measured(const Plan *plan)
{
    return plan->moe.drop_target >= 0 || (plan->moe.pad && plan->moe.capacity.factor <= 0);
}

static gboolean is_path(const char *text)
{
    return strchr(text, '/') != NULL || g_str_has_suffix(text, ".json");
}

/* Where a plan's files come from. */
typedef struct PlanSource {
    PlanCache *cache;     /* or NULL */
    const char *base_dir; /* of relative paths; may be NULL */
} PlanSource;

static void read_model(Plan *plan, JsonObject *root, const PlanSource *source)
{
    json_t *value = json_object_raw(root, "model");
    GError *error = NULL;
    if (json_is_string(value)) {
        const char *text = json_string_value(value);
        g_autofree char *path = is_path(text) ? plan_read_path(source->base_dir, text) : g_strdup(text);
        plan->model = plan_cache_model(source->cache, path, NULL, &error);
    } else if (json_is_object(value) && json_object_get(value, "config") != NULL) {
        JsonObject *object = json_object_child(root, "model");
        const char *config = json_object_string(object, "config", NULL);
        json_t *overrides = json_object_raw(object, "overrides");
        g_autofree char *path = config != NULL && is_path(config) ? plan_read_path(source->base_dir, config) : g_strdup(config);
        if (path != NULL) {
            plan->model = plan_cache_model(source->cache, path, overrides, &error);
        } else if (json_object_ok(object)) {
            json_object_fail(object, "config", "missing; give a preset (moesim model lists them) or the path of a config.json");
        }
        json_object_end(object);
    } else if (json_is_object(value)) {
        plan->model = model_from_json(value, plan->name, NULL, &error);
    } else {
        json_object_fail(root, "model", "missing or not a name; give a preset (moesim model lists them), the path of a config.json, "
                                        "or {\"config\": …, \"overrides\": {…}}");
    }
    if (error != NULL) {
        json_object_adopt(root, "model", error);
    }
}

static void read_cluster(Plan *plan, JsonObject *root, const PlanSource *source)
{
    JsonObject *object = json_object_child(root, "cluster");
    GError *error = NULL;
    if (object == NULL) {
        json_object_fail(root, "cluster", "missing; give {\"preset\": \"h200-sxm\", \"nodes\": 16, \"gpus_per_node\": 8}");
        return;
    }
    const char *preset = json_object_string(object, "preset", NULL);
    const char *file = json_object_string(object, "file", NULL);
    int64_t nodes = json_object_int(object, "nodes", 1, PLAN_COUNT_MAX, 1);
    int64_t gpus = json_object_int(object, "gpus_per_node", 1, 4096, 0);
    if ((preset == NULL) == (file == NULL)) {
        json_object_fail(object, NULL, "needs either \"preset\" or \"file\"");
    }
    gboolean ok = json_object_ok(object);
    json_object_end(object);
    if (!ok) {
        return;
    }
    g_autofree char *path = preset != NULL ? g_strdup(preset) : plan_read_path(source->base_dir, file);
    plan->cluster = plan_cache_cluster(source->cache, path, nodes, gpus, &error);
    if (error != NULL) {
        json_object_adopt(root, "cluster", error);
    }
}

/* A degree that the program cannot lower yet must be left at 1. */
static int64_t read_degree_of_one(JsonObject *object, const char *key)
{
    int64_t degree = json_object_int(object, key, 1, PLAN_COUNT_MAX, 1);
    if (degree != 1) {
        json_object_fail(object, key, "%" G_GINT64_FORMAT " is not modelled yet; leave it at 1", degree);
    }
    return degree;
}

void plan_refuse_number(JsonObject *object, const char *key, double neutral)
{
    double value = json_object_number(object, key, -1e18, 1e18, neutral);
    if (value < neutral || value > neutral) {
        json_object_fail(object, key, "%g is not modelled yet; leave it at %g", value, neutral);
    }
}

void plan_refuse_choice(JsonObject *object, const char *key, const char *const *names, int n_names)
{
    int choice = json_object_choice(object, key, names, n_names, 0);
    if (choice != 0) {
        json_object_fail(object, key, "\"%s\" is not modelled yet; leave it at \"%s\"", names[choice], names[0]);
    }
}

static void read_parallel(Plan *plan, JsonObject *root)
{
    static const char *const prefetches[] = {"implicit", "explicit"};
    static const char *const shardings[] = {"fsdp", "zero1", "none"};
    JsonObject *object = json_object_child(root, "parallel");
    plan->dp_replicate = plan->ep = plan->etp = plan->tp = plan->cp = plan->pp = 1;
    plan->dp_shard = -1;
    plan->reshard_after_forward = TRUE;
    if (object == NULL) {
        return;
    }
    plan->dp_replicate = json_object_int(object, "dp_replicate", 1, PLAN_COUNT_MAX, 1);
    plan->dp_shard = json_object_int(object, "dp_shard", -1, PLAN_COUNT_MAX, -1);
    if (plan->dp_shard == 0) {
        json_object_fail(object, "dp_shard", "0 is not a degree; use 1 for no sharding or -1 to fill the cluster");
    }
    plan->ep = json_object_int(object, "ep", 1, PLAN_COUNT_MAX, 1);
    plan->etp = read_degree_of_one(object, "etp");
    plan->tp = read_degree_of_one(object, "tp");
    plan->cp = read_degree_of_one(object, "cp");
    plan->pp = read_degree_of_one(object, "pp");
    if (json_object_has(object, "pipeline")) {
        json_object_fail(object, "pipeline", "pipeline parallelism is not modelled yet; leave the field out");
    }
    plan->sharding = (PlanSharding)json_object_choice(object, "sharding", shardings, G_N_ELEMENTS(shardings), PLAN_SHARDING_FSDP);
    if (!json_object_bool(object, "gradient_buffers", TRUE)) {
        if (plan->sharding != PLAN_SHARDING_NONE) {
            json_object_fail(object, "gradient_buffers", "false has no effect unless parallel.sharding is \"none\"");
        }
        plan->plain = TRUE;
    }
    JsonObject *fsdp = json_object_child(object, "fsdp");
    if (fsdp != NULL && plan->sharding != PLAN_SHARDING_FSDP) {
        json_object_fail(object, "fsdp", "has no effect unless parallel.sharding is \"fsdp\"");
        json_object_end(fsdp);
    } else if (fsdp != NULL) {
        plan->reshard_after_forward = json_object_bool(fsdp, "reshard_after_forward", TRUE);
        plan->prefetch = (PlanPrefetch)json_object_choice(fsdp, "prefetch", prefetches, 2, PLAN_PREFETCH_IMPLICIT);
        json_object_end(fsdp);
    }
    json_object_end(object);
}

static void read_network(Plan *plan, JsonObject *root)
{
    static const char *const levels[] = {"flows", "closed_form"};
    JsonObject *object = json_object_child(root, "network");
    if (object != NULL) {
        plan->network = (PlanNetwork)json_object_choice(object, "level", levels, G_N_ELEMENTS(levels), PLAN_NETWORK_FLOWS);
        json_object_end(object);
    }
}

static void read_lora(Plan *plan, JsonObject *workload)
{
    static const char *const targets[] = {"attention", "shared", "experts", NULL};
    gboolean wanted[3] = {TRUE, TRUE, FALSE};
    JsonObject *object = json_object_child(workload, "lora");
    if (plan->mode != PLAN_LORA) {
        if (object != NULL) {
            json_object_fail(workload, "lora", "has no effect in this mode; set workload.mode to \"lora\" or leave it out");
            json_object_end(object);
        }
        return;
    }
    plan->lora_rank = 16;
    if (object != NULL) {
        plan->lora_rank = json_object_int(object, "rank", 1, 65536, 16);
        plan_read_flags(object, "targets", targets, 3, wanted);
        plan->lora_shared_a = json_object_bool(object, "shared_a", FALSE);
        json_object_end(object);
    }
    plan->lora_attention = wanted[0];
    plan->lora_shared = wanted[1];
    plan->lora_experts = wanted[2];
    if (!wanted[0] && !wanted[1] && !wanted[2]) {
        json_object_fail(workload, "lora", "targets is empty: nothing would train; name attention, shared or experts");
    }
}

static void read_workload(Plan *plan, JsonObject *root, const PlanSource *source)
{
    static const char *const modes[] = {"pretrain", "finetune", "lora"};
    JsonObject *object = json_object_child(root, "workload");
    plan->seq_len = 4096;
    plan->micro_batch = 1;
    plan->global_batch = 0;
    plan->routing_seed = 1;
    plan->routing_layer_draws = 1;
    if (object == NULL) {
        return;
    }
    plan->mode = (PlanMode)json_object_choice(object, "mode", modes, 3, PLAN_PRETRAIN);
    plan->seq_len = json_object_int(object, "seq_len", 1, 1 << 26, 4096);
    plan->micro_batch = json_object_int(object, "micro_batch", 1, PLAN_COUNT_MAX, 1);
    plan->global_batch = json_object_int(object, "global_batch", 1, 1 << 30, 0);
    read_lora(plan, object);
    read_moe_routing(plan, object, source->base_dir);
    plan_refuse_number(object, "image_tokens", 0);
    json_object_end(object);
}

static void read_loss(Plan *plan, JsonObject *root)
{
    JsonObject *object = json_object_child(root, "loss");
    if (object == NULL) {
        return;
    }
    plan->seq_chunk_fits = plan_says_fit(object, "seq_chunk", "a number of tokens (0 = not chunked), or \"fit\"");
    plan->seq_chunk = plan->seq_chunk_fits ? 0 : json_object_int(object, "seq_chunk", 0, G_MAXINT32, 0);
    plan->vocab_chunk = json_object_int(object, "vocab_chunk", 0, G_MAXINT32, 0);
    plan->index_kl_coeff = json_object_number(object, "index_kl_coeff", 0, 1e3, 0);
    json_object_end(object);
}

static void read_optimizer(Plan *plan, JsonObject *root)
{
    static const char *const kinds[] = {"adamw", "muon"};
    static const char *const moments[] = {"fp32", "bf16", "int8"};
    static const Dtype moment_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_INT8};
    static const char *const shardings[] = {"element_wise", "layer_wise"};
    JsonObject *object = json_object_child(root, "optimizer");
    /* torch's AdamW keeps its moments in the parameters' type */
    int or_else = plan->parameters == DTYPE_BF16 ? 1 : 0;
    plan->moments = moment_types[or_else];
    if (object == NULL) {
        return;
    }
    plan->optimizer = (PlanOptimizer)json_object_choice(object, "kind", kinds, 2, PLAN_ADAMW);
    plan->muon_per_head = json_object_bool(object, "per_head", FALSE);
    plan->master_weights = json_object_bool(object, "master_weights", FALSE);
    plan->moments = moment_types[json_object_choice(object, "moments", moments, 3, plan->master_weights ? 0 : or_else)];
    plan->optimizer_offload = json_object_bool(object, "offload", FALSE);
    plan->layer_wise = json_object_choice(object, "sharding", shardings, G_N_ELEMENTS(shardings), 0) == 1;
    if (plan->muon_per_head && plan->optimizer != PLAN_MUON) {
        json_object_fail(object, "per_head", "has no effect unless optimizer.kind is \"muon\"");
    }
    if (plan->master_weights && plan->parameters == DTYPE_FP32) {
        json_object_fail(object, "master_weights", "has no effect: parameters are stored in fp32; set precision.parameters to \"bf16\"");
    }
    json_object_end(object);
}

static void read_precision(Plan *plan, JsonObject *root)
{
    static const char *const stored[] = {"fp32", "bf16"};
    static const Dtype stored_types[] = {DTYPE_FP32, DTYPE_BF16};
    static const char *const computes[] = {"bf16"};
    static const char *const gemms[] = {"bf16", "fp8"};
    static const char *const weights[] = {"each_pass", "cached", "primary"};
    JsonObject *object = json_object_child(root, "precision");
    plan->parameters = plan->mode == PLAN_LORA ? DTYPE_BF16 : DTYPE_FP32;
    plan->reduce = DTYPE_FP32;
    plan->compute = plan->gemm = DTYPE_BF16;
    if (object == NULL) {
        return;
    }
    plan->parameters = stored_types[json_object_choice(object, "parameters", stored, 2, plan->mode == PLAN_LORA)];
    (void)json_object_choice(object, "compute", computes, 1, 0);
    plan->reduce = stored_types[json_object_choice(object, "reduce", stored, 2, 0)];
    gboolean fp8 = json_object_choice(object, "gemm", gemms, 2, 0) == 1;
    plan->gemm = fp8 ? DTYPE_FP8 : DTYPE_BF16;
    plan->fp8_align = fp8 ? FP8_ALIGN : 0;
    plan->fp8_weights = (PlanFp8Weights)json_object_choice(object, "fp8_weights", weights, G_N_ELEMENTS(weights), PLAN_FP8_EACH_PASS);
    if (plan->fp8_weights != PLAN_FP8_EACH_PASS && !fp8) {
        json_object_fail(object, "fp8_weights", "has no effect unless precision.gemm is \"fp8\"");
    }
    json_object_end(object);
}

static void set_all_eager(Plan *plan, gboolean eager)
{
    for (int i = 0; i < N_OPS; i++) {
        plan->eager[i] = eager;
    }
}

static void read_kernels(Plan *plan, JsonObject *root)
{
    static const char *const modes[] = {"fused", "eager"};
    json_t *value = json_object_raw(root, "kernels");
    if (value == NULL || json_is_string(value)) {
        set_all_eager(plan, json_object_choice(root, "kernels", modes, 2, 0) == 1);
        return;
    }
    JsonObject *object = json_object_child(root, "kernels");
    if (object == NULL) {
        return;
    }
    set_all_eager(plan, json_object_choice(object, "default", modes, 2, 0) == 1);
    for (int i = 0; i < N_OPS; i++) {
        const char *id = op_class((OpKind)i)->id;
        plan->eager[i] = json_object_choice(object, id, modes, 2, plan->eager[i]) == 1;
    }
    json_object_end(object);
}

static void read_schema(Plan *plan, JsonObject *root)
{
    (void)plan;
    (void)json_object_string(root, "$schema", NULL);
}

static void read_note(Plan *plan, JsonObject *root)
{
    (void)plan;
    (void)json_object_string(root, "_note", NULL);
}

/*
 * In the order in which they are read, each seeing what those before it have made of the plan. What sweeps turn most comes
 * last, so that drafts (plan-drafts.h) spare most.
 */
static const struct {
    const char *key;
    void (*read)(Plan *plan, JsonObject *root);
    void (*load)(Plan *plan, JsonObject *root, const PlanSource *source); /* instead, where files may be named */
} parts[] = {
    {"$schema", read_schema, NULL},
    {"_note", read_note, NULL},
    {"model", NULL, read_model},
    {"cluster", NULL, read_cluster},
    {"parallel", read_parallel, NULL},
    {"network", read_network, NULL},
    {"workload", NULL, read_workload},
    {"moe", read_moe, NULL},
    {"memory", plan_read_memory, NULL},
    {"precision", read_precision, NULL},
    {"optimizer", read_optimizer, NULL},
    {"kernels", read_kernels, NULL},
    {"loss", read_loss, NULL},
};

static void read_part(guint part, Plan *plan, JsonObject *root, const PlanSource *source)
{
    if (parts[part].load != NULL) {
        parts[part].load(plan, root, source);
    } else {
        parts[part].read(plan, root);
    }
}

static void plan_read(Plan *plan, JsonObject *root, json_t *object, const PlanSource *source)
{
    PlanDrafts *drafts = source->cache != NULL ? plan_cache_drafts(source->cache, G_N_ELEMENTS(parts)) : NULL;
    json_t *values[G_N_ELEMENTS(parts)];
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        values[i] = json_object_get(object, parts[i].key);
    }
    guint first = drafts != NULL ? plan_drafts_start(drafts, values, source->base_dir, plan) : 0;
    for (guint i = 0; i < G_N_ELEMENTS(parts); i++) {
        if (i < first) {
            json_object_ignore(root, parts[i].key);
            continue;
        }
        read_part(i, plan, root, source);
        if (drafts != NULL && json_object_ok(root)) {
            plan_drafts_note(drafts, i, values[i], plan);
        }
    }
    if (json_object_ok(root)) {
        plan_check(plan, root);
    }
}

static Plan *plan_from_doc(JsonDoc *doc, const PlanSource *source, GError **error)
{
    g_autoptr(Plan) plan = g_new0(Plan, 1);
    JsonObject *root = json_doc_open(doc, error);
    if (root == NULL) {
        return NULL;
    }
    plan->name = g_strdup(json_doc_name(doc));
    plan->warnings = g_ptr_array_new_with_free_func(g_free);
    plan_read(plan, root, json_doc_root(doc), source);
    if (!json_object_close(root, FALSE, error)) {
        return NULL;
    }
    return g_steal_pointer(&plan);
}

Plan *plan_load(const char *path, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_load(path, FALSE, error);
    g_autofree char *base_dir = g_path_get_dirname(path);
    PlanSource source = {NULL, base_dir};
    Plan *plan = doc != NULL ? plan_from_doc(doc, &source, error) : NULL;
    if (plan != NULL) {
        plan->doc = g_steal_pointer(&doc);
    }
    return plan;
}

void plan_fail(const Plan *plan, const char *path, GError **error, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    g_autofree char *what = g_strdup_vprintf(format, args);
    va_end(args);
    if (plan->doc == NULL) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: %s: %s", plan->name, path, what);
        return;
    }
    g_auto(GStrv) keys = g_strsplit(path, ".", -1);
    g_autoptr(GArray) steps = g_array_new(FALSE, FALSE, sizeof(JsonStep));
    for (char **key = keys; *key != NULL; key++) {
        JsonStep step = {*key, 0};
        g_array_append_val(steps, step);
    }
    json_doc_fail(plan->doc, (const JsonStep *)(void *)steps->data, steps->len, error, "%s", what);
}

Plan *plan_from_json(json_t *value, const char *name, const char *base_dir, GError **error)
{
    return plan_from_json_cached(NULL, value, name, base_dir, error);
}

Plan *plan_from_json_cached(PlanCache *cache, json_t *value, const char *name, const char *base_dir, GError **error)
{
    g_autoptr(JsonDoc) doc = json_doc_from_value(value, name);
    PlanSource source = {cache, base_dir};
    return plan_from_doc(doc, &source, error);
}
