/*
 * Random numbers without a state: a draw is a function of (seed, stream, index).
 *
 * Whoever draws names its stream and numbers its draws; so one more draw in one place shifts no other, and
 * draws can be made in any order. Equal arguments give equal numbers on every machine (rng_gumbel and
 * rng_normal up to the last bit of libm's log, sqrt and cos).
 */
#pragma once

#include <glib.h>
#include <stdint.h>

/* Who draws. Add at the end: a stream's place is part of its numbers. */
typedef enum RngStream {
    RNG_TEST,      /* tests */
    RNG_VALUES,    /* tensors of samples and virtual ranks */
    RNG_ROUTING,   /* which experts a token takes */
    RNG_EXPERTS,   /* which expert has which popularity */
    RNG_PLACEMENT, /* experts on ranks */
    RNG_TOKENS,    /* token ids and document lengths */
    RNG_PLANS,     /* fields of drawn plans */
    RNG_CHUNKS,    /* which chunk a token lies in */
} RngStream;

/* 64 random bits. */
uint64_t rng_u64(uint64_t seed, RngStream stream, uint64_t index);

/* Uniform in (0, 1), ends excluded. */
double rng_uniform(uint64_t seed, RngStream stream, uint64_t index);

/* Uniform in 0 … n - 1, n > 0, without bias. */
uint64_t rng_below(uint64_t seed, RngStream stream, uint64_t index, uint64_t n);

/* Standard Gumbel: -log(-log(uniform)); the largest of scores with this noise is a draw from their softmax. */
double rng_gumbel(uint64_t seed, RngStream stream, uint64_t index);

/* Standard normal. */
double rng_normal(uint64_t seed, RngStream stream, uint64_t index);
