#include "workloads/plan/plan-moe.h"

#include "workloads/plan/plan-read.h"
#include "workloads/plan/routing-file.h"

/* More expert-parallel groups than this are not simulated side by side. */
enum { REPLICAS_MAX = 256 };

int64_t plan_chunk_tokens(const Plan *plan, int64_t chunk)
{
    int64_t tokens = plan->seq_len * plan->micro_batch, n = plan->moe.overlap_chunks;
    return token_chunk_start(tokens, n, chunk + 1) - token_chunk_start(tokens, n, chunk);
}

int64_t plan_n_moe_layers(const Plan *plan)
{
    int64_t n = 0;
    for (int64_t i = 0; i < plan->model->n_layers; i++) {
        n += plan->model->layers[i].ffn == FFN_MOE;
    }
    return n;
}

int64_t plan_balance_bytes(const Plan *plan)
{
    enum { HISTOGRAM_BINS = 1000 }; /* of the quantile rule, as its authors have it */
    int64_t counts = plan_n_moe_layers(plan) * plan->model->n_experts;
    if (plan->moe.balance == PLAN_BALANCE_QUANTILE) {
        return dtype_bytes(DTYPE_INT32, counts * HISTOGRAM_BINS);
    }
    return plan->moe.balance == PLAN_BALANCE_BIAS ? dtype_bytes(DTYPE_INT64, counts) : 0;
}

int64_t plan_balance_static_bytes(const Plan *plan)
{
    return plan->moe.balance == PLAN_BALANCE_QUANTILE ? plan_balance_bytes(plan) : 0;
}

static void read_order(Plan *plan, JsonObject *routing)
{
    static const char *const orders[] = {"shuffled", "sorted"};
    json_t *value = json_object_raw(routing, "order");
    if (!json_is_array(value)) {
        plan->routing_sorted = json_object_choice(routing, "order", orders, 2, 0) == 1;
        return;
    }
    plan->routing_order = g_array_new(FALSE, TRUE, sizeof(int64_t));
    for (size_t i = 0; i < json_array_size(value); i++) {
        int64_t expert = json_is_integer(json_array_get(value, i)) ? json_integer_value(json_array_get(value, i)) : -1;
        g_array_append_val(plan->routing_order, expert);
    }
}

/* Loads of a file: JSON as they are, CSV as what they stand for. */
static void read_loads(Plan *plan, JsonObject *object, const char *load_file, const char *base_dir)
{
    GError *error = NULL;
    g_autofree char *path = plan_read_path(base_dir, load_file);
    if (g_str_has_suffix(path, ".csv")) {
        plan->routing_loads = routing_read_csv(path, plan->model != NULL ? plan->model->n_experts : 0, &error);
    } else {
        plan->routing_loads = json_doc_load(path, FALSE, &error);
    }
    if (error != NULL) {
        json_object_adopt(object, "load_file", error);
    }
}

