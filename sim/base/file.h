/*
 * Files read whole and written whole.
 *
 * A write goes to a temporary file in the same directory, is flushed to disk and then renamed: whoever reads
 * the path sees the old content or the new, never a half, and an error leaves the old file as it was. What is
 * not a regular file (a pipe, /dev/stdout) is written in place. Errors are MOESIM_ERROR_IO and name the path.
 */
#pragma once

#include <glib.h>

/* Content of the file with a NUL behind it (not counted in ret_length, which may be NULL); caller frees. More than 256 MiB is an error of the input. */
char *file_read(const char *path, size_t *ret_length, GError **error);

/* Replaces the file's content, or makes the file. */
gboolean file_write(const char *path, const void *data, size_t length, GError **error);
