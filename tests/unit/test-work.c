#include "tests/check.h"

#include "sim/base/work.h"

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < N_WORK_LAWS; i++) {
        WorkLaw law = N_WORK_LAWS;
        assert_true(work_law_from_name(work_law_name((WorkLaw)i), &law));
        check_int(law, i);
    }
    WorkLaw law = WORK_COPY;
    assert_false(work_law_from_name("gemm", &law));
    check_int(law, WORK_COPY);
}

static void test_groups(void **state)
{
    (void)state;
    check_int(work_law_group(WORK_GEMM_TN), WORK_GROUP_COMPUTE);
    check_int(work_law_group(WORK_SOFTMAX), WORK_GROUP_STREAM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_groups)};
    return cmocka_run_group_tests_name("work", tests, NULL, NULL);
}
