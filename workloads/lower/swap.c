/*
 * Swap: the copies of a layer's activations between HBM and DDR, and what becomes of their memory.
 *
 * An operator's copies share two tokens at ARG_SWAP: out (the copies to DDR are done) and in (what came back is there).
 * Copies out wait for the compute stream; fetches wait for the copies out of the same operator and, unless the plan
 * moves tensors by hooks, for what compute has done so far: memory that it has freed may be given to them, and a fetch
 * starts no earlier than its place in the step says.
 */
#include "workloads/lower/host-copy.h"
#include "workloads/lower/walk.h"

static Place out_token(int op)
{
    return (Place){ARG_SWAP, 2 * op};
}

static Place in_token(int op)
{
    return (Place){ARG_SWAP, 2 * op + 1};
}

/* A slot as the forward pass makes it. */
static Place made_slot(const Walk *walk, int op, int slot)
{
    const Op *info = graph_op(walk->graph, op);
    if (slot >= SLOT_AUX) {
        return (Place){ARG_FRAME, frame_aux(walk->graph, op, slot - SLOT_AUX)};
    }
    int tensor = slot < SLOT_OUTPUT ? info->inputs[slot] : info->outputs[slot - SLOT_OUTPUT];
    return walk_tensor(walk, walk->storage[tensor]);
}

Place walk_slot(const Walk *walk, int op, int slot)
{
    gboolean moved = walk->moved[op] >> slot & 1u;
    return moved ? (Place){ARG_FRAME, frame_back(walk->graph, op, slot)} : made_slot(walk, op, slot);
}

/* What an operator's slot takes, and what its memory is called. */
static int64_t slot_bytes(const Walk *walk, int op, int slot, MemTag *ret_tag)
{
    const Op *info = graph_op(walk->graph, op);
    *ret_tag = MEM_ACTIVATIONS;
    if (slot >= SLOT_AUX) {
        return op_aux_bytes(&walk->saved[op].aux[slot - SLOT_AUX], walk->pass->rows);
    }
    int tensor = slot < SLOT_OUTPUT ? info->inputs[slot] : info->outputs[slot - SLOT_OUTPUT];
    const GraphTensor *storage = graph_tensor(walk->graph, walk->storage[tensor]);
    *ret_tag = storage->tag;
    return graph_tensor_bytes(storage, walk->pass->rows);
}

/* Slots of an operator that are one entry: saved tensors that move, or all results. */
static guint64 entry_slots(const Walk *walk, int op)
{
    guint64 slots = walk->moved[op];
    if (walk->mode != SAVE_ALL) {
        (void)retention_entry(walk->graph, walk->pass->rows, op, &slots);
    }
    return slots;
}

static void wait_for_compute(Emitter *emitter, StreamId stream)
{
    emit_record(emitter, STREAM_COMPUTE, (Place){ARG_GLOBAL, TOKEN_SWAP_READY});
    emit_wait(emitter, stream, (Place){ARG_GLOBAL, TOKEN_SWAP_READY});
}

static void copy_out(const Walk *walk, int op)
{
    Emitter *emitter = walk->pass->emitter;
    guint64 slots = entry_slots(walk, op);
    wait_for_compute(emitter, STREAM_COPY_OUT);
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (slots >> slot & 1u) {
            MemTag tag;
            int64_t bytes = slot_bytes(walk, op, slot, &tag);
            Place host = {ARG_FRAME, frame_host(walk->graph, op, slot)};
            emit_alloc_host(emitter, host, bytes, tag);
            emit_copy_out(emitter, made_slot(walk, op, slot), host, bytes);
        }
    }
    emit_record(emitter, STREAM_COPY_OUT, out_token(op));
}

gboolean walk_swaps_out(const Walk *walk, int op)
{
    const Retention *retention = walk->pass->retention;
    gboolean results = walk->mode == SAVE_SELECTED && retention != NULL && retention->of_op[op] == KEEP_DDR;
    return !walk->in_recompute && (results || walk->moved[op] != 0);
}

void walk_swap_out(const Walk *walk, int op)
{
    if (walk_swaps_out(walk, op)) {
        copy_out(walk, op);
    }
}

void walk_swap_wait(const Walk *walk, int op)
{
    const Retention *retention = walk->pass->retention;
    if (retention != NULL && (retention->of_op[op] == KEEP_DDR || walk->moved[op] != 0)) {
        emit_wait(walk->pass->emitter, STREAM_COMPUTE, in_token(op));
    }
}

/* Results of an operator are given up. */
static void free_entry(const Walk *walk, int op)
{
    guint64 slots = entry_slots(walk, op);
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (slots >> slot & 1u) {
            emit_free(walk->pass->emitter, made_slot(walk, op, slot));
        }
    }
}

static void forget(const Walk *walk, int op)
{
    guint64 slots = entry_slots(walk, op);
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (slots >> slot & 1u) {
            emit_free_recorded(walk->pass->emitter, (Place){ARG_FRAME, frame_host(walk->graph, op, slot)});
        }
    }
}

static void fetch(const Walk *walk, int op)
{
    Emitter *emitter = walk->pass->emitter;
    guint64 slots = entry_slots(walk, op);
    emit_wait(emitter, STREAM_COPY_IN, out_token(op));
    for (int slot = 0; slot < N_SLOTS; slot++) {
        if (slots >> slot & 1u) {
            MemTag tag;
            int64_t bytes = slot_bytes(walk, op, slot, &tag);
            Place host = {ARG_FRAME, frame_host(walk->graph, op, slot)}, back = walk_slot(walk, op, slot);
            emit_alloc(emitter, STREAM_COPY_IN, back, bytes, walk_result_tag(walk, op, tag));
            emit_copy_in(emitter, host, back, bytes);
            emit_free_recorded(emitter, host);
        }
    }
    emit_record(emitter, STREAM_COPY_IN, in_token(op));
}

static void swap_one(const Walk *walk, SwapAction action, int op)
{
    switch (action) {
    case SWAP_RELEASE:
        emit_wait(walk->pass->emitter, STREAM_COMPUTE, out_token(op));
        free_entry(walk, op);
        break;
    case SWAP_FORGET:
        forget(walk, op);
        break;
    case SWAP_DROP:
        free_entry(walk, op);
        break;
    case SWAP_OUT:
        copy_out(walk, op);
        break;
    case SWAP_FETCH:
    default:
        fetch(walk, op);
        break;
    }
}

void layer_swap(const LayerPass *pass, SwapAction action, const guint8 *ops)
{
    Walk walk;
    int n_ops = graph_n_ops(pass->graph);
    walk_init(&walk, pass, pass->retention->mode);
    pass->emitter->phase = action == SWAP_FETCH ? PHASE_BACKWARD : PHASE_FORWARD;
    pass->emitter->is_backward = action == SWAP_FETCH;
    pass->emitter->is_selective = FALSE;
    if (action == SWAP_FETCH && !pass->hooks) {
        wait_for_compute(pass->emitter, STREAM_COPY_IN);
    }
    /* a recomputation needs results in the order of the operators, a backward pass in the reverse one */
    for (int i = 0; i < n_ops; i++) {
        int op = walk.mode == SAVE_ALL ? n_ops - 1 - i : i;
        if (ops[op]) {
            swap_one(&walk, action, op);
        }
    }
    walk_clear(&walk);
}
