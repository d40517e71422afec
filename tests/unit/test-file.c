#include "tests/check.h"

#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/error.h"
#include "sim/base/file.h"

static void test_round_trip(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    char *dir = check_make_dir();
    g_autofree char *path = g_build_filename(dir, "a", NULL);
    size_t length = 0;
    assert_true(file_write(path, "one\0two", 7, &error));
    assert_true(file_write(path, "1\0", 2, &error)); /* shorter, over the old one */
    g_autofree char *text = file_read(path, &length, &error);
    check_int(length, 2);
    check_string(text, "1");
    check_int(text[2], 0);
    check_remove_dir(dir);
}

static int n_files(const char *path)
{
    g_autoptr(GDir) dir = g_dir_open(path, 0, NULL);
    int n = 0;
    while (g_dir_read_name(dir) != NULL) {
        n++;
    }
    return n;
}

static void test_mode_and_link(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    char *dir = check_make_dir();
    g_autofree char *path = check_write_file(dir, "a", "old");
    g_autofree char *link = g_build_filename(dir, "link", NULL);
    check_int(g_chmod(path, 0640), 0);
    check_int(symlink("a", link), 0);
    assert_true(file_write(link, "new", 3, &error));
    struct stat info;
    check_int(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    check_int(stat(path, &info), 0);
    check_int(info.st_mode & 0777, 0640);
    g_autofree char *text = file_read(path, NULL, &error);
    check_string(text, "new");
    check_int(n_files(dir), 2);
    assert_true(file_write("/dev/null", "new", 3, &error));
    check_remove_dir(dir);
}

static void test_errors(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    char *dir = check_make_dir();
    g_autofree char *path = g_build_filename(dir, "no", "such", NULL);
    assert_null(file_read(path, NULL, &error));
    check_error(&error, MOESIM_ERROR_IO, path);
    assert_false(file_write(path, "", 0, &error));
    check_error(&error, MOESIM_ERROR_IO, path);
    assert_null(file_read(dir, NULL, &error));
    check_error(&error, MOESIM_ERROR_IO, dir);
    assert_false(file_write(dir, "", 0, &error));
    check_error(&error, MOESIM_ERROR_IO, dir);
    check_int(n_files(dir), 0);
    check_remove_dir(dir);
}

/* A full disk: the write fails and says so. */
static void test_full(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    assert_false(file_write("/dev/full", "text", 4, &error));
    check_error(&error, MOESIM_ERROR_IO, "/dev/full: cannot write");
}

/* What never ends is given up, not read until memory does. */
static void test_endless(void **state)
{
    (void)state;
    g_autoptr(GError) error = NULL;
    assert_null(file_read("/dev/zero", NULL, &error));
    check_error(&error, MOESIM_ERROR_INPUT, "/dev/zero: holds more than 256 MiB");
    size_t length = 1;
    g_autofree char *nothing = file_read("/dev/null", &length, &error);
    check_no_error(error);
    check_int(length, 0);
    check_string(nothing, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_mode_and_link),
        cmocka_unit_test(test_errors),
        cmocka_unit_test(test_full),
        cmocka_unit_test(test_endless),
    };
    return cmocka_run_group_tests_name("file", tests, NULL, NULL);
}
