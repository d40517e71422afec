/* The spread of a token's experts against all choices, one by one. */
#include "tests/check.h"

#include "models/moe-spread.h"
#include "models/moe-tables.h"

/* Different parts over every set of top_k experts out of the open groups, over every set of open groups. */
static double by_counting(const MoeSpread *spread, int64_t n_parts)
{
    gboolean limited = spread->groups > 1 && spread->topk_groups < spread->groups;
    int64_t groups = limited ? spread->groups : 1, open = limited ? spread->topk_groups : 1;
    double sum = 0;
    int64_t n = 0;
    for (guint32 g = 0; g < 1u << groups; g++) {
        if (__builtin_popcount(g) != open) {
            continue;
        }
        for (guint32 set = 0; set < 1u << spread->experts; set++) {
            guint32 parts = 0;
            gboolean is_open = __builtin_popcount(set) == spread->top_k;
            for (int64_t e = 0; is_open && e < spread->experts; e++) {
                if (set >> e & 1u) {
                    is_open = g >> (e * groups / spread->experts) & 1u;
                    parts |= 1u << (e * n_parts / spread->experts);
                }
            }
            if (is_open) {
                sum += __builtin_popcount(parts);
                n++;
            }
        }
    }
    return sum / (double)n;
}

static const MoeSpread spreads[] = {
    {12, 3, 0, 0}, {12, 1, 1, 1}, {12, 4, 4, 2}, {12, 2, 2, 1}, {12, 3, 6, 3}, {12, 4, 3, 3}, {8, 2, 4, 1}, {8, 8, 0, 0},
};

static void test_all_choices(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(spreads); i++) {
        const MoeSpread *spread = &spreads[i];
        for (int64_t n_parts = 1; n_parts <= spread->experts; n_parts++) {
            int64_t groups = MAX(spread->groups, 1);
            if (spread->experts % n_parts == 0 && (groups % n_parts == 0 || n_parts % groups == 0)) {
                check_close(moe_spread_parts(spread, n_parts), by_counting(spread, n_parts), 1e-12);
            }
        }
    }
}

/* Experts handed out in turn, token by token over one round of all experts. */
static void test_consecutive(void **state)
{
    static const struct {
        int64_t experts, top_k, n_parts;
        double parts;
    } cases[] = {
        {128, 8, 8, 1},           /* runs of 8 in parts of 16 */
        {256, 8, 64, 2},          /* parts of 4 */
        {512, 22, 64, 3.5},       /* parts of 8: runs of 22 start at even places, half of them across 4 */
        {12, 3, 4, 1},  {12, 4, 4, 4.0 / 3 + 2.0 / 3}, {12, 12, 4, 4}, {5, 3, 5, 3}, {7, 1, 7, 1},
    };
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        MoeSpread spread = {.experts = cases[i].experts, .top_k = cases[i].top_k, .consecutive = TRUE};
        check_close(moe_spread_parts(&spread, cases[i].n_parts), cases[i].parts, 1e-12);
        check_close(moe_spread_parts(&spread, 1), 1, 1e-12);
    }
}

/* Without groups it is what moe_expected_ranks() says. */
static void test_no_groups(void **state)
{
    (void)state;
    check_close(moe_spread_parts(&(MoeSpread){256, 8, 0, 0}, 8), moe_expected_ranks(256, 8, 8), 1e-12);
    check_close(moe_spread_parts(&(MoeSpread){896, 16, 0, 0}, 64), moe_expected_ranks(896, 16, 64), 1e-12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_all_choices), cmocka_unit_test(test_consecutive), cmocka_unit_test(test_no_groups)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