void read_moe_routing(Plan *plan, JsonObject *workload, const char *base_dir)
{
    static const char *const kinds[] = {"balanced", "zipf", "measured", "router", "consecutive"};
    JsonObject *object = json_object_child(workload, "routing");
    plan->routing_seed = 1;
    plan->routing_layer_draws = 1;
    if (object == NULL) {
        return;
    }
    plan->routing = (PlanRouting)json_object_choice(object, "kind", kinds, G_N_ELEMENTS(kinds), PLAN_ROUTING_BALANCED);
    if (plan->routing == PLAN_ROUTING_ZIPF) {
        plan->routing_exponent = json_object_number(object, "exponent", 0, 100, 0.5);
        read_order(plan, object);
    } else if (json_object_has(object, "exponent")) {
        json_object_fail(object, "exponent", "has no effect unless kind is \"zipf\"");
    }
    const char *load_file = json_object_string(object, "load_file", NULL);
    if (plan->routing == PLAN_ROUTING_MEASURED && load_file == NULL) {
        json_object_fail(object, "load_file", "missing; kind \"measured\" reads tokens per expert from it");
    } else if (plan->routing != PLAN_ROUTING_MEASURED && load_file != NULL) {
        json_object_fail(object, "load_file", "has no effect unless kind is \"measured\"");
    } else if (load_file != NULL) {
        read_loads(plan, object, load_file, base_dir);
    }
    if (plan->routing == PLAN_ROUTING_ROUTER) {
        plan->routing_sample_tokens = json_object_int(object, "sample_tokens", 1, 1 << 20, 0);
    } else if (json_object_has(object, "sample_tokens")) {
        json_object_fail(object, "sample_tokens", "has no effect unless kind is \"router\"");
    }
    static const char *const drawn_only[] = {"replicas", "layer_draws", "seed"};
    for (size_t i = 0; plan->routing == PLAN_ROUTING_CONSECUTIVE && i < G_N_ELEMENTS(drawn_only); i++) {
        if (json_object_has(object, drawn_only[i])) {
            json_object_fail(object, drawn_only[i], "has no effect when experts are handed out in turn; all tokens fare alike");
        }
    }
    plan->routing_replicas = json_object_int(object, "replicas", 1, REPLICAS_MAX, 0);
    plan->routing_layer_draws = json_object_int(object, "layer_draws", 1, 1 << 20, 1);
    if (plan->routing == PLAN_ROUTING_MEASURED && json_object_has(object, "layer_draws")) {
        json_object_fail(object, "layer_draws", "has no effect on measured loads; load_file says which layers differ");
    }
    plan->routing_seed = (uint64_t)json_object_int(object, "seed", 0, G_MAXINT64, 1);
    json_object_end(object);
}

/* Capacity of an expert, what is dropped above it, and whether experts are filled up to it. */
static void read_capacity(PlanMoe *moe, JsonObject *object)
{
    static const char *const drops[] = {"position", "probability", "position_choice"};
    static const MoeDrop drop_kinds[] = {MOE_DROP_POSITION, MOE_DROP_PROBS, MOE_DROP_POSITION_CHOICE};
    const char *rules[N_MOE_CAPACITY_RULES];
    for (int i = 0; i < N_MOE_CAPACITY_RULES; i++) {
        rules[i] = moe_capacity_rule_name((MoeCapacityRule)i);
    }
    moe->capacity.factor = json_object_number(object, "capacity_factor", 0, 1e6, 0);
    gboolean bounded = moe->capacity.factor > 0;
    moe->capacity.rule = (MoeCapacityRule)json_object_choice(object, "capacity_rule", rules, N_MOE_CAPACITY_RULES, 0);
    moe->capacity.least = json_object_int(object, "capacity_min", 1, 1 << 24, 4);
    moe->capacity.multiple = json_object_int(object, "capacity_multiple", 1, 1 << 24, 1);
    moe->pad = json_object_bool(object, "pad_to_capacity", FALSE);
    moe->drop = drop_kinds[json_object_choice(object, "drop", drops, G_N_ELEMENTS(drops), 0)];
    if (json_object_has(object, "capacity_drop_target")) {
        moe->drop_target = json_object_number(object, "capacity_drop_target", 0, 1, 0);
    }
    gboolean cuts = bounded || moe->drop_target >= 0;
    if (!bounded && json_object_has(object, "capacity_rule")) {
        json_object_fail(object, "capacity_rule", "has no effect without a capacity; set moe.capacity_factor or leave it out");
    } else if ((!bounded || moe->capacity.rule != MOE_CAPACITY_DEEPSPEED) && json_object_has(object, "capacity_min")) {
        json_object_fail(object, "capacity_min", "has no effect unless moe.capacity_rule is \"deepspeed\"; leave it out");
    } else if (!cuts && !moe->pad && moe->capacity.multiple > 1) {
        json_object_fail(object, "capacity_multiple", "has no effect without a capacity; set moe.capacity_factor or leave it out");
    } else if (!cuts && moe->drop != MOE_DROP_POSITION) {
        json_object_fail(object, "drop", "\"%s\" has no effect without a capacity; set moe.capacity_factor or leave it out",
                         moe_drop_name(moe->drop));
    }
}

