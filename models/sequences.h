/*
 * Sequences: how the rows of a batch divide into documents, which attention and state do not cross.
 *
 * TOKENS divide as doc_starts says, else into equal sequences of seq_len. PATCHES divide into one image per
 * sequence when their number divides, else they are one image. A seq_len of 0 stands for one sequence.
 */
#pragma once

#include "models/op.h"

/* Number of sequences in the rows of a space. */
int64_t sequences_count(const RowCounts *rows, RowSpace space);

/* First row of sequence i, and of the one behind it at i + 1. */
int64_t sequences_start(const RowCounts *rows, RowSpace space, int64_t i);

/* Rows of the longest sequence. */
int64_t sequences_longest(const RowCounts *rows, RowSpace space);

/*
 * Pairs (t, s) with s <= t in the same sequence and, when limit > 0, at most `limit` values of s for each t: the
 * keys that causal attention, a sliding window, or the selection of the `limit` best compute.
 */
int64_t sequences_causal_pairs(const RowCounts *rows, RowSpace space, int64_t limit);

/* All pairs inside sequences. */
int64_t sequences_all_pairs(const RowCounts *rows, RowSpace space);
