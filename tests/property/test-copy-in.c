/* Fresh pages of the tables of copy-ins, against page faults that were counted (hw/calibration/h200/host_copy_in.csv). */
#include "tests/check.h"

#include <math.h>

#include "tests/property/plan-words.h"
#include "workloads/lower/fsdp.h"
#include "workloads/lower/lower.h"

typedef struct Counted {
    const char *model, *more;
    int64_t gpus, pages;
} Counted;

/* Of processes that began with this model, or whose earlier ones had no larger table. */
static const Counted counted[] = {
    {"llama-d2048", "", 1, 0},
    {"llama-d4096", "model.overrides.num_hidden_layers=8", 1, 0},
    {"moe-64e-shared", "", 1, 5929},
    {"moe-64e-shared", "memory.host_keeps_pages=true", 1, 0},
    {"moe-64e-shared", "model.overrides.n_routed_experts=32", 1, 3114},
    {"moe-64e-shared", "model.overrides.n_routed_experts=48", 1, 4522},
    {"moe-64e-shared", "model.overrides.n_routed_experts=80", 1, 7339},
    {"moe-64e-shared", "loss.seq_chunk=512", 1, 5929},
    {"llama-d8192", "", 1, 8899},
    {"moe-128e", "", 1, 6333},
    {"moe-8e", "model.overrides.num_hidden_layers=3", 1, 0},
    {"moe-64e-shared", "", 2, 0},
    {"moe-64e-shared", "parallel.ep=2", 2, 0},
    {"moe-128e", "parallel.ep=2", 2, 0},
    {"llama-d4096", "", 2, 0},
};

/* The longest host time of a copy-in, beyond filling the table, in pages. */
static double most_pages(const Program *program, const Device *device)
{
    double most = 0;
    for (guint i = 0; i < program->groups->len; i++) {
        const FsdpGroup *group = g_ptr_array_index(program->groups, i);
        SimTime fill = copy_in_host_ns(device, &group->copy_in, 0);
        most = MAX(most, (double)(group->copy_in_ns - fill) / (double)device->host_page_ns);
    }
    return most;
}

static void test_counted_pages(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(counted); i++) {
        const Counted *row = &counted[i];
        g_autoptr(GError) error = NULL;
        g_autofree char *model = g_strdup_printf("tests/reference/models/%s.json", row->model);
        g_autofree char *path = check_source_path(model);
        g_autofree char *words = g_strdup_printf("model.config=%s cluster.preset=h200-sxm cluster.nodes=1 cluster.gpus_per_node=%d "
                                                 "workload.seq_len=512 kernels=eager %s",
                                                 path, (int)row->gpus, row->more);
        g_autoptr(Plan) plan = plan_of_words(words, &error);
        check_no_error(error);
        g_autoptr(ModelGraph) graphs = lower_graphs(plan);
        g_autoptr(Program) program = lower_plan(plan, graphs, NULL, 0);
        double pages = most_pages(program, plan->cluster->device);
        if (fabs(pages - (double)row->pages) > 0.04 * (double)row->pages) {
            print_error("%s %s: %.0f pages, %d counted\n", row->model, row->more, pages, (int)row->pages);
            fail();
        }
    }
}

/* Tensor by tensor the capacity is what a vector that doubles has. */
static void test_growth(void **state)
{
    (void)state;
    CopyInTable table = {0};
    copy_in_add(&table, 2048);
    check_int(table.bytes, 8);
    check_int(table.capacity_bytes, 8);
    copy_in_add(&table, 3 * 2048 - 1); /* more than twice: what it needs */
    check_int(table.bytes, 32);
    check_int(table.capacity_bytes, 32);
    check_int(table.outgrown_bytes, 8);
    copy_in_add(&table, 1); /* less: twice */
    check_int(table.bytes, 40);
    check_int(table.capacity_bytes, 64);
    check_int(table.outgrown_used_bytes, 32);
    check_int(copy_in_fresh_bytes(&table, 64), 0);

    CopyInTable large = {.bytes = 10000000, .capacity_bytes = 12000000, .outgrown_bytes = 6000000, .outgrown_used_bytes = 5000000};
    check_int(copy_in_fresh_bytes(&large, large.capacity_bytes), 25000000);
    check_int(copy_in_fresh_bytes(&large, 14000000), 0); /* a larger one has been there */
    CopyInTable mapped = {.bytes = 40000000, .capacity_bytes = 50000000, .outgrown_bytes = 25000000, .outgrown_used_bytes = 24000000};
    check_int(copy_in_fresh_bytes(&mapped, mapped.capacity_bytes), 80000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_counted_pages), cmocka_unit_test(test_growth)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
