/*
 * Programs with one fault: every one must be noticed, or proven to be none.
 *
 * A fault is a way to break an instruction at one place. Places are taken by class: what an instruction does (kind, action,
 * collective, token), on which stream and in which kind of segment. Of every class one place is tried on the small plans, of
 * one class in so many on the large ones. Arguments: "all" or how many places of a class, then one plan alone and in full.
 *
 * A RECORD or WAIT may order what others order already in one plan, as framework code waits out of caution. Without it the
 * program is the same if all accesses that exclude one another are still in order: the proof decides that for every pair, by
 * clocks and by sets of actions. In some plan each such fault must be noticed.
 */
#include "tests/check.h"

#include <string.h>

#include "sim/base/json-read.h"
#include "workloads/lower/fsdp.h"
#include "workloads/lower/lower.h"
#include "workloads/run/drawn.h"

typedef struct Spot {
    Program *program;
    Segment *segment;
    guint i;
    Instr *instr;
} Spot;

static Instr *instr_at(const Segment *segment, guint i)
{
    return &g_array_index(segment->instrs, Instr, i);
}

static gboolean has_value(const Instr *instr)
{
    return instr->kind == INSTR_VALUE || instr->kind == INSTR_COLLECTIVE;
}

static gboolean same_place(Place a, Place b)
{
    return a.arg == b.arg && a.idx == b.idx;
}

static gboolean names(const Segment *segment, const Instr *instr, Place place)
{
    for (int k = 0; has_value(instr) && k < instr->n_operands; k++) {
        if (same_place(program_operand(segment, instr, k), place)) {
            return TRUE;
        }
    }
    return FALSE;
}

static void move_instr(Segment *segment, guint from, guint to)
{
    Instr copy = *instr_at(segment, from);
    g_array_remove_index(segment->instrs, from);
    g_array_insert_val(segment->instrs, to > from ? to - 1 : to, copy);
}

/* ---- faults: FALSE where they do not apply ---- */

/* What has no value, no memory and no place in time is no fault when it is missing: host time alone, and kernels whose
 * sum is priced elsewhere. */
static gboolean removed(Spot *spot)
{
    if (spot->instr->kind == INSTR_HOST || (spot->instr->kind == INSTR_COMPUTE && spot->instr->label == LABEL_OPTIMIZER)) {
        return FALSE;
    }
    g_array_remove_index(spot->segment->instrs, spot->i);
    return TRUE;
}

/* Twice the same is the same for what overwrites: only what adds, frees, or is counted. */
static gboolean doubled(Spot *spot)
{
    Instr copy = *spot->instr;
    gboolean adds = copy.kind == INSTR_VALUE &&
                    (copy.action == VALUE_LOSS_SUM || copy.action == VALUE_LAYER_LOSS || copy.action == VALUE_PASS_COUNTS ||
                     copy.action == VALUE_UPDATE ||
                     (copy.action == VALUE_ADD && same_place(program_operand(spot->segment, &copy, 0), program_operand(spot->segment, &copy, 2))));
    gboolean sums = copy.kind == INSTR_COLLECTIVE && copy.coll == COLL_all_reduce;
    gboolean counts = copy.kind == INSTR_ALLOC || copy.kind == INSTR_FREE || copy.kind == INSTR_MOVE || copy.kind == INSTR_MARK ||
                      copy.kind == INSTR_HOST_SYNC || (copy.kind == INSTR_COMPUTE && copy.label != LABEL_OPTIMIZER);
    if (!adds && !sums && !counts) {
        return FALSE;
    }
    g_array_insert_val(spot->segment->instrs, spot->i, copy);
    return TRUE;
}

