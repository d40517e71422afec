#include "sim/base/rng.h"

#include <math.h>

/* 2^64 divided by the golden ratio, odd: multiples of it are spread evenly. */
static const uint64_t golden = 0x9e3779b97f4a7c15u;

/* The finisher of SplitMix64 (Steele, Lea, Flood 2014; constants: Stafford's variant 13). A bijection. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/*
 * Along index this is a SplitMix64 sequence from a start that seed and stream choose, mixed with the start
 * once more, so that sequences whose starts lie near each other share nothing.
 */
uint64_t rng_u64(uint64_t seed, RngStream stream, uint64_t index)
{
    uint64_t start = mix(mix(seed + golden) + ((uint64_t)stream + 1) * golden);
    return mix(mix(start + index * golden) ^ start);
}

/* 52 bits and a half: both ends stay out, and the sum is exact. */
static double to_unit(uint64_t bits)
{
    return ((double)(bits >> 12) + 0.5) * 0x1p-52;
}

double rng_uniform(uint64_t seed, RngStream stream, uint64_t index)
{
    return to_unit(rng_u64(seed, stream, index));
}

uint64_t rng_below(uint64_t seed, RngStream stream, uint64_t index, uint64_t n)
{
    g_assert(n > 0);
    uint64_t limit = UINT64_MAX - UINT64_MAX % n; /* a multiple of n */
    uint64_t bits = rng_u64(seed, stream, index);
    while (bits >= limit) {
        bits = mix(bits + golden);
    }
    return bits % n;
}

double rng_gumbel(uint64_t seed, RngStream stream, uint64_t index)
{
    return -log(-log(rng_uniform(seed, stream, index)));
}

double rng_normal(uint64_t seed, RngStream stream, uint64_t index)
{
    uint64_t bits = rng_u64(seed, stream, index);
    double radius = sqrt(-2 * log(to_unit(bits)));
    return radius * cos(2 * G_PI * to_unit(mix(bits + golden)));
}
