#include <string.h>

#include "workloads/lower/body.h"
#include "workloads/lower/lowering.h"

static guint key_hash(const void *data)
{
    const gint32 *words = data;
    guint hash = 0;
    for (size_t i = 0; i < SEGMENT_KEY_WORDS; i++) {
        hash = (hash ^ (guint)words[i]) * 0x9e3779b1u;
        hash ^= hash >> 15;
    }
    return hash;
}

static gboolean key_equal(const void *a, const void *b)
{
    return memcmp(a, b, sizeof(SegmentKey)) == 0;
}

GHashTable *segment_table_new(void)
{
    return g_hash_table_new_full(key_hash, key_equal, g_free, NULL);
}

/* In what of the cache a segment is known by its key: its lowering sees nothing else of the plan. -1: in no other lowering. */
static int scope_of(const Lowering *lowering, const SegmentKey *key)
{
    return key->what >= SEGMENT_SWAP ? -1 : key->what >= SEGMENT_CHUNK_FORWARD ? lowering->loss_scope : lowering->scope;
}

/* The graph without slices, or the width of a slice where the segment has the loss in it. */
SegmentKey lowering_loss_key(const Lowering *lowering, SegmentKind what)
{
    const Plan *plan = lowering->plan;
    gboolean has_loss = what >= SEGMENT_CHUNK_FORWARD || lowering->cut < 0;
    return (SegmentKey){.what = (gint32)what,
                        .kind = plan->vocab_chunk > 0,
                        .event = has_loss ? (gint32)MIN(plan->vocab_chunk, plan->model->vocab) : 0,
                        .rows = lowering->cut >= 0};
}

/* Tables are numbered as a plan makes them; to other plans only their content says something. */
static gint32 retention_number(Lowering *lowering, gint32 id)
{
    const RetentionPlan *retention = lowering->retention;
    if (id >= (gint32)lowering->retention_numbers->len) {
        g_array_set_size(lowering->retention_numbers, (guint)id + 1);
    }
    gint32 *number = &g_array_index(lowering->retention_numbers, gint32, id);
    for (int64_t i = 0; *number == 0 && i < lowering->graphs->n_layers; i++) {
        for (int k = 0; *number == 0 && k < 2; k++) {
            const Retention *table = k == 0 ? retention->made[i] : retention->found[i];
            if (table->id == id) {
                g_autoptr(GByteArray) bytes = g_byte_array_new();
                gint32 head[] = {(gint32)table->mode, table->n_ops, table->intercepts, table->has_ddr};
                g_byte_array_append(bytes, (const guint8 *)head, sizeof head);
                g_byte_array_append(bytes, (const guint8 *)table->moved, (guint)(sizeof *table->moved * (size_t)table->n_ops));
                g_byte_array_append(bytes, table->of_op, (guint)table->n_ops);
                while (bytes->len % 8 != 0) {
                    g_byte_array_append(bytes, (const guint8 *)"", 1);
                }
                *number = 1 + lower_cache_number(lowering->cache, bytes->data, bytes->len);
            }
        }
    }
    return *number;
}

/* The key by which other plans know a segment. */
static SegmentKey shared_key(Lowering *lowering, const SegmentKey *key)
{
    SegmentKey shared = *key;
    if (key->what < SEGMENT_HEAD_FORWARD) {
        shared.retention = retention_number(lowering, key->retention);
    }
    return shared;
}

static void remember(Lowering *lowering, const SegmentKey *key, int segment)
{
    g_hash_table_insert(lowering->segments, g_memdup2(key, sizeof *key), GINT_TO_POINTER(segment + 1));
}

int lowering_find_segment(Lowering *lowering, const SegmentKey *key)
{
    int found = GPOINTER_TO_INT(g_hash_table_lookup(lowering->segments, key)) - 1;
    int scope = scope_of(lowering, key);
    if (found >= 0 || scope < 0) {
        return found;
    }
    SegmentKey shared = shared_key(lowering, key);
    Segment *segment = lower_cache_get(lowering->cache, scope, (const gint32 *)&shared);
    if (segment != NULL) {
        found = program_share_segment(lowering->program, segment);
        remember(lowering, key, found);
    }
    return found;
}