/* A WAIT behind what it protects, an ALLOC behind the first use. */
static gboolean too_late(Spot *spot)
{
    for (guint j = spot->i + 1; j < spot->segment->instrs->len; j++) {
        const Instr *next = instr_at(spot->segment, j);
        if (spot->instr->kind == INSTR_WAIT && next->stream == spot->instr->stream &&
            (next->kind == INSTR_WAIT || next->kind == INSTR_RECORD) && same_place(next->place, spot->instr->place)) {
            return FALSE; /* the same wait again */
        }
        gboolean is_needed = spot->instr->kind == INSTR_WAIT    ? has_value(next) && next->stream == spot->instr->stream
                             : spot->instr->kind == INSTR_ALLOC ? names(spot->segment, next, spot->instr->place)
                                                                : FALSE;
        if (is_needed) {
            move_instr(spot->segment, spot->i, j + 1);
            return TRUE;
        }
    }
    return FALSE;
}

/* A RECORD before what it marks, a FREE before the last use. */
static gboolean too_early(Spot *spot)
{
    for (guint j = spot->i; j-- > 0;) {
        const Instr *last = instr_at(spot->segment, j);
        gboolean is_needed = spot->instr->kind == INSTR_RECORD ? has_value(last) && last->stream == spot->instr->stream
                             : spot->instr->kind == INSTR_FREE ? names(spot->segment, last, spot->instr->place)
                                                               : FALSE;
        if (is_needed) {
            move_instr(spot->segment, spot->i, j);
            return TRUE;
        }
    }
    return FALSE;
}

static gboolean other_operand(Spot *spot, int k)
{
    if (!has_value(spot->instr) || k < 0 || k >= spot->instr->n_operands) {
        return FALSE;
    }
    Place *place = &g_array_index(spot->segment->operands, Place, spot->instr->first_operand + k);
    if (place->idx < 0) {
        return FALSE;
    }
    place->idx++;
    return TRUE;
}

static gboolean other_first_operand(Spot *spot)
{
    return other_operand(spot, 0);
}

static gboolean other_last_operand(Spot *spot)
{
    return other_operand(spot, spot->instr->n_operands - 1);
}

static gboolean operands_swapped(Spot *spot)
{
    if (!has_value(spot->instr) || spot->instr->n_operands < 2 || (spot->instr->kind == INSTR_VALUE && spot->instr->action == VALUE_ADD)) {
        return FALSE;
    }
    Place *places = &g_array_index(spot->segment->operands, Place, spot->instr->first_operand);
    int n = spot->instr->n_operands;
    Place last = places[n - 1];
    if (same_place(last, places[n - 2])) {
        return FALSE;
    }
    places[n - 1] = places[n - 2];
    places[n - 2] = last;
    return TRUE;
}

static gboolean other_group(Spot *spot)
{
    static const GroupKind others[N_GROUP_KINDS] = {
        [GROUP_DENSE] = GROUP_REPLICA, [GROUP_EXPERT] = GROUP_DENSE, [GROUP_REPLICA] = GROUP_DENSE, [GROUP_EP] = GROUP_EXPERT,
        [GROUP_WORLD] = GROUP_EXPERT};
    if (spot->instr->kind != INSTR_COLLECTIVE) {
        return FALSE;
    }
    spot->instr->group = (guint8)others[spot->instr->group];
    return TRUE;
}

static gboolean other_collective(Spot *spot)
{
    if (spot->instr->kind != INSTR_COLLECTIVE) {
        return FALSE;
    }
    spot->instr->coll = spot->instr->coll == COLL_all_gather ? COLL_all_reduce : COLL_all_gather;
    return TRUE;
}

static gboolean other_stream(Spot *spot)
{
    if (!has_value(spot->instr)) {
        return FALSE;
    }
    spot->instr->stream = spot->instr->stream == STREAM_COPY_OUT ? STREAM_COMPUTE : STREAM_COPY_OUT;
    return TRUE;
}