/* What Switch Transformers weigh their balancing loss with. */
static const double switch_coeff = 1e-2;

static void read_balance(PlanMoe *moe, JsonObject *object)
{
    static const char *const balances[] = {"none", "aux_loss", "bias", "quantile"};
    static const char *const scopes[N_BALANCE_SCOPES] = {"micro_batch", "sequence", "global_batch"};
    static const char *const placements[] = {"linear", "eplb"};
    moe->balance = (PlanBalance)json_object_choice(object, "balance", balances, G_N_ELEMENTS(balances), 0);
    moe->balance_steps = json_object_int(object, "balance_steps", 0, 100000, 200);
    moe->aux_loss_coeff = json_object_number(object, "aux_loss_coeff", 0, 1e3, moe->balance == PLAN_BALANCE_AUX_LOSS ? switch_coeff : 0);
    moe->aux_loss_scope = (BalanceScope)json_object_choice(object, "aux_loss_scope", scopes, N_BALANCE_SCOPES, 0);
    moe->z_loss_coeff = json_object_number(object, "z_loss_coeff", 0, 1e3, 0);
    moe->balance_rate = json_object_number(object, "balance_rate", 0, 1e3, 1e-3);
    moe->redundant_experts = json_object_int(object, "redundant_experts", 0, 1 << 20, 0);
    moe->placement = (PlanPlacement)json_object_choice(object, "placement", placements, G_N_ELEMENTS(placements), 0);
    moe->replace_every = json_object_int(object, "replace_every", 0, G_MAXINT32, 0);
    if (moe->balance == PLAN_BALANCE_NONE && json_object_has(object, "balance_steps")) {
        json_object_fail(object, "balance_steps", "has no effect unless moe.balance is set");
    } else if (json_object_has(object, "balance_rate") && (moe->balance == PLAN_BALANCE_NONE || moe->balance == PLAN_BALANCE_QUANTILE)) {
        json_object_fail(object, "balance_rate", "has no effect unless moe.balance is \"aux_loss\" or \"bias\"");
    } else if (moe->balance == PLAN_BALANCE_AUX_LOSS && moe->aux_loss_coeff <= 0) {
        json_object_fail(object, "aux_loss_coeff", "must be above 0 with moe.balance \"aux_loss\"");
    } else if (moe->aux_loss_coeff <= 0 && json_object_has(object, "aux_loss_scope")) {
        json_object_fail(object, "aux_loss_scope", "has no effect without a balancing loss; set moe.aux_loss_coeff or moe.balance \"aux_loss\"");
    } else if (moe->replace_every > 0 && moe->placement != PLAN_PLACEMENT_EPLB) {
        json_object_fail(object, "replace_every", "has no effect unless moe.placement is \"eplb\"");
    }
}

void read_moe(Plan *plan, JsonObject *root)
{
    static const char *const dispatches[N_PLAN_DISPATCHES] = {"all_to_all", "hierarchical", "all_gather", "deepep", "hybridep"};
    JsonObject *object = json_object_child(root, "moe");
    plan->moe = (PlanMoe){.drop_target = -1, .overlap_chunks = 1};
    if (object == NULL) {
        return;
    }
    read_capacity(&plan->moe, object);
    read_balance(&plan->moe, object);
    plan->moe.dispatch = (PlanDispatch)json_object_choice(object, "dispatch", dispatches, N_PLAN_DISPATCHES, 0);
    plan->moe.shared_overlap = json_object_bool(object, "shared_overlap", FALSE);
    plan->moe.overlap_chunks = json_object_int(object, "overlap_chunks", 1, TOKEN_CHUNKS_MAX, 1);
    plan->moe.overlap_micro_batches = json_object_bool(object, "overlap_micro_batches", FALSE);
    json_object_end(object);
}
