#include "models/expert-pass.h"

#include <glib.h>
#include <string.h>

#include "models/matmul.h"
#include "models/real.h"

/* Rows of a tile: enough for the product to run at full rate, few enough for the tile to stay in cache. */
enum { TILE = 128 };

/* A tile of one expert's slots. */
typedef struct Tile {
    int64_t first, n; /* slots */
    int64_t expert;
} Tile;

/* The next tile after `tile` (expert -1 at the start), or FALSE; *left counts the slots of its expert that follow. */
static gboolean tile_next(const ExpertPass *pass, Tile *tile, int64_t *left)
{
    tile->first += tile->n;
    while (*left == 0) {
        if (tile->expert + 1 >= pass->experts) {
            return FALSE;
        }
        *left = pass->counts[++tile->expert];
    }
    tile->n = MIN(*left, TILE);
    *left -= tile->n;
    return TRUE;
}

static int64_t slot_token(const ExpertPass *pass, const Tile *tile, int64_t row)
{
    return pass->order[tile->first + row] / pass->top_k;
}

/* Copies the tokens' rows of a tile, times their weights unless NULL. */
static void tile_gather(const ExpertPass *pass, const Tile *tile, const real *from, int64_t width, const real *weights, real *to)
{
    for (int64_t r = 0; r < tile->n; r++) {
        const real *row = from + slot_token(pass, tile, r) * width;
        real scale = weights != NULL ? weights[pass->order[tile->first + r]] : 1;
        for (int64_t c = 0; c < width; c++) {
            to[r * width + c] = scale * row[c];
        }
    }
}

/* Adds the weighted rows of a tile to their tokens. */
static void tile_scatter(const ExpertPass *pass, const Tile *tile, const real *from, int64_t width, const real *weights, real *to)
{
    for (int64_t r = 0; r < tile->n; r++) {
        real *row = to + slot_token(pass, tile, r) * width;
        real scale = weights[pass->order[tile->first + r]];
        for (int64_t c = 0; c < width; c++) {
            row[c] += scale * from[r * width + c];
        }
    }
}

void REAL_NAME(expert_pass_forward)(const ExpertPass *pass, const real *x, const real *weights, const real *w, real *y)
{
    int64_t in = pass->in;
    int64_t out = pass->out;
    g_autofree real *rows = g_new(real, (gsize)(TILE * (in + out)));
    real *results = rows + TILE * in;
    Tile tile = {.expert = -1};
    int64_t left = 0;
    memset(y, 0, (size_t)(pass->n_tokens * out) * sizeof *y);
    while (tile_next(pass, &tile, &left)) {
        Matmul shape = {.m = tile.n, .n = out, .k = in, .trans_b = TRUE, .lda = in, .ldb = in, .ldc = out, .alpha = 1};
        tile_gather(pass, &tile, x, in, NULL, rows);
        REAL_NAME(matmul)(&shape, rows, w + tile.expert * out * in, results);
        tile_scatter(pass, &tile, results, out, weights, y);
    }
}

/* Gradient of the choices' weights: U . x, row by row. */
static void tile_dweights(const ExpertPass *pass, const Tile *tile, const real *u, const real *rows, real *dweights)
{
    for (int64_t r = 0; r < tile->n; r++) {
        real dot = 0;
        for (int64_t c = 0; c < pass->in; c++) {
            dot += u[r * pass->in + c] * rows[r * pass->in + c];
        }
        dweights[pass->order[tile->first + r]] = dot;
    }
}

void REAL_NAME(expert_pass_backward)(const ExpertPass *pass, const real *x, const real *weights, const real *w, const real *dy,
                                     real *dx, real *dweights, real *dw)
{
    int64_t in = pass->in;
    int64_t out = pass->out;
    g_autofree real *rows = g_new(real, (gsize)(TILE * (2 * in + out)));
    real *u = rows + TILE * in;
    real *grads = u + TILE * in;
    Tile tile = {.expert = -1};
    int64_t left = 0;
    if (dx != NULL) {
        memset(dx, 0, (size_t)(pass->n_tokens * in) * sizeof *dx);
    }
    if (dweights != NULL) {
        memset(dweights, 0, (size_t)(pass->n_tokens * pass->top_k) * sizeof *dweights);
    }
    if (dw != NULL) { /* experts without rows included */
        memset(dw, 0, (size_t)(pass->experts * out * in) * sizeof *dw);
    }
    while (tile_next(pass, &tile, &left)) {
        tile_gather(pass, &tile, x, in, NULL, rows);
        if (dx != NULL || dweights != NULL) {
            Matmul shape = {.m = tile.n, .n = in, .k = out, .lda = out, .ldb = in, .ldc = in, .alpha = 1};
            tile_gather(pass, &tile, dy, out, NULL, grads);
            REAL_NAME(matmul)(&shape, grads, w + tile.expert * out * in, u);
        }
        if (dweights != NULL) {
            tile_dweights(pass, &tile, u, rows, dweights);
        }
        if (dx != NULL) {
            tile_scatter(pass, &tile, u, in, weights, dx);
        }
        if (dw != NULL) {
            Matmul shape = {.m = out, .n = in, .k = tile.n, .trans_a = TRUE, .lda = out, .ldb = in, .ldc = in, .alpha = 1, .beta = 1};
            tile_gather(pass, &tile, dy, out, weights, grads);
            REAL_NAME(matmul)(&shape, grads, rows, dw + tile.expert * out * in);
        }
    }
}
