#include "workloads/lower/host-copy.h"

void emit_alloc_host(Emitter *emitter, Place buffer, int64_t bytes, MemTag tag)
{
    emit_alloc(emitter, STREAM_COPY_OUT, buffer, bytes, tag);
    g_array_index(emitter->segment->instrs, Instr, emitter->segment->instrs->len - 1).tier = TIER_DDR;
}

static void emit_transfer(Emitter *emitter, StreamId stream, int64_t bytes)
{
    Evidence evidence = EVIDENCE_ASSUMED;
    Instr *instr = emit(emitter, INSTR_COMPUTE, stream);
    instr->label = stream == STREAM_COPY_OUT ? LABEL_SWAP_OUT : LABEL_SWAP_IN;
    instr->share = stream == STREAM_COPY_OUT ? SHARE_HOST_OUT : SHARE_HOST_IN;
    instr->n_launches = 1;
    instr->device_ns = timing_host_copy_ns(emitter->device, bytes, &evidence);
    instr->host_ns = emitter->device->eager_op_ns;
    instr->bytes = bytes;
    instr->evidence = (guint8)evidence;
}

void emit_transfer_in(Emitter *emitter, int64_t bytes)
{
    emit_transfer(emitter, STREAM_COPY_IN, bytes);
}

void emit_transfer_out(Emitter *emitter, int64_t bytes)
{
    emit_transfer(emitter, STREAM_COPY_OUT, bytes);
}

static void emit_copy(Emitter *emitter, StreamId stream, Place from, Place to, int64_t bytes)
{
    emit_transfer(emitter, stream, bytes);
    emit_value(emitter, stream, VALUE_COPY, -1);
    emit_operand(emitter, from);
    emit_operand(emitter, to);
}

void emit_copy_out(Emitter *emitter, Place from, Place to, int64_t bytes)
{
    emit_copy(emitter, STREAM_COPY_OUT, from, to, bytes);
}

void emit_copy_in(Emitter *emitter, Place from, Place to, int64_t bytes)
{
    emit_copy(emitter, STREAM_COPY_IN, from, to, bytes);
}

void emit_free_recorded(Emitter *emitter, Place buffer)
{
    emit_free(emitter, buffer);
    g_array_index(emitter->segment->instrs, Instr, emitter->segment->instrs->len - 1).recorded = TRUE;
}