static gboolean other_operator(Spot *spot)
{
    gboolean is_op = spot->instr->kind == INSTR_VALUE && (spot->instr->action == VALUE_FORWARD || spot->instr->action == VALUE_BACKWARD);
    if (!is_op || graph_n_ops(spot->segment->graph) < 2) {
        return FALSE;
    }
    spot->instr->op += spot->instr->op + 1 < graph_n_ops(spot->segment->graph) ? 1 : -1;
    return TRUE;
}

static gboolean other_size(Spot *spot)
{
    if (spot->instr->kind != INSTR_ALLOC) {
        return FALSE;
    }
    spot->instr->bytes += 2;
    return TRUE;
}

static gboolean other_tag(Spot *spot)
{
    if (spot->instr->kind != INSTR_ALLOC) {
        return FALSE;
    }
    spot->instr->tag = (guint8)((spot->instr->tag + 1) % N_MEM_TAGS);
    return TRUE;
}

static gboolean other_bytes_moved(Spot *spot)
{
    if (spot->instr->kind != INSTR_COLLECTIVE) {
        return FALSE;
    }
    spot->instr->bytes += 64;
    return TRUE;
}

typedef struct Fault {
    const char *name;
    gboolean (*apply)(Spot *spot);
    gboolean first_rank_only;
} Fault;

static const Fault faults[] = {
    {"removed", removed, FALSE},
    {"doubled", doubled, FALSE},
    {"too late", too_late, FALSE},
    {"too early", too_early, FALSE},
    {"other first operand", other_first_operand, FALSE},
    {"other last operand", other_last_operand, FALSE},
    {"operands swapped", operands_swapped, FALSE},
    {"other group", other_group, FALSE},
    {"other collective", other_collective, FALSE},
    {"other stream", other_stream, FALSE},
    {"other operator", other_operator, FALSE},
    {"other size", other_size, FALSE},
    {"other tag", other_tag, FALSE},
    {"other bytes moved", other_bytes_moved, FALSE},
    {"removed on one rank", removed, TRUE},
    {"other collective on one rank", other_collective, TRUE},
    {"other size on one rank", other_size, TRUE},
};

/* ---- trials ---- */

/*
 * One trial: a fault at one instruction, of the segment that a call runs: a program lowered with other loads has other segments,
 * but the same calls.
 */
typedef struct Trial {
    const Fault *fault;
    guint call, instr;
    gboolean applied;
} Trial;

static void apply(void *self, Program *program)
{
    Trial *trial = self;
    Segment *segment = program_segment(program, g_array_index(program->calls, Call, trial->call).segment);
    Spot spot = {program, segment, trial->instr, instr_at(segment, trial->instr)};
    trial->applied = trial->fault->apply(&spot) || trial->applied;
}