/* Starts a segment for a key; the emitter then writes into it. */
int lowering_start_segment(Lowering *lowering, const SegmentKey *key, const char *name, const Graph *graph)
{
    int segment = program_add_segment(lowering->program, name, graph);
    if (key != NULL) {
        remember(lowering, key, segment);
    }
    lowering->emitter.segment = program_segment(lowering->program, segment);
    lowering->emitter.is_selective = FALSE; /* nothing is left over from the segment before */
    if (key != NULL && scope_of(lowering, key) >= 0) {
        SegmentKey shared = shared_key(lowering, key);
        lower_cache_put(lowering->cache, scope_of(lowering, key), (const gint32 *)&shared, lowering->emitter.segment);
    }
    return segment;
}

void lowering_emit_pass(Lowering *lowering, const SegmentKey *key, const LayerPass *pass, PassEmitter emit_pass)
{
    Segment *segment = pass->emitter->segment;
    if (lowering->body_scope < 0) {
        emit_pass(pass, key);
        return;
    }
    SegmentKey shared = shared_key(lowering, key);
    shared.next = pass->next != NULL; /* whatever it is: it stands behind a hook */
    shared.own_flat = pass->own_flat;
    const Segment *body = lower_cache_get_body(lowering->cache, lowering->body_scope, (const gint32 *)&shared);
    if (body == NULL) {
        Segment *made = pass->emitter->segment = body_new(segment);
        lower_cache_put_body(lowering->cache, lowering->body_scope, (const gint32 *)&shared, made);
        segment_unref(made);
        emit_pass(pass, key);
        body_end(pass->emitter);
        pass->emitter->segment = segment;
        body = made;
    }
    body_emit(body, pass);
}

Call lowering_new_call(int segment, int64_t layer, int64_t micro_batch)
{
    return (Call){.segment = segment, .layer = (gint32)layer, .micro_batch = (gint32)micro_batch};
}

void lowering_append_call(Lowering *lowering, Call call)
{
    g_array_append_val(lowering->program->calls, call);
}

Call *lowering_add_call(Lowering *lowering, int segment, int64_t layer, int64_t micro_batch)
{
    lowering_append_call(lowering, lowering_new_call(segment, layer, micro_batch));
    return &g_array_index(lowering->program->calls, Call, lowering->program->calls->len - 1);
}

void lowering_call_group(Call *call, int arg, const GroupSite *site)
{
    call->args[arg] = site->buffer;
    call->args[arg + 1] = site->token;
}

gint32 lowering_boundary(const StepSide *side, int64_t value)
{
    return side->boundary + (gint32)(value * N_BOUNDARY);
}

/*
 * Boundary values that layer i reads (n_layers: the head): without attention residuals the one before it; with them the
 * value at the start of every block so far, then the running prefix. Value 0 is the embedding, value i + 1 layer i's
 * output.
 */
int lowering_layer_sources(const Lowering *lowering, int64_t layer, int64_t *ret_values)
{
    int64_t block = lowering->plan->model->attnres_block;
    int n = 0;
    for (int64_t start = 0; block > 0 && start < layer; start += block) {
        ret_values[n++] = start;
    }
    ret_values[n++] = layer;
    return n;
}

void lowering_call_sources(const StepState *state, Call *call, const Graph *graph, int64_t layer)
{
    const Lowering *lowering = state->lowering;
    int64_t values[CALL_ARGS_MAX];
    int n = lowering_layer_sources(lowering, layer, values), source = 0;
    for (guint i = 0; i < graph->inputs->len; i++) {
        const GraphTensor *input = graph_tensor(graph, g_array_index(graph->inputs, int, i));
        gboolean is_data = input->dtype == DTYPE_INT64;
        g_assert(is_data || source < n);
        call->args[ARG_SOURCES + i] = is_data ? lowering->inputs : lowering_boundary(&state->side, values[source++]);
    }
}

/* Input of the graph that dies in its backward: the last boundary value it reads. */
int lowering_dying_source(const Graph *graph)
{
    int last = -1;
    for (guint i = 0; i < graph->inputs->len; i++) {
        if (graph_tensor(graph, g_array_index(graph->inputs, int, i))->dtype != DTYPE_INT64) {
            last = (int)i;
        }
    }
    return last;
}

LayerPass lowering_pass(Lowering *lowering, const Graph *graph, const RowCounts *rows)
{
    return (LayerPass){.emitter = &lowering->emitter,
                       .graph = graph,
                       .rows = rows,
                       .free_flat = lowering->plan->prefetch == PLAN_PREFETCH_EXPLICIT,
                       .reshard = lowering->plan->reshard_after_forward,
                       .first_micro_batch = TRUE,
                       .dying_source = -1,
                       .sources_are_shared = lowering->plan->model->attnres_block > 0,
                       .next_op = -1,
                       .cut_tensor = -1};
}
