/* The heap gives the least in order while items come, go and change, whichever they are. */
#include "sim/des/index-heap.h"
#include "tests/check.h"

#include "sim/base/rng.h"

enum { N_ITEMS = 200, N_STEPS = 20000 };

typedef struct Model {
    IndexHeap heap;
    guint32 places[N_ITEMS];
    gboolean is_in[N_ITEMS];
    double keys[N_ITEMS];
} Model;

static void check_heap(const Model *model)
{
    guint32 n = 0, least = G_MAXUINT32;
    for (guint32 i = 0; i < N_ITEMS; i++) {
        if (!model->is_in[i]) {
            continue;
        }
        n++;
        check_int(model->heap.entries[model->places[i]].item, i);
        if (least == G_MAXUINT32 || model->keys[i] < model->keys[least]) {
            least = i;
        }
    }
    check_int(model->heap.n, n);
    if (n > 0) {
        check_int(model->heap.entries[0].item, least);
        check_close(model->heap.entries[0].key, model->keys[least], 0);
    }
}

static void test_random_changes(void **state)
{
    (void)state;
    static Model model;
    for (uint64_t step = 0; step < N_STEPS; step++) {
        guint32 i = (guint32)rng_below(1, RNG_TEST, 3 * step, N_ITEMS);
        double key = (double)rng_below(1, RNG_TEST, 3 * step + 1, 50); /* many are equal: the lower item is first */
        if (!model.is_in[i]) {
            index_heap_add(&model.heap, model.places, key, i);
            model.is_in[i] = TRUE;
        } else if (rng_below(1, RNG_TEST, 3 * step + 2, 2) == 0) {
            index_heap_remove(&model.heap, model.places, model.places[i]);
            model.is_in[i] = FALSE;
        } else {
            index_heap_move(&model.heap, model.places, model.places[i], key);
        }
        model.keys[i] = key;
        if (step % 16 == 0) {
            check_heap(&model);
        }
    }
    index_heap_clear(&model.heap);
    check_int(model.heap.n, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_random_changes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