static const struct {
    const char *json;
    guint stride; /* 0: only when asked for */
} plans[] = {
    /* experts over ranks and replicas, everything recomputed, loss in chunks of tokens, two micro-batches */
    {"{\"model\": {\"config\": \"qwen3-30b-a3b\", \"overrides\": {\"num_hidden_layers\": 2}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 8}, \"parallel\": {\"dp_replicate\": 2, \"ep\": 2}, \"workload\": {\"seq_len\": 5, \"global_batch\": 16}, "
    "\"memory\": {\"recompute\": \"full\"}, \"loss\": {\"seq_chunk\": 2}}",
     7},
    /* nothing recomputed, everything stays gathered, explicit prefetch */
    {"{\"model\": {\"config\": \"deepseek-v3\", \"overrides\": {\"num_hidden_layers\": 4}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 4}, \"parallel\": {\"ep\": 2, \"fsdp\": {\"reshard_after_forward\": false, \"prefetch\": \"explicit\"}}, "
    "\"workload\": {\"seq_len\": 5}, \"precision\": {\"parameters\": \"bf16\"}}",
     7},
    /* adapters, attention residuals, linear attention, kept exchanges */
    {"{\"model\": \"kimi-k3\", \"cluster\": {\"preset\": \"h200-sxm\", \"gpus_per_node\": 4}, \"parallel\": {\"ep\": 4, \"fsdp\": "
    "{\"prefetch\": \"explicit\"}}, \"workload\": {\"mode\": \"lora\", \"lora\": {\"targets\": [\"attention\", \"experts\"]}, "
    "\"seq_len\": 5}, \"memory\": {\"recompute\": \"selective\", \"keep\": [\"attention\", \"all_to_all\"]}, \"loss\": "
    "{\"vocab_chunk\": 20}}",
     11},
    /* chains of framework operators, each token once to a rank, copies of experts, matrices that change ranks */
    {"{\"model\": {\"config\": \"qwen3-30b-a3b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 4}, \"parallel\": {\"ep\": 2}, \"moe\": {\"dispatch\": \"deepep\", \"redundant_experts\": 2}, \"workload\": "
    "{\"seq_len\": 3}, \"kernels\": \"eager\", \"optimizer\": {\"kind\": \"muon\"}}",
     5},
    /* whole tensors dealt to ranks, whose owners update them for all */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
     "\"gpus_per_node\": 4}, \"parallel\": {\"ep\": 2, \"sharding\": \"zero1\"}, \"precision\": {\"parameters\": \"bf16\"}, \"optimizer\": "
     "{\"kind\": \"muon\", \"sharding\": \"layer_wise\"}, \"workload\": {\"seq_len\": 3}}",
     5},
    /* chunks of tokens that travel while others are computed */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
     "\"gpus_per_node\": 2}, \"parallel\": {\"ep\": 2}, \"moe\": {\"overlap_chunks\": 2}, \"workload\": {\"seq_len\": 4}}",
     5},
    /* balancing losses over all ranks, every token to every rank */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"parallel\": {\"ep\": 2}, \"moe\": {\"aux_loss_coeff\": 0.02, \"aux_loss_scope\": \"global_batch\", "
    "\"dispatch\": \"all_gather\"}, \"workload\": {\"seq_len\": 3, \"global_batch\": 4}}",
     5},
    /* what moves between HBM and DDR: activations, the optimizer's states */
    {"{\"model\": {\"config\": \"llama-3.1-8b\", \"overrides\": {\"num_hidden_layers\": 3}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"memory\": {\"recompute\": \"none\", \"offload_fraction\": 0.5, \"offload_min_bytes\": 1}, "
    "\"optimizer\": {\"offload\": true}, \"workload\": {\"seq_len\": 3}}",
     5},
    /* Muon's states in DDR, streamed through HBM: momentum, master copies, and what AdamW has */
    {"{\"model\": {\"config\": \"llama-3.1-8b\", \"overrides\": {\"num_hidden_layers\": 2}}, \"cluster\": {\"preset\": \"h200-sxm\", "
     "\"gpus_per_node\": 2}, \"precision\": {\"parameters\": \"bf16\"}, \"optimizer\": {\"kind\": \"muon\", \"offload\": true, "
     "\"master_weights\": true}, \"workload\": {\"seq_len\": 3}}",
     5},
    /* FP8 codes that are all there is of the weights beside the optimizer's copies */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
     "\"gpus_per_node\": 4}, \"parallel\": {\"ep\": 2, \"sharding\": \"zero1\"}, \"precision\": {\"parameters\": \"bf16\", \"gemm\": \"fp8\", "
     "\"fp8_weights\": \"primary\"}, \"optimizer\": {\"master_weights\": true}, \"workload\": {\"seq_len\": 3}}",
     7},
    /* results of operators that a cache moves, gives up and copies again */
    {"{\"model\": {\"config\": \"llama-3.1-8b\", \"overrides\": {\"num_hidden_layers\": 3}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"memory\": {\"recompute\": \"selective\", \"cache\": {\"hbm_bytes\": 0, \"ddr_bytes\": 2000000, \"window\": 1, "
    "\"policy\": \"belady\"}}, \"kernels\": \"eager\", \"workload\": {\"seq_len\": 3}}",
     5},
    /* chunks of tokens that travel while others are computed, shared experts meanwhile; selection biases that move */
    {"{\"model\": {\"config\": \"deepseek-v3\", \"overrides\": {\"num_hidden_layers\": 4}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 4}, \"parallel\": {\"ep\": 4}, \"moe\": {\"overlap_chunks\": 3, \"shared_overlap\": true, \"balance\": \"bias\"}, \"workload\": "
    "{\"seq_len\": 6}}",
     5},
    /* the same of tokens that travel as they are */
    {"{\"model\": {\"config\": \"qwen3-30b-a3b\", \"overrides\": {\"num_hidden_layers\": 2}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"parallel\": {\"ep\": 2}, \"moe\": {\"overlap_chunks\": 3, \"dispatch\": \"deepep\"}, \"workload\": "
    "{\"seq_len\": 6}, \"memory\": {\"recompute\": \"full\"}}",
     5},
    /* passes of two micro-batches side by side, each computing while rows of the other travel */
    {"{\"model\": {\"config\": \"qwen3-30b-a3b\", \"overrides\": {\"num_hidden_layers\": 2}}, \"cluster\": {\"preset\": \"h200-sxm\", "
     "\"gpus_per_node\": 2}, \"parallel\": {\"ep\": 2, \"sharding\": \"zero1\"}, \"precision\": {\"parameters\": \"bf16\"}, \"moe\": "
     "{\"overlap_micro_batches\": true, \"dispatch\": \"deepep\"}, \"workload\": {\"seq_len\": 3, \"global_batch\": 6}}",
     5},
    /* a dense model, several micro-batches */
    {"{\"model\": {\"config\": \"llama-3.1-8b\", \"overrides\": {\"num_hidden_layers\": 2}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"workload\": {\"seq_len\": 5, \"global_batch\": 6}}",
     1},
    /* the smallest with experts over ranks, replicas, recomputation and loss chunks */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 4}, \"parallel\": {\"dp_replicate\": 2, \"ep\": 2}, \"workload\": {\"seq_len\": 2}, \"memory\": "
    "{\"recompute\": \"full\"}, \"loss\": {\"seq_chunk\": 1}}",
     5},
    /* a balancing loss over all ranks and micro-batches, and a z-loss */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"workload\": {\"seq_len\": 3, \"global_batch\": 4}, \"moe\": {\"aux_loss_coeff\": 0.3, "
    "\"aux_loss_scope\": \"global_batch\", \"z_loss_coeff\": 0.1}, \"memory\": {\"recompute\": \"full\"}}",
     1},
    /* an indexer that learns */
    {"{\"model\": {\"config\": \"deepseek-v3.2-exp\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 2}, \"workload\": {\"seq_len\": 4}, \"loss\": {\"index_kl_coeff\": 1}}",
     1},
    /* one rank */
    {"{\"model\": {\"config\": \"mixtral-8x7b\", \"overrides\": {\"num_hidden_layers\": 1}}, \"cluster\": {\"preset\": \"h200-sxm\", "
    "\"gpus_per_node\": 1}, \"workload\": {\"seq_len\": 5, \"global_batch\": 2}, \"precision\": {\"reduce\": \"bf16\"}}",
     1},
};

