/*
 * The allocation model against the same rules written as plainly as possible: an array of blocks in order of
 * address, searched from end to end.
 */
#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/mem/alloc-model.h"

enum { N_BLOCKS_MAX = 4000, N_LIVE = 150, N_ROUNDS = 6000, N_STREAMS = 2 };

static const int64_t MIB = 1 << 20;

typedef struct Plain {
    int64_t address, bytes;
    int stream, segment;
    gboolean is_small, is_used;
} Plain;

typedef struct Device {
    Plain blocks[N_BLOCKS_MAX]; /* by address */
    int n, n_segments;
    int64_t next_address, reserved_bytes, allocated_bytes;
} Device;

static void insert(Device *device, int at, Plain block)
{
    g_assert(device->n < N_BLOCKS_MAX);
    memmove(&device->blocks[at + 1], &device->blocks[at], (size_t)(device->n - at) * sizeof(Plain));
    device->blocks[at] = block;
    device->n++;
}

static void erase(Device *device, int at)
{
    device->n--;
    memmove(&device->blocks[at], &device->blocks[at + 1], (size_t)(device->n - at) * sizeof(Plain));
}

/* Address of the block taken. */
static int64_t take(Device *device, int stream, int64_t request)
{
    int64_t bytes = (request + 511) / 512 * 512;
    gboolean is_small = bytes <= MIB;
    int best = -1;
    for (int i = 0; i < device->n; i++) {
        const Plain *b = &device->blocks[i];
        if (!b->is_used && b->stream == stream && b->is_small == is_small && b->bytes >= bytes &&
            (best < 0 || b->bytes < device->blocks[best].bytes)) {
            best = i;
        }
    }
    if (best < 0) {
        int64_t segment = is_small           ? 2 * MIB
                          : bytes < 10 * MIB ? 20 * MIB
                                             : (bytes + 2 * MIB - 1) / (2 * MIB) * 2 * MIB;
        best = device->n;
        insert(device, best, (Plain){device->next_address, segment, stream, device->n_segments++, is_small, FALSE});
        device->next_address += segment;
        device->reserved_bytes += segment;
    }
    Plain *block = &device->blocks[best];
    int64_t rest = block->bytes - bytes;
    if (is_small ? rest >= 512 : rest > MIB) {
        Plain behind = *block;
        behind.address += bytes;
        behind.bytes = rest;
        block->bytes = bytes;
        insert(device, best + 1, behind);
    }
    device->blocks[best].is_used = TRUE;
    device->allocated_bytes += device->blocks[best].bytes;
    return device->blocks[best].address;
}

static void give(Device *device, int64_t address)
{
    int at = 0;
    while (device->blocks[at].address != address) {
        at++;
    }
    device->blocks[at].is_used = FALSE;
    device->allocated_bytes -= device->blocks[at].bytes;
    for (int i = MAX(at - 1, 0); i <= at && i + 1 < device->n;) {
        Plain *a = &device->blocks[i], *b = &device->blocks[i + 1];
        if (!a->is_used && !b->is_used && a->segment == b->segment) {
            a->bytes += b->bytes;
            erase(device, i + 1);
        } else {
            i++;
        }
    }
}

/* Sizes from bytes to tens of MiB, many of them alike, as tensors are. */
static int64_t draw_bytes(uint64_t seed, uint64_t i)
{
    static const int64_t common[] = {512, 4096, 1 << 20, (1 << 20) + 1, 3 << 20, 10 << 20, 12582912, 33554432};
    if (rng_below(seed, RNG_TEST, 8 * i, 2) == 0) {
        return common[rng_below(seed, RNG_TEST, 8 * i + 1, G_N_ELEMENTS(common))];
    }
    uint64_t order = (uint64_t)1 << rng_below(seed, RNG_TEST, 8 * i + 2, 25);
    return (int64_t)(order + rng_below(seed, RNG_TEST, 8 * i + 3, order));
}

static void test_same(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 4; seed++) {
        g_autoptr(AllocModel) model = alloc_model_new(N_STREAMS, 0);
        Device *device = g_new0(Device, 1);
        AllocBlock blocks[N_LIVE] = {0};
        int64_t addresses[N_LIVE] = {0};
        for (uint64_t i = 0; i < N_ROUNDS; i++) {
            size_t at = rng_below(seed, RNG_TEST, 8 * i + 4, N_LIVE);
            int stream = (int)rng_below(seed, RNG_TEST, 8 * i + 5, N_STREAMS);
            if (blocks[at] != ALLOC_NOTHING) {
                alloc_model_give(model, blocks[at]);
                give(device, addresses[at]);
            }
            int64_t bytes = draw_bytes(seed, i);
            blocks[at] = alloc_model_take(model, stream, bytes);
            addresses[at] = take(device, stream, bytes);
            check_int(alloc_model_stats(model)->allocated_bytes, device->allocated_bytes);
            check_int(alloc_model_stats(model)->reserved_bytes, device->reserved_bytes);
        }
        g_free(device);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same)};
    return cmocka_run_group_tests_name("alloc-brute", tests, NULL, NULL);
}
