/*
 * Order: which actions of a rank's streams are known to be done when another one runs, as sets of actions.
 *
 * The plain definition, to judge the clocks of the value interpreter by: every action is a member of a set; a stream has the
 * set of what it has done and seen, RECORD keeps a copy of that in a token, WAIT joins it to another stream, a host
 * synchronisation joins it to all streams and to what the host knows. Two accesses of a buffer exclude one another when one
 * of them writes; a buffer excludes all uses of what its memory may have been before. Of each such pair the earlier must be
 * in the set of the later one's stream, or nothing on a device keeps them apart.
 *
 * Costs as many bits as there are actions, for each stream, token and buffer: for a step or two of a reduced plan.
 */
#pragma once

#include "workloads/lower/program.h"

typedef struct Order Order;
Order *order_new(gint32 n_tokens);
void order_free(Order *order);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Order, order_free)

/* One more action of a stream; what is accessed next is accessed by it. */
void order_act(Order *order, StreamId stream);

/* Number of a stream's latest action; -1 = it has done nothing. */
gint32 order_latest(const Order *order, StreamId stream);

void order_record(Order *order, StreamId stream, gint32 token);
void order_wait(Order *order, StreamId stream, gint32 token);
void order_host_sync(Order *order, StreamId stream);

/* Whether the host knows that an action is done (-1 = there is none); all writes of a buffer. */
gboolean order_host_knows(const Order *order, gint32 action);
gboolean order_host_sees(const Order *order, gint32 buffer);

/* A buffer's life begins, with memory of a stream's pool (N_STREAMS: memory of its own). Returns its number, from 1. */
gint32 order_born(Order *order, StreamId pool);

/*
 * It ends: its memory goes to the pool, together with the uses that whoever gets it must wait for. returns = FALSE: the
 * allocator itself waits.
 */
void order_died(Order *order, gint32 buffer, StreamId pool, gboolean returns);

/* What an access would meet. */
enum { ORDER_RACE = 1, ORDER_REUSE = 2 };

/* The latest action of a stream reads or writes a buffer. 0, or what is wrong. */
guint order_access(Order *order, StreamId stream, gint32 buffer, gboolean writes);

/* Pairs that exclude one another and were found in order, memory used again counted once an access. */
int64_t order_n_pairs(const Order *order);