/* What an instruction is, for the choice of places: same class, same thing. */
static char *class_of(const Segment *segment, const Instr *instr)
{
    int what = instr->kind == INSTR_VALUE        ? instr->action
               : instr->kind == INSTR_COLLECTIVE ? (int)instr->coll * N_GROUP_KINDS + instr->group
               : instr->kind == INSTR_ALLOC      ? instr->tag
               : instr->kind == INSTR_COMPUTE    ? (instr->label < N_OPS ? 0 : instr->label)
                                                 : instr->place.idx * (instr->place.arg == ARG_GLOBAL);
    g_auto(GStrv) words = g_strsplit(segment->name, " kind ", 2); /* "forward of layer kind 2" */
    return g_strdup_printf("%s/%d/%d/%d", words[0], instr->kind, what, instr->stream);
}

typedef struct Tally {
    int n, n_caught, n_harmless, n_missed;
    GHashTable *orders; /* what orders streams: fault, kind, stream, token: caught once? */
} Tally;

static gboolean is_order(const Instr *instr)
{
    return instr->kind == INSTR_RECORD || instr->kind == INSTR_WAIT;
}

/* Notes a fault of what orders streams. */
static void note_order(Tally *tally, const Fault *fault, const Instr *instr, gboolean caught)
{
    char *key = g_strdup_printf("%s: %s of token %d on stream %d", fault->name, instr->kind == INSTR_RECORD ? "record" : "wait",
                                instr->place.arg == ARG_GLOBAL ? instr->place.idx : -1, instr->stream);
    gboolean before = GPOINTER_TO_INT(g_hash_table_lookup(tally->orders, key));
    g_hash_table_replace(tally->orders, key, GINT_TO_POINTER(before || caught));
}

