#define _XOPEN_SOURCE 700 /* realpath */

#include "sim/base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <glib/gstdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/base/error.h"

enum { FILE_BYTES_MAX = 1 << 28 };

static gboolean fail(GError **error, const char *path, const char *what, int number)
{
    g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_IO, "%s: %s: %s", path, what, g_strerror(number));
    return FALSE;
}

/* Reads to the end; FALSE with errno set: 0 = there is more than FILE_BYTES_MAX, as a device may never end. */
static gboolean read_all(int fd, GByteArray *bytes)
{
    enum { PIECE = 1 << 16 };
    for (;;) {
        guint length = bytes->len;
        g_byte_array_set_size(bytes, length + PIECE);
        ssize_t n = read(fd, bytes->data + length, PIECE);
        g_byte_array_set_size(bytes, length + (guint)MAX(n, 0));
        if (n == 0 || (n < 0 && errno != EINTR)) {
            return n == 0;
        }
        if (bytes->len > FILE_BYTES_MAX) {
            errno = 0;
            return FALSE;
        }
    }
}

char *file_read(const char *path, size_t *ret_length, GError **error)
{
    struct stat info;
    if (g_stat(path, &info) != 0) {
        fail(error, path, "cannot read", errno);
        return NULL;
    }
    if (S_ISDIR(info.st_mode)) {
        fail(error, path, "cannot read", EISDIR);
        return NULL;
    }
    int fd = g_open(path, O_RDONLY | O_CLOEXEC, 0);
    if (fd < 0) {
        fail(error, path, "cannot read", errno);
        return NULL;
    }
    g_autoptr(GByteArray) bytes = g_byte_array_new();
    gboolean done = read_all(fd, bytes);
    int number = errno;
    close(fd);
    if (!done && number == 0) {
        g_set_error(error, MOESIM_ERROR, MOESIM_ERROR_INPUT, "%s: holds more than 256 MiB, which no file does that can be meant here", path);
        return NULL;
    }
    if (!done) {
        fail(error, path, "cannot read", number);
        return NULL;
    }
    if (ret_length != NULL) {
        *ret_length = bytes->len;
    }
    static const guint8 end = 0;
    g_byte_array_append(bytes, &end, 1);
    return (char *)g_byte_array_free(g_steal_pointer(&bytes), FALSE);
}

/* Writes everything and closes fd. FALSE with errno set. */
static gboolean write_all(int fd, const char *data, size_t length, gboolean flush)
{
    while (length > 0) {
        ssize_t n = write(fd, data, length);
        if (n < 0 && errno == EINTR) {
            continue;
        }
        if (n < 0) {
            int number = errno;
            close(fd);
            errno = number;
            return FALSE;
        }
        data += n;
        length -= (size_t)n;
    }
    if (flush && fsync(fd) != 0 && errno != EINVAL) {
        int number = errno;
        close(fd);
        errno = number;
        return FALSE;
    }
    return close(fd) == 0;
}

/* Writes beside the target (a regular file or nothing yet), then renames. mode 0 = as the umask says. */
static gboolean replace(const char *path, const char *data, size_t length, mode_t mode)
{
    g_autofree char *temporary = g_strconcat(path, ".XXXXXX", NULL);
    int fd = g_mkstemp_full(temporary, O_WRONLY | O_CLOEXEC, 0666);
    if (fd < 0) {
        return FALSE;
    }
    gboolean done = (mode == 0 || fchmod(fd, mode) == 0);
    if (!done) {
        close(fd);
    }
    done = done && write_all(fd, data, length, TRUE) && g_rename(temporary, path) == 0;
    if (!done) {
        int number = errno;
        g_unlink(temporary);
        errno = number;
    }
    return done;
}

gboolean file_write(const char *path, const void *data, size_t length, GError **error)
{
    struct stat info;
    gboolean done;
    if (stat(path, &info) != 0) {
        done = errno == ENOENT && replace(path, data, length, 0);
    } else if (S_ISREG(info.st_mode)) {
        char *target = realpath(path, NULL); /* through a symbolic link, not over it */
        done = target != NULL && replace(target, data, length, info.st_mode & 0777);
        int number = errno;
        free(target);
        errno = number;
    } else {
        int fd = g_open(path, O_WRONLY | O_CLOEXEC, 0);
        done = fd >= 0 && write_all(fd, data, length, FALSE);
    }
    return done || fail(error, path, "cannot write", errno);
}
