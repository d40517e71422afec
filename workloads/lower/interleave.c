#include "workloads/lower/interleave.h"

#include "workloads/lower/frame.h"

/* Parts of a layer's pass that are still to be appended. */
typedef struct Parts {
    Call call; /* of the next one */
    int n;
} Parts;

static void start_part(void *owner)
{
    Lowering *lowering = owner;
    Program *program = lowering->program;
    gint32 first = (gint32)lowering->n_parts->len - 1, *n = &g_array_index(lowering->n_parts, gint32, first);
    g_autofree char *name = g_strdup_printf("%s, part %d", program_segment(program, first)->name, ++*n);
    int segment = program_add_segment(program, name, program_segment(program, first)->graph);
    g_assert(segment == first + *n - 1);
    lowering->emitter.segment = program_segment(program, segment);
}

void lowering_cut_pass(Lowering *lowering, LayerPass *pass)
{
    if (lowering->plan->moe.overlap_micro_batches) {
        g_array_set_size(lowering->n_parts, lowering->program->segments->len);
        g_array_index(lowering->n_parts, gint32, lowering->n_parts->len - 1) = 1;
        pass->next_part = start_part;
        pass->owner = lowering;
    }
}

static Parts parts_of(const Lowering *lowering, Call first)
{
    gboolean is_cut = (guint)first.segment < lowering->n_parts->len;
    return (Parts){first, is_cut ? g_array_index(lowering->n_parts, gint32, first.segment) : 1};
}

static void append_part(Lowering *lowering, Parts *parts)
{
    if (parts->n > 0) {
        lowering_append_call(lowering, parts->call);
        parts->call.segment++;
        parts->n--;
    }
}

void lowering_append_pass(Lowering *lowering, Call first)
{
    for (Parts parts = parts_of(lowering, first); parts.n > 0;) {
        append_part(lowering, &parts);
    }
}

/* Layers i of one and n - 1 - i of the other. */
static void append_layers(StepState *forward, StepState *backward)
{
    Lowering *lowering = forward->lowering;
    int64_t n_layers = lowering->graphs->n_layers;
    Parts f = {.n = 0};
    for (int64_t i = 0; i < n_layers; i++) {
        Parts b = parts_of(lowering, lowering_backward_layer(backward, n_layers - 1 - i));
        append_part(lowering, &b);
        append_part(lowering, &f); /* what is left of the layer before */
        f = parts_of(lowering, lowering_forward_layer(forward, i));
        for (int n_left = f.n > 1; f.n > n_left || b.n > 0;) {
            if (f.n > n_left) {
                append_part(lowering, &f);
            }
            append_part(lowering, &b);
        }
    }
    append_part(lowering, &f);
}

static void append_head(StepState *state)
{
    lowering_part(state, PART_HEAD_FORWARD);
    lowering_part(state, PART_BETWEEN);
}

static StepState at_micro_batch(const StepState *state, int64_t micro_batch)
{
    StepState at = *state;
    at.micro_batch = micro_batch;
    at.side = state->lowering->sides[micro_batch % 2];
    return at;
}

/* Forward of a micro-batch, backward of the one before it. */
static void append_pair(const StepState *state, int64_t micro_batch)
{
    StepState forward = at_micro_batch(state, micro_batch), backward = at_micro_batch(state, micro_batch - 1);
    lowering_part(&backward, PART_HEAD_BACKWARD);
    lowering_begin_forward(&forward);
    append_layers(&forward, &backward);
    lowering_end_backward(&backward);
    append_head(&forward);
}

void lower_interleaved(StepState *state)
{
    Program *program = state->lowering->program;
    int64_t n = state->lowering->plan->n_micro_batches, next = 1;
    lowering_part(state, PART_TO_HEAD);
    append_head(state);
    append_pair(state, next++); /* it makes the gradients that later ones add to */
    if (n - next >= 2) {
        program->repeat = (CallRepeat){.first = program->calls->len, .times = (n - next) / 2, .micro_batches = 2};
        append_pair(state, next);
        append_pair(state, next + 1);
        program->repeat.n = program->calls->len - program->repeat.first;
        next += 2 * program->repeat.times;
    }
    if (next < n) {
        append_pair(state, next);
    }
    StepState last = at_micro_batch(state, n - 1);
    lowering_part(&last, PART_HEAD_BACKWARD);
    lowering_part(&last, PART_FROM_HEAD);
}