/* Whether a fault is noticed; if not, how many pairs of accesses were found in order, by clocks and by sets. */
static gboolean is_caught(json_t *plan, Trial *trial, int64_t *ret_n_ordered)
{
    PlanMutation mutation = {apply, trial, trial->fault->first_rank_only};
    PlanProof proof;
    g_autoptr(GError) error = NULL;
    /* parameters that stay are renewed for the next step */
    gboolean stays = json_object_get(json_object_get(plan, "parallel"), "sharding") != NULL;
    gboolean passed = drawn_prove(plan, stays ? 2 : 1, &mutation, &proof, NULL, &error);
    *ret_n_ordered = passed ? proof.n_ordered : 0;
    plan_proof_clear(&proof);
    return !passed;
}

/* Whether that settles its class: where a fault was none, the next place is tried. */
static gboolean try_one(json_t *plan, const Program *program, Trial *trial, Tally *tally)
{
    int64_t n_ordered;
    gboolean caught = is_caught(plan, trial, &n_ordered);
    if (!trial->applied) {
        return FALSE;
    }
    const Segment *segment = program_segment(program, g_array_index(program->calls, Call, trial->call).segment);
    const Instr *instr = instr_at(segment, trial->instr);
    tally->n++;
    tally->n_caught += caught;
    if (is_order(instr)) {
        note_order(tally, trial->fault, instr, caught);
    }
    if (!caught && is_order(instr) && n_ordered > 0) {
        tally->n_harmless++;
    } else if (!caught) {
        tally->n_missed++;
        print_message("# not noticed: %s: %s, instruction %u: kind %d, action %d, stream %d, place %d %d, op %d, label %d\n",
                      trial->fault->name, segment->name, trial->instr, instr->kind, instr->action, instr->stream, instr->place.arg,
                      instr->place.idx, instr->op, instr->label);
    }
    return caught || !is_order(instr);
}

/* The first call that runs a segment. */
static guint call_of(const Program *program, int segment)
{
    guint c = 0;
    while (g_array_index(program->calls, Call, c).segment != segment) {
        c++;
    }
    return c;
}

static int per_class = 1; /* places of a class and fault */

/* A plan under test, and a program of it to see on whether a fault applies. */
typedef struct Subject {
    json_t *object;
    Plan *plan;
    ModelGraph *graphs;
    Routing *routing;
    Program *program, *scratch;
    guint stride; /* one of so many classes is tried */
    Tally *tally;
} Subject;

static gboolean applies(Subject *subject, Trial *trial)
{
    apply(trial, subject->scratch);
    if (trial->applied) {
        program_free(subject->scratch);
        subject->scratch = lower_plan(subject->plan, subject->graphs, subject->routing, 0);
    }
    return trial->applied;
}

