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

/* What a model does in a random history of so many rounds from some draw on; notes addresses or sizes of what it takes. */
typedef struct History {
    AllocBlock blocks[N_LIVE];
    int64_t sum; /* of what it noted, mixed */
} History;

static void go_on(AllocModel *model, History *history, uint64_t seed, uint64_t from, uint64_t n, gboolean notes_addresses)
{
    for (uint64_t i = from; i < from + n; i++) {
        size_t at = rng_below(seed, RNG_TEST, 8 * i + 4, N_LIVE);
        int stream = (int)rng_below(seed, RNG_TEST, 8 * i + 5, N_STREAMS);
        alloc_model_give(model, history->blocks[at]);
        history->blocks[at] = alloc_model_take(model, stream, draw_bytes(seed, i));
        int64_t noted = notes_addresses ? alloc_model_address(model, history->blocks[at]) : alloc_model_block_bytes(model, history->blocks[at]);
        history->sum = (int64_t)((uint64_t)history->sum * 0x9e3779b97f4a7c15u + (uint64_t)noted);
    }
}

/* Back at a mark everything is as it was there: what follows is what follows in a copy made there. */
static void test_rewind(void **state)
{
    (void)state;
    for (uint64_t seed = 0; seed < 60; seed++) {
        g_autoptr(AllocModel) model = alloc_model_new(N_STREAMS, 0), copy = alloc_model_new(N_STREAMS, 0);
        History history = {0};
        if (seed % 2 == 1) {
            alloc_model_make_expandable(model);
        }
        go_on(model, &history, seed, 0, 400, TRUE);
        for (uint64_t turn = 0; turn < 3; turn++) {
            History astray = history, again = history, other = history;
            alloc_model_copy(copy, model);
            alloc_model_mark(model);
            go_on(model, &astray, seed, 1000 * (turn + 1), 20 << turn, TRUE);
            assert_null(alloc_model_find_fault(model));
            alloc_model_rewind(model);
            assert_null(alloc_model_find_fault(model));
            go_on(copy, &other, seed, 500, 300, TRUE);
            alloc_model_mark(model);
            go_on(model, &again, seed, 500, 300, TRUE);
            check_int(again.sum, other.sum);
            check_int(alloc_model_stats(model)->reserved_bytes_max, alloc_model_stats(copy)->reserved_bytes_max);
            alloc_model_rewind(model);
        }
    }
}

/* Takes large blocks and gives them back, so that new segments stay behind; some of one are still in use. */
static void leave_tails(AllocModel *model, uint64_t seed, uint64_t draw)
{
    AllocBlock large[3], small;
    for (uint64_t k = 0; k < G_N_ELEMENTS(large); k++) {
        int64_t mib = 20 + (int64_t)rng_below(seed, RNG_TEST, 1000000 + k, 60), more = (int64_t)rng_below(draw, RNG_TEST, 2000000 + k, 12);
        large[k] = alloc_model_take(model, (int)(k % N_STREAMS), (mib + more) * MIB);
    }
    alloc_model_give(model, large[0]);
    small = alloc_model_take(model, 0, 2 * MIB);
    alloc_model_give(model, large[1]);
    alloc_model_give(model, large[2]);
    if (seed % 3 == 0) {
        alloc_model_give(model, small);
    }
}

/*
 * Futures of one model that say the same words go on alike while the sizes of their tails lie within the bounds that one of
 * them found: what is taken is as large, and as much is reserved on the way.
 */
static void test_tails(void **state)
{
    (void)state;
    int n_alike = 0, n_other = 0;
    for (uint64_t seed = 0; seed < 300; seed++) {
        g_autoptr(AllocModel) model = alloc_model_new(N_STREAMS, 0), first = alloc_model_new(N_STREAMS, 0), second = alloc_model_new(N_STREAMS, 0);
        g_autoptr(GArray) words = g_array_new(FALSE, FALSE, sizeof(int64_t)), other_words = g_array_new(FALSE, FALSE, sizeof(int64_t));
        AllocTail tails[ALLOC_TAILS_MAX], others[ALLOC_TAILS_MAX];
        History history = {0};
        if (seed % 4 == 3) {
            alloc_model_make_expandable(model);
        }
        go_on(model, &history, seed, 0, 60, FALSE);
        alloc_model_mark(model);
        leave_tails(model, seed, seed);
        int n_tails = alloc_model_append_change(model, G_MAXUINT32, words, tails);
        History noted = history;
        int64_t before = alloc_model_stats(model)->reserved_bytes;
        assert_true(n_tails >= 0);
        alloc_model_copy(first, model);
        alloc_model_rewind(model);
        alloc_model_watch(first, tails, n_tails);
        go_on(first, &noted, seed, 100, 40, FALSE);
        int64_t more = alloc_model_stats(first)->reserved_bytes - before;
        for (uint64_t draw = 0; draw < 20; draw++) {
            History again = history;
            g_array_set_size(other_words, 0);
            alloc_model_mark(model);
            leave_tails(model, seed, 7000 + draw);
            int n = alloc_model_append_change(model, G_MAXUINT32, other_words, others);
            before = alloc_model_stats(model)->reserved_bytes;
            alloc_model_copy(second, model);
            alloc_model_rewind(model);
            gboolean alike = n == n_tails && words->len == other_words->len && memcmp(words->data, other_words->data, words->len * sizeof(int64_t)) == 0;
            for (int i = 0; alike && i < n; i++) {
                alike = others[i].bytes >= tails[i].least && others[i].bytes <= tails[i].most;
            }
            go_on(second, &again, seed, 100, 40, FALSE);
            n_alike += alike;
            n_other += again.sum != noted.sum;
            if (alike) {
                check_int(again.sum, noted.sum);
                check_int(alloc_model_stats(second)->reserved_bytes - before, more);
            }
        }
    }
    assert_true(n_alike > 500 && n_other > 500); /* both happen */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_same), cmocka_unit_test(test_rewind), cmocka_unit_test(test_tails)};
    return cmocka_run_group_tests_name("alloc-brute", tests, NULL, NULL);
}
