#include "tests/check.h"

#include "sim/base/rng.h"
#include "sim/mem/tracker.h"

static void test_peak(void **state)
{
    (void)state;
    g_autoptr(Tracker) tracker = tracker_new(3);
    tracker_add(tracker, 0, 100, 1, 11);
    tracker_add(tracker, 2, 50, 2, 12);
    tracker_add(tracker, 0, -60, 3, 13);
    tracker_add(tracker, 1, 60, 4, 14); /* as high as before: the first stays */
    check_int(tracker_peak(tracker)->bytes, 150);
    check_int(tracker_peak(tracker)->time_ns, 2);
    check_int(tracker_peak(tracker)->who, 12);
    check_int(tracker_peak(tracker)->by_tag[0], 100);
    check_int(tracker_peak(tracker)->by_tag[1], 0);
    check_int(tracker_peak(tracker)->by_tag[2], 50);
    check_int(tracker_bytes(tracker), 150);
    check_int(tracker_tag_bytes(tracker, 0), 40);
    check_int(tracker_tag_peak_bytes(tracker, 0), 100);
    tracker_add(tracker, 1, -60, 5, 15);
    tracker_reset_peak(tracker, 6, 16);
    check_int(tracker_peak(tracker)->bytes, 90);
    check_int(tracker_peak(tracker)->who, 16);
    check_int(tracker_tag_peak_bytes(tracker, 0), 40);
}

/* However long it gets, the history stays within its bound, in order, and keeps the peak. */
static void test_history(void **state)
{
    (void)state;
    enum { N_MAX = 64, N_CHANGES = 5000 };
    g_autoptr(Tracker) tracker = tracker_new(2);
    tracker_keep_history(tracker, N_MAX);
    for (uint64_t i = 0; i < N_CHANGES; i++) {
        int tag = (int)rng_below(1, RNG_TEST, i, 2);
        int64_t delta = (int64_t)rng_below(2, RNG_TEST, i, 2000) - 1000;
        delta = MAX(delta, -tracker_tag_bytes(tracker, tag));
        tracker_add(tracker, tag, delta, (SimTime)i, i);
        assert_in_range(tracker_n_points(tracker), 1, N_MAX);
    }
    int64_t most = 0;
    SimTime before = -1;
    for (size_t i = 0; i < tracker_n_points(tracker); i++) {
        const TrackerPoint *point = tracker_point(tracker, i);
        check_int(point->by_tag[0] + point->by_tag[1], point->bytes);
        assert_true(point->time_ns > before);
        before = point->time_ns;
        most = MAX(most, point->bytes);
    }
    check_int(most, tracker_peak(tracker)->bytes);
    assert_true(tracker_n_points(tracker) >= N_MAX / 2);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_peak), cmocka_unit_test(test_history)};
    return cmocka_run_group_tests_name("tracker", tests, NULL, NULL);
}