static void try_segment(Subject *subject, int segment, const Fault *fault, GHashTable *seen)
{
    const Segment *instrs = program_segment(subject->program, segment);
    guint call = call_of(subject->program, segment);
    for (guint i = 0; i < instrs->instrs->len; i++) {
        char *class = class_of(instrs, instr_at(instrs, i));
        int n = GPOINTER_TO_INT(g_hash_table_lookup(seen, class));
        Trial trial = {fault, call, i, FALSE};
        gboolean is_chosen = (g_str_hash(class) + (guint)(fault - faults)) % subject->stride == 0;
        if (n < per_class && (is_chosen || is_order(instr_at(instrs, i))) && applies(subject, &trial)) {
            gboolean settled = try_one(subject->object, subject->program, &trial, subject->tally);
            n += settled;
        }
        g_hash_table_replace(seen, class, GINT_TO_POINTER(n));
    }
}

static void subject_open(Subject *subject, const char *json)
{
    ShrinkReport reduced;
    *subject = (Subject){.object = json_loads(json, 0, NULL)};
    subject->plan = plan_from_json(subject->object, "plan", NULL, NULL);
    assert_non_null(subject->plan);
    shrink_plan(subject->plan, &reduced);
    subject->graphs = lower_graphs(subject->plan);
    subject->routing = plan_proof_routing(subject->plan);
    subject->program = lower_plan(subject->plan, subject->graphs, subject->routing, 0);
    subject->scratch = lower_plan(subject->plan, subject->graphs, subject->routing, 0);
}

static void subject_close(Subject *subject)
{
    program_free(subject->program);
    program_free(subject->scratch);
    routing_free(subject->routing);
    model_graph_free(subject->graphs);
    plan_free(subject->plan);
    json_decref(subject->object);
}

static void try_plan(const char *json, guint stride, Tally *tally)
{
    Subject subject;
    subject_open(&subject, json);
    subject.stride = stride;
    subject.tally = tally;
    for (size_t f = 0; f < G_N_ELEMENTS(faults); f++) {
        g_autoptr(GHashTable) seen = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL);
        for (guint s = 0; s < subject.program->segments->len; s++) {
            try_segment(&subject, (int)s, &faults[f], seen);
        }
    }
    subject_close(&subject);
}

static size_t only = G_MAXSIZE; /* one plan alone */

static void test_faults(void **state)
{
    Tally tally = {.orders = g_hash_table_new_full(g_str_hash, g_str_equal, g_free, NULL)};
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(plans); i++) {
        if (only == i || (only == G_MAXSIZE && plans[i].stride > 0)) {
            try_plan(plans[i].json, only == i ? 1 : plans[i].stride, &tally);
        }
    }
    int n_orders = 0;
    g_autoptr(GList) keys = g_list_sort(g_hash_table_get_keys(tally.orders), (GCompareFunc)strcmp);
    for (const GList *key = keys; key != NULL; key = key->next) {
        if (!GPOINTER_TO_INT(g_hash_table_lookup(tally.orders, key->data))) {
            print_message("# never noticed: %s\n", (const char *)key->data);
            n_orders++;
        }
    }
    print_message("# %d faults: %d noticed, %d proven harmless, %d neither\n", tally.n, tally.n_caught, tally.n_harmless, tally.n_missed);
    g_hash_table_unref(tally.orders);
    check_int(tally.n_missed, 0);
    check_int(tally.n_caught + tally.n_harmless, tally.n);
    check_int(only == G_MAXSIZE ? n_orders : 0, 0);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_faults)};
    per_class = argc > 1 ? (strcmp(argv[1], "all") == 0 ? G_MAXINT : (int)g_ascii_strtoull(argv[1], NULL, 10)) : 1;
    only = argc > 2 ? (size_t)g_ascii_strtoull(argv[2], NULL, 10) : G_MAXSIZE;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
