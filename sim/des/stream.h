/*
 * Streams: in-order queues of activities, joined by tokens, as the streams and events of a GPU.
 *
 * A stream does one item at a time, in the order pushed. Items: work of a duration; a record, which marks a
 * token as reached; a wait for a token of any stream; a call, which only tells the caller that the stream got
 * this far; a join, which is work that starts when the streams of all members of a group have come to theirs
 * and ends for all together, when the last is through (a collective).
 *
 * Streams of one device share it (share.h); a stream without a device (a host thread) runs alone. Items may be
 * pushed before the run, and from the caller's callback while it lasts. Nothing recurses: streams that can go
 * on stand in a list, in the order in which they became able to.
 *
 * Invariants: (1) a stream waits for one thing at most; (2) a token, once reached, stays so; (3) each member
 * of a group joins it from one stream only, so a group has one rendezvous at a time.
 */
#pragma once

#include <glib.h>
#include <stdint.h>

#include "sim/des/engine.h"
#include "sim/des/share.h"
#include "sim/des/span.h"

typedef struct Streams Streams;

/* Work, of a stream alone or of a member of a join. */
typedef struct StreamWork {
    SimTime duration_ns;   /* nominal: alone on the device */
    SimTime not_before_ns; /* does not start earlier (the host has not issued it yet); 0 = no bound */
    int cls;               /* class for the device's share; ignored without a device */
    LinkLoad load;         /* of the device's links; ignored without a device */
    uint64_t tag;          /* the caller's; comes back in callbacks */
} StreamWork;

/* Work, a join or a call is done. May push items to any stream. */
typedef void (*StreamDone)(void *self, int stream, uint64_t tag, SimTime start_ns, SimTime end_ns);

/* Name of an item, for the deadlock report; caller frees. */
typedef char *(*StreamDescribe)(void *self, int stream, uint64_t tag);

/* Callbacks of a set of streams; each may be NULL. */
typedef struct StreamCallbacks {
    StreamDone done;
    StreamDescribe describe;
    void *self;
} StreamCallbacks;

/* An empty set of streams on an engine, which outlives it. */
Streams *streams_new(SimEngine *engine, const StreamCallbacks *callbacks);
void streams_free(Streams *streams);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Streams, streams_free)

/* Adds a device; returns its index. The law is borrowed. */
int streams_add_device(Streams *streams, const ShareLaw *law);

/* Adds a stream on a device (-1 = none); returns its index. The name is copied. */
int streams_add(Streams *streams, const char *name, int device);

/* Adds n tokens, not reached yet; returns the first one's index, the others follow. */
int streams_add_tokens(Streams *streams, int n);

/* Adds a group of that many members; returns its index. */
int streams_add_group(Streams *streams, int n_members);

/* Notes as spans of a lane when links slow activities of a device down (share.h). */
void streams_log_crowded(Streams *streams, int device, SpanLog *log, int lane);

/* Records every work and join with a duration in a log (borrowed; lane = stream); NULL ends it. */
void streams_set_log(Streams *streams, SpanLog *log);

/* Pushes at the end of a stream. */
void streams_push_work(Streams *streams, int stream, const StreamWork *work);
void streams_push_record(Streams *streams, int stream, int token);
void streams_push_wait(Streams *streams, int stream, int token);
void streams_push_call(Streams *streams, int stream, uint64_t tag);

/*
 * A join. key says what the members agree on (kind and size): if it differs between them, the run fails with an
 * error that names both streams. Durations may differ.
 */
void streams_push_join(Streams *streams, int stream, int group, guint32 key, const StreamWork *work);

/* When a token was reached, or -1. */
SimTime streams_token_ns(const Streams *streams, int token);

/* Items that a stream has not finished. */
size_t streams_n_pending(const Streams *streams, int stream);

/* Sum of the times from start to end of a stream's work and joins so far. */
SimTime streams_busy_ns(const Streams *streams, int stream);
