/*
 * Pairs: two graphs over the same inputs and parameters that must give the same values and gradients.
 */
#pragma once

#include <glib.h>

int check_n_pairs(void);
const char *check_pair_name(int idx);

/* Runs a pair; ret_worst is the largest error as a part of its bound. FALSE and an error when they differ. */
gboolean check_pair(int idx, double *ret_worst, GError **error);
