#include "workloads/run/order.h"

#include <string.h>

/* A set of actions. */
typedef struct ActionSet {
    guint64 *words;
    gint32 n_words, capacity;
} ActionSet;

typedef struct Access {
    gint32 action;
    gboolean writes;
} Access;

typedef struct Life {
    ActionSet before; /* uses of what its memory was */
    GArray *accesses; /* Access; NULL = the life is over */
} Life;

struct Order {
    gint32 n_actions;
    gint32 latest[N_STREAMS];
    ActionSet streams[N_STREAMS], pools[N_STREAMS], host;
    ActionSet *tokens;
    gint32 n_tokens;
    GArray *lives; /* Life */
    int64_t n_pairs;
};

static void set_grow(ActionSet *set, gint32 n_words)
{
    if (n_words > set->capacity) {
        set->capacity = MAX(n_words, 2 * set->capacity);
        set->words = g_realloc_n(set->words, (gsize)set->capacity, sizeof *set->words);
        memset(set->words + set->n_words, 0, (gsize)(set->capacity - set->n_words) * sizeof *set->words);
    }
    set->n_words = MAX(set->n_words, n_words);
}

static void set_add(ActionSet *set, gint32 action)
{
    set_grow(set, action / 64 + 1);
    set->words[action / 64] |= G_GUINT64_CONSTANT(1) << action % 64;
}

static gboolean set_has(const ActionSet *set, gint32 action)
{
    return action / 64 < set->n_words && (set->words[action / 64] >> action % 64 & 1u) != 0;
}

static void set_join(ActionSet *set, const ActionSet *other)
{
    set_grow(set, other->n_words);
    for (gint32 i = 0; i < other->n_words; i++) {
        set->words[i] |= other->words[i];
    }
}

static gboolean set_holds(const ActionSet *set, const ActionSet *other)
{
    for (gint32 i = 0; i < other->n_words; i++) {
        if ((other->words[i] & ~(i < set->n_words ? set->words[i] : 0)) != 0) {
            return FALSE;
        }
    }
    return TRUE;
}

static void set_clear(ActionSet *set)
{
    g_clear_pointer(&set->words, g_free);
    set->n_words = set->capacity = 0;
}

static void life_clear(void *data)
{
    Life *life = data;
    set_clear(&life->before);
    g_clear_pointer(&life->accesses, g_array_unref);
}

Order *order_new(gint32 n_tokens)
{
    Order *order = g_new0(Order, 1);
    memset(order->latest, 0xff, sizeof order->latest);
    order->n_tokens = n_tokens;
    order->tokens = g_new0(ActionSet, n_tokens);
    order->lives = g_array_new(FALSE, TRUE, sizeof(Life));
    g_array_set_clear_func(order->lives, life_clear);
    return order;
}

void order_free(Order *order)
{
    if (order == NULL) {
        return;
    }
    for (int s = 0; s < N_STREAMS; s++) {
        set_clear(&order->streams[s]);
        set_clear(&order->pools[s]);
    }
    for (gint32 t = 0; t < order->n_tokens; t++) {
        set_clear(&order->tokens[t]);
    }
    set_clear(&order->host);
    g_free(order->tokens);
    g_array_unref(order->lives);
    g_free(order);
}

void order_act(Order *order, StreamId stream)
{
    order->latest[stream] = order->n_actions++;
    set_add(&order->streams[stream], order->latest[stream]);
}

gint32 order_latest(const Order *order, StreamId stream)
{
    return order->latest[stream];
}

void order_record(Order *order, StreamId stream, gint32 token)
{
    ActionSet *kept = &order->tokens[token];
    if (kept->n_words > 0) {
        memset(kept->words, 0, (gsize)kept->n_words * sizeof *kept->words);
    }
    set_join(kept, &order->streams[stream]);
}

void order_wait(Order *order, StreamId stream, gint32 token)
{
    set_join(&order->streams[stream], &order->tokens[token]);
}

void order_host_sync(Order *order, StreamId stream)
{
    set_join(&order->host, &order->streams[stream]);
    for (int s = 0; s < N_STREAMS; s++) {
        if (s != (int)stream) {
            set_join(&order->streams[s], &order->streams[stream]);
        }
    }
}

gboolean order_host_knows(const Order *order, gint32 action)
{
    return action < 0 || set_has(&order->host, action);
}

gint32 order_born(Order *order, StreamId pool)
{
    Life life = {.accesses = g_array_new(FALSE, FALSE, sizeof(Access))};
    if (pool < N_STREAMS) {
        set_join(&life.before, &order->pools[pool]);
    }
    g_array_append_val(order->lives, life);
    return (gint32)order->lives->len;
}

static Life *life_of(const Order *order, gint32 buffer)
{
    g_assert(buffer > 0 && buffer <= (gint32)order->lives->len);
    return &g_array_index(order->lives, Life, buffer - 1);
}

void order_died(Order *order, gint32 buffer, StreamId pool, gboolean returns)
{
    Life *life = life_of(order, buffer);
    for (guint i = 0; returns && i < life->accesses->len; i++) {
        set_add(&order->pools[pool], g_array_index(life->accesses, Access, i).action);
    }
    life_clear(life);
}

gboolean order_host_sees(const Order *order, gint32 buffer)
{
    const Life *life = life_of(order, buffer);
    for (guint i = 0; i < life->accesses->len; i++) {
        const Access *access = &g_array_index(life->accesses, Access, i);
        if (access->writes && !order_host_knows(order, access->action)) {
            return FALSE;
        }
    }
    return TRUE;
}

guint order_access(Order *order, StreamId stream, gint32 buffer, gboolean writes)
{
    const Life *life = life_of(order, buffer);
    const ActionSet *done = &order->streams[stream];
    Access access = {order->latest[stream], writes};
    guint wrong = 0;
    for (guint i = 0; i < life->accesses->len; i++) {
        const Access *earlier = &g_array_index(life->accesses, Access, i);
        gboolean excludes = (writes || earlier->writes) && earlier->action != access.action;
        wrong |= excludes && !set_has(done, earlier->action) ? ORDER_RACE : 0;
        order->n_pairs += excludes;
    }
    wrong |= set_holds(done, &life->before) ? 0 : ORDER_REUSE;
    order->n_pairs += life->before.n_words > 0;
    g_array_append_val(life->accesses, access);
    return wrong;
}

int64_t order_n_pairs(const Order *order)
{
    return order->n_pairs;
}
