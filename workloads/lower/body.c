#include "workloads/lower/body.h"

gboolean body_hook(Emitter *emitter, HookKind kind, Hook hook, const FsdpGroup *group, const Place *grads)
{
    Segment *body = emitter->segment;
    if (body->hooks == NULL) {
        return FALSE;
    }
    hook.kind = kind;
    hook.n_instrs = body->instrs->len;
    hook.n_operands = body->operands->len;
    hook.phase = emitter->phase;
    hook.is_backward = emitter->is_backward;
    hook.is_selective = emitter->is_selective;
    hook.first_grad = body->grads->len;
    hook.n_grads = grads != NULL ? (guint)group->n_trainable : 0;
    if (hook.n_grads > 0) {
        g_array_append_vals(body->grads, grads, hook.n_grads);
    }
    g_array_append_val(body->hooks, hook);
    return TRUE;
}

Segment *body_new(const Segment *like)
{
    Segment *body = segment_new(like->name, like->graph, FALSE);
    body->hooks = g_array_new(FALSE, TRUE, sizeof(Hook));
    body->grads = g_array_new(FALSE, TRUE, sizeof(Place));
    return body;
}

void body_end(Emitter *emitter)
{
    body_hook(emitter, HOOK_END, (Hook){.last = -1}, NULL, NULL);
}

/* Appends the body's instructions up to a hook; their operands lie elsewhere now. */
static void emit_part(Segment *segment, const Segment *body, guint *n_instrs, guint *n_operands, const Hook *hook)
{
    guint first = segment->instrs->len;
    gint32 shift = (gint32)segment->operands->len - (gint32)*n_operands;
    if (hook->n_operands > *n_operands) {
        g_array_append_vals(segment->operands, &g_array_index(body->operands, Place, *n_operands), hook->n_operands - *n_operands);
    }
    if (hook->n_instrs > *n_instrs) {
        g_array_append_vals(segment->instrs, &g_array_index(body->instrs, Instr, *n_instrs), hook->n_instrs - *n_instrs);
    }
    for (guint i = first; i < segment->instrs->len; i++) {
        Instr *instr = &g_array_index(segment->instrs, Instr, i);
        if (instr->kind == INSTR_VALUE || instr->kind == INSTR_COLLECTIVE) {
            instr->first_operand += shift;
        }
    }
    *n_instrs = hook->n_instrs;
    *n_operands = hook->n_operands;
}

static void emit_hook(const Segment *body, const Hook *hook, const LayerPass *pass)
{
    Emitter *emitter = pass->emitter;
    const FsdpGroup *group = hook->arg == ARG_EXPERTS ? pass->experts : hook->arg == ARG_NEXT ? pass->next : pass->group;
    emitter->phase = hook->phase;
    emitter->is_backward = hook->is_backward;
    emitter->is_selective = hook->is_selective;
    switch (hook->kind) {
    case HOOK_UNSHARD:
        fsdp_unshard(emitter, group, hook->arg, hook->arg_token);
        return;
    case HOOK_WAIT:
        fsdp_wait(emitter, group, hook->arg, hook->arg_token, hook->flag, hook->last);
        return;
    case HOOK_RESHARD:
        fsdp_reshard(emitter, group, hook->arg);
        return;
    case HOOK_REDUCE:
        fsdp_reduce(emitter, group, hook->arg, &g_array_index(body->grads, Place, hook->first_grad), hook->last, hook->flag);
        return;
    case HOOK_END:
    default:
        return;
    }
}

void body_emit(const Segment *body, const LayerPass *pass)
{
    enum { HOOK_INSTRS = 96 }; /* about what hooks take */
    Segment *segment = pass->emitter->segment;
    guint n_instrs = 0, n_operands = 0;
    g_assert(segment->instrs->len == 0);
    g_array_unref(segment->instrs);
    segment->instrs = g_array_sized_new(FALSE, TRUE, sizeof(Instr), body->instrs->len + HOOK_INSTRS);
    for (guint i = 0; i < body->hooks->len; i++) {
        const Hook *hook = &g_array_index(body->hooks, Hook, i);
        emit_part(segment, body, &n_instrs, &n_operands, hook);
        emit_hook(body, hook, pass);
    }
}
