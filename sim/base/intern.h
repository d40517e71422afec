/*
 * Intern: equal bytes get equal numbers.
 *
 * Numbers count up from 0 in the order in which bytes are first seen. What is interned stays until intern_clear().
 */
#pragma once

#include <glib.h>
#include <stdint.h>

typedef struct Intern Intern;

Intern *intern_new(void);
void intern_free(Intern *intern);
G_DEFINE_AUTOPTR_CLEANUP_FUNC(Intern, intern_free)

/* The number of these bytes, which are copied if they are new. n_bytes is a multiple of 8. */
guint32 intern_bytes(Intern *intern, const void *data, size_t n_bytes, gboolean *ret_is_new);

/* The bytes of a number, aligned to 8; they stay where they are. */
const void *intern_get(const Intern *intern, guint32 id, size_t *ret_n_bytes);

guint32 intern_n(const Intern *intern);

/* Memory that it takes. */
size_t intern_size_bytes(const Intern *intern);

/* Forgets everything. */
void intern_clear(Intern *intern);
