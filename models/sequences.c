#include "models/sequences.h"

/* Length of the sequences when all are equal. */
static int64_t equal_length(const RowCounts *rows, RowSpace space)
{
    int64_t n = rows->rows[space];
    if (space == ROWS_TOKENS) {
        return rows->seq_len > 0 ? rows->seq_len : n;
    }
    int64_t n_sequences = rows->rows[ROWS_SEQUENCES];
    return n_sequences > 0 && n % n_sequences == 0 ? n / n_sequences : n;
}

static gboolean has_starts(const RowCounts *rows, RowSpace space)
{
    return space == ROWS_TOKENS && rows->doc_starts != NULL;
}

int64_t sequences_count(const RowCounts *rows, RowSpace space)
{
    if (has_starts(rows, space)) {
        return rows->rows[ROWS_SEQUENCES];
    }
    int64_t length = equal_length(rows, space);
    return length == 0 ? 0 : (rows->rows[space] + length - 1) / length;
}

int64_t sequences_start(const RowCounts *rows, RowSpace space, int64_t i)
{
    return has_starts(rows, space) ? rows->doc_starts[i] : MIN(i * equal_length(rows, space), rows->rows[space]);
}

int64_t sequences_longest(const RowCounts *rows, RowSpace space)
{
    if (!has_starts(rows, space)) {
        return MIN(equal_length(rows, space), rows->rows[space]);
    }
    int64_t longest = 0;
    for (int64_t i = 0; i < sequences_count(rows, space); i++) {
        longest = MAX(longest, rows->doc_starts[i + 1] - rows->doc_starts[i]);
    }
    return longest;
}

static int64_t causal_pairs(int64_t length, int64_t limit)
{
    if (limit <= 0 || limit >= length) {
        return length * (length + 1) / 2;
    }
    return limit * (limit + 1) / 2 + (length - limit) * limit;
}

static int64_t all_pairs(int64_t length, int64_t limit)
{
    (void)limit;
    return length * length;
}

/* Sum over the sequences; equal ones are multiplied, the last may be shorter. */
static int64_t sum_pairs(const RowCounts *rows, RowSpace space, int64_t limit, int64_t (*pairs)(int64_t, int64_t))
{
    if (!has_starts(rows, space)) {
        int64_t length = equal_length(rows, space);
        int64_t n = rows->rows[space];
        return length == 0 ? 0 : n / length * pairs(length, limit) + pairs(n % length, limit);
    }
    int64_t sum = 0;
    for (int64_t i = 0; i < sequences_count(rows, space); i++) {
        sum += pairs(rows->doc_starts[i + 1] - rows->doc_starts[i], limit);
    }
    return sum;
}

int64_t sequences_causal_pairs(const RowCounts *rows, RowSpace space, int64_t limit)
{
    return sum_pairs(rows, space, limit, causal_pairs);
}

int64_t sequences_all_pairs(const RowCounts *rows, RowSpace space)
{
    return sum_pairs(rows, space, 0, all_pairs);
}
