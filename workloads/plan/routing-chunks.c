#include "workloads/plan/routing-chunks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sim/base/rng.h"

/* What is left for a chunk and those behind it. */
typedef struct Cut {
    const RoutingSpec *spec;
    uint64_t index;      /* first draw of the chunk */
    int64_t size, left;  /* tokens of the chunk; of it and those behind it */
    int64_t *rest;       /* [experts]: tokens that go to the expert */
} Cut;

typedef struct Remainder {
    double frac;
    int64_t expert;
} Remainder;

static int by_remainder(const void *a, const void *b)
{
    const Remainder *x = a, *y = b;
    if (x->frac != y->frac) {
        return x->frac > y->frac ? -1 : 1;
    }
    return x->expert < y->expert ? -1 : 1;
}

/* Tokens of an expert in the chunk: drawn without replacement, or expected; between what must and what can lie there. */
static double draw(const Cut *cut, int64_t expert, int64_t *ret_least, int64_t *ret_most)
{
    double n = (double)cut->size, all = (double)cut->left, share = (double)cut->rest[expert] / all;
    double variance = cut->spec->draws && cut->left > 1 ? n * share * (1 - share) * (all - n) / (all - 1) : 0;
    double noise = variance > 0 ? sqrt(variance) * rng_normal(cut->spec->seed, RNG_CHUNKS, cut->index + (uint64_t)expert) : 0;
    *ret_least = MAX(cut->rest[expert] - (cut->left - cut->size), 0);
    *ret_most = MIN(cut->rest[expert], cut->size);
    return CLAMP(n * share + noise, (double)*ret_least, (double)*ret_most);
}

/* Takes a chunk's tokens out of what is left: in sum its part of them. */
static void take(const Cut *cut, int64_t *ret_tokens)
{
    int64_t experts = cut->spec->experts, sum = 0;
    g_autofree Remainder *order = g_new(Remainder, experts);
    g_autofree int64_t *least = g_new(int64_t, experts), *most = g_new(int64_t, experts);
    for (int64_t e = 0; e < experts; e++) {
        double exact = draw(cut, e, &least[e], &most[e]);
        sum += cut->rest[e];
        ret_tokens[e] = (int64_t)floor(exact);
        order[e] = (Remainder){exact - floor(exact), e};
    }
    int64_t wanted = (int64_t)((double)sum * (double)cut->size / (double)cut->left + 1e-9);
    for (int64_t e = 0; e < experts; e++) {
        wanted -= ret_tokens[e];
    }
    qsort(order, (size_t)experts, sizeof *order, by_remainder);
    for (gboolean moved = TRUE; wanted != 0 && moved;) { /* as often as scatter asks; bounds leave room for the sum */
        moved = FALSE;
        for (int64_t i = 0; i < experts && wanted != 0; i++) {
            int64_t e = wanted > 0 ? order[i].expert : order[experts - 1 - i].expert, step = wanted > 0 ? 1 : -1;
            if (ret_tokens[e] + step <= most[e] && ret_tokens[e] + step >= least[e]) {
                ret_tokens[e] += step;
                wanted -= step;
                moved = TRUE;
            }
        }
    }
    for (int64_t e = 0; e < experts; e++) {
        cut->rest[e] -= ret_tokens[e];
    }
}

/* Chunk by chunk; what the last one has is what is left. */
static void cut_tokens(const RoutingSpec *spec, int table, int64_t source, int64_t *rest, int64_t *ret_tokens)
{
    uint64_t place = ((uint64_t)spec->group * (uint64_t)MAX(spec->n_layers, 1) + (uint64_t)table) * (uint64_t)spec->n_ranks + (uint64_t)source;
    for (int64_t c = 0; c < spec->chunks; c++) {
        int64_t first = token_chunk_start(spec->tokens, spec->chunks, c), end = token_chunk_start(spec->tokens, spec->chunks, c + 1);
        int64_t *tokens = ret_tokens + c * spec->experts;
        Cut cut = {.spec = spec,
                   .index = (place * TOKEN_CHUNKS_MAX + (uint64_t)c) * (uint64_t)spec->experts,
                   .size = end - first,
                   .left = spec->tokens - first,
                   .rest = rest};
        if (c + 1 < spec->chunks && cut.size > 0) {
            take(&cut, tokens);
        } else {
            for (int64_t e = 0; e < spec->experts; e++) {
                tokens[e] = c + 1 < spec->chunks ? 0 : rest[e];
            }
        }
    }
}

void routing_cut_source(const RoutingSpec *spec, int table, int64_t source, const int64_t *routed, int64_t capacity, int64_t *ret_kept)
{
    gboolean by_position = capacity > 0 && spec->drop == MOE_DROP_POSITION;
    g_autofree int64_t *rest = g_memdup2(routed, (gsize)spec->experts * sizeof *rest);
    for (int64_t e = 0; capacity > 0 && !by_position && e < spec->experts; e++) {
        rest[e] = MIN(rest[e], capacity);
    }
    cut_tokens(spec, table, source, rest, ret_kept);
    for (int64_t e = 0; by_position && e < spec->experts; e++) {
        int64_t room = capacity;
        for (int64_t c = 0; c < spec->chunks; c++) {
            int64_t *kept = &ret_kept[c * spec->experts + e];
            *kept = MIN(*kept, room);
            room -= *kept;
        }
    }
}
