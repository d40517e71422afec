/*
 * Proof: what `moesim check` prints about plans' programs in values.
 */
#pragma once

#include <glib.h>

/* Proves one plan file and prints what was shown, as text or as one JSON object. FALSE when it does not hold. */
gboolean proof_plan(const char *path, gboolean json, GError **error);

/* Draws n plans from `seed` on and proves each; prints the smallest plan that shows the first fault, if there is one. */
gboolean proof_drawn(gint64 n, gint64 seed, gboolean json, GError **error);
