#include "models/sequences.h"

#include "tests/check.h"

static const int64_t starts[] = {0, 4, 5, 12};

static const struct {
    int64_t tokens, seq_len, n_docs; /* n_docs 0: equal sequences */
    int64_t limit;
    int64_t count, longest, causal, all;
} cases[] = {
    {12, 4, 0, 0, 3, 4, 30, 48}, {12, 12, 0, 0, 1, 12, 78, 144}, {12, 0, 0, 0, 1, 12, 78, 144},
    {10, 4, 0, 0, 3, 4, 23, 36}, {12, 4, 0, 2, 3, 4, 21, 48},    {12, 4, 0, 4, 3, 4, 30, 48},
    {12, 4, 0, 1, 3, 4, 12, 48}, {12, 0, 3, 0, 3, 7, 39, 66},    {12, 0, 3, 3, 3, 7, 28, 66},
    {0, 4, 0, 0, 0, 0, 0, 0},    {1, 1, 0, 7, 1, 1, 1, 1},
};

static RowCounts rows_of(int64_t tokens, int64_t seq_len, int64_t n_docs)
{
    RowCounts rows = {.seq_len = seq_len, .doc_starts = n_docs > 0 ? starts : NULL};
    rows.rows[ROWS_TOKENS] = tokens;
    rows.rows[ROWS_SEQUENCES] = n_docs;
    return rows;
}

static void test_counts(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        RowCounts rows = rows_of(cases[i].tokens, cases[i].seq_len, cases[i].n_docs);
        print_message("# case %d\n", (int)i);
        check_int(sequences_count(&rows, ROWS_TOKENS), cases[i].count);
        check_int(sequences_longest(&rows, ROWS_TOKENS), cases[i].longest);
        check_int(sequences_causal_pairs(&rows, ROWS_TOKENS, cases[i].limit), cases[i].causal);
        check_int(sequences_all_pairs(&rows, ROWS_TOKENS), cases[i].all);
    }
}

/* The formulas against counting: every pair of rows looked at. */
static void test_pairs_counted(void **state)
{
    (void)state;
    for (size_t i = 0; i < G_N_ELEMENTS(cases); i++) {
        RowCounts rows = rows_of(cases[i].tokens, cases[i].seq_len, cases[i].n_docs);
        int64_t causal = 0;
        for (int64_t q = 0; q < sequences_count(&rows, ROWS_TOKENS); q++) {
            int64_t start = sequences_start(&rows, ROWS_TOKENS, q);
            for (int64_t t = start; t < sequences_start(&rows, ROWS_TOKENS, q + 1); t++) {
                for (int64_t s = start; s <= t; s++) {
                    causal += cases[i].limit == 0 || t - s < cases[i].limit ? 1 : 0;
                }
            }
        }
        check_int(sequences_causal_pairs(&rows, ROWS_TOKENS, cases[i].limit), causal);
    }
}

static void test_patches(void **state)
{
    RowCounts rows = {.rows = {[ROWS_PATCHES] = 12, [ROWS_SEQUENCES] = 3}, .seq_len = 5};
    (void)state;
    check_int(sequences_count(&rows, ROWS_PATCHES), 3);
    check_int(sequences_all_pairs(&rows, ROWS_PATCHES), 48);
    rows.rows[ROWS_SEQUENCES] = 5; /* does not divide: one image */
    check_int(sequences_count(&rows, ROWS_PATCHES), 1);
    check_int(sequences_start(&rows, ROWS_PATCHES, 1), 12);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_pairs_counted),
        cmocka_unit_test(test_patches),
    };
    return cmocka_run_group_tests_name("sequences", tests, NULL, NULL);
}
