#include "tests/check.h"

#include "sim/base/dtype.h"

static void test_names(void **state)
{
    (void)state;
    for (int i = 0; i < N_DTYPES; i++) {
        Dtype dtype = N_DTYPES;
        assert_true(dtype_from_name(dtype_name((Dtype)i), &dtype));
        check_int(dtype, i);
    }
    Dtype dtype = DTYPE_BF16;
    assert_false(dtype_from_name("float", &dtype));
    check_int(dtype, DTYPE_BF16);
}

static void test_bytes(void **state)
{
    (void)state;
    check_int(dtype_bits(DTYPE_BF16), 16);
    check_int(dtype_bytes(DTYPE_FP32, 3), 12);
    check_int(dtype_bytes(DTYPE_FP4, 3), 2);
    check_int(dtype_bytes(DTYPE_FP4, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_names), cmocka_unit_test(test_bytes)};
    return cmocka_run_group_tests_name("dtype", tests, NULL, NULL);
}
