/*
 * Bodies: what the pass of a layer does apart from how its parameters are sharded.
 *
 * Plans that differ in shards alone (HSDP replicas, FSDP ranks) gather and reduce other buffers at other prices, but what
 * stands between is the same to the byte. A body is a segment that has places for the hooks of FSDP groups (fsdp.h) instead of
 * their instructions; a segment of a plan is its body with the hooks of the plan's own groups. Bodies stand in the cache of
 * segments, in a scope of their own.
 *
 * While a body is the emitter's segment, fsdp_unshard(), fsdp_wait(), fsdp_reshard() and fsdp_reduce() leave hooks in it.
 */
#pragma once

#include "workloads/lower/layer.h"

typedef enum HookKind { HOOK_UNSHARD, HOOK_WAIT, HOOK_RESHARD, HOOK_REDUCE, HOOK_END } HookKind;

/* A hook, and the emitter as it was there. */
typedef struct Hook {
    HookKind kind;
    guint n_instrs, n_operands; /* of the body in front of it */
    gint32 arg, arg_token;      /* ARG_GROUP, ARG_EXPERTS, ARG_NEXT: whose group of the pass */
    gint32 last;                /* argument whose buffer dies here, or -1 */
    gboolean flag;              /* WAIT: free_flat; REDUCE: first */
    guint first_grad, n_grads;  /* REDUCE: in the list of the body's gradients */
    Phase phase;
    gboolean is_backward, is_selective;
} Hook;

/* Leaves a hook if the emitter's segment is a body; grads: one for each parameter of the group that has one, or NULL. */
gboolean body_hook(Emitter *emitter, HookKind kind, Hook hook, const FsdpGroup *group, const Place *grads);

/* An empty body; the emitter then writes into it. Its reference is the caller's. */
Segment *body_new(const Segment *like);

/* Ends the body that is the emitter's segment. */
void body_end(Emitter *emitter);

/* Appends a body to the emitter's segment, with the hooks of the pass's groups. */
void body_emit(const Segment *body, const LayerPass *pass);
