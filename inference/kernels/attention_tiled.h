/* Attention in bf16 by tiles (tiles.h): the scores of a unit's queries and the sums of their values.
 *
 * Both products of a tile of positions are computed 16 positions at a time, in their order, for any number of queries: as
 * with vectors, a query's result depends on nothing that is computed beside it. Include it after the names of attention.c.
 */
#pragma once
#include "tiles.h"

#if TILED
#define EACH_QUERY(rows, row) for (int row = 0; row < (rows); row += TILE_ROWS)

/* The registers 0 to 3 hold scores or sums, 4 queries, 5 keys, 6 weights and 7 values: 16 positions are 8 pairs of values. */
INLINE void shape_attention(int queries) {
    Shape shape = {.palette = 1};
    const int rows = queries < TILE_ROWS ? queries : TILE_ROWS;
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = i == 6 ? 2 * LANES : 4 * TILE_WORDS;
        shape.rows[i] = (uint8_t)(i == 5 ? TILE_ROWS : i == 7 ? LANES / 2 : rows);
    }
    set_shape(&shape);
}

/* Scores of `count` queries with TILE_VECTORS vectors of keys; the first queries fetch the values, `ahead`, meanwhile. */
INLINE void score_tiled(int count, const uint32_t *query, int64_t words, const uint32_t *const *keys, const uint32_t *const *ahead,
                        int64_t ahead_words, int64_t block_size, float *scores) {
    settle(query);
    EACH_QUERY(count, row) {
        const uint32_t *own = query + row * words;
        float *to = scores + row * TILE;
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t k = 0; k < words; k += TILE_WORDS) {
            for (int64_t line = k; !row && line < k + TILE_WORDS && line < ahead_words; line++)
                for (int j = 0; j < TILE_VECTORS; j++) prefetch(ahead[j] + line * LANES);
            _tile_loadd(4, own + k, words * 4);
            _tile_loadd(5, keys[0] + k * block_size, block_size * 4);
            _tile_dpbf16ps(0, 4, 5);
            _tile_loadd(5, keys[1] + k * block_size, block_size * 4);
            _tile_dpbf16ps(1, 4, 5);
            _tile_loadd(5, keys[2] + k * block_size, block_size * 4);
            _tile_dpbf16ps(2, 4, 5);
            _tile_loadd(5, keys[3] + k * block_size, block_size * 4);
            _tile_dpbf16ps(3, 4, 5);
        }
        _tile_stored(0, to, TILE * 4);
        _tile_stored(1, to + LANES, TILE * 4);
        _tile_stored(2, to + 2 * LANES, TILE * 4);
        _tile_stored(3, to + 3 * LANES, TILE * 4);
    }
}

/* Add the values of the first `visible` positions, times their weights, to `vectors` vectors of columns of the sums. */
INLINE void mix_columns(const int vectors, const float *weights, const uint32_t *const *values, int visible, int64_t value_dim, float *sums) {
    const int64_t stride = value_dim * 4;
    _tile_loadd(0, sums, stride);
    if (vectors > 1) _tile_loadd(1, sums + LANES, stride);
    if (vectors > 2) _tile_loadd(2, sums + 2 * LANES, stride);
    if (vectors > 3) _tile_loadd(3, sums + 3 * LANES, stride);
    for (int j = 0; j * LANES < visible; j++) {
        _tile_loadd(6, (const bf16 *)weights + j * LANES, TILE * 4);
        _tile_loadd(7, values[j], stride);
        _tile_dpbf16ps(0, 6, 7);
        if (vectors > 1) {
            _tile_loadd(7, values[j] + LANES, stride);
            _tile_dpbf16ps(1, 6, 7);
        }
        if (vectors > 2) {
            _tile_loadd(7, values[j] + 2 * LANES, stride);
            _tile_dpbf16ps(2, 6, 7);
        }
        if (vectors > 3) {
            _tile_loadd(7, values[j] + 3 * LANES, stride);
            _tile_dpbf16ps(3, 6, 7);
        }
    }
    _tile_stored(0, sums, stride);
    if (vectors > 1) _tile_stored(1, sums + LANES, stride);
    if (vectors > 2) _tile_stored(2, sums + 2 * LANES, stride);
    if (vectors > 3) _tile_stored(3, sums + 3 * LANES, stride);
}

/* Add the values of the first `visible` positions, times their weights, to the sums of `count` queries. The keys that come
 * next, `ahead`, are fetched meanwhile. `rest` is room for the values of one vector of positions. */
INLINE void mix_tiled(int count, const float *weights, const uint32_t *const *values, const uint32_t *const *ahead, int64_t ahead_words,
                      int64_t block_size, int visible, int64_t value_dim, uint32_t *rest, float *sums) {
    const uint32_t *from[TILE_VECTORS];
    const int partly = visible % LANES, last = visible / LANES;
    for (int j = 0; j < TILE_VECTORS; j++) from[j] = values[j];
    if (partly) { /* anything may lie past the end: weights of zero don't undo what isn't finite */
        const int64_t words = partly / 2 * value_dim;
        memcpy(rest, values[last], (size_t)words * 4);
        memset(rest + words, 0, (size_t)(LANES / 2 * value_dim - words) * 4);
        for (int64_t d = 0; partly % 2 && d < value_dim; d += LANES) v_store(rest + words + d, v_low_halves(v_load(values[last] + words + d)));
        from[last] = rest;
    }
    settle(rest);
    for (int64_t line = 0; line < ahead_words; line++)
        for (int j = 0; j < TILE_VECTORS; j++) prefetch(ahead[j] + line * block_size);
    for (int64_t d = 0; d < value_dim; d += TILE) {
        EACH_QUERY(count, row) {
            const float *own = weights + row * TILE;
            float *to = sums + row * value_dim + d;
            switch ((value_dim - d) / LANES) {
                case 1: mix_columns(1, own, from, visible, value_dim, to); break;
                case 2: mix_columns(2, own, from, visible, value_dim, to); break;
                case 3: mix_columns(3, own, from, visible, value_dim, to); break;
                default: mix_columns(4, own, from, visible, value_dim, to);
            }
        }
        for (int j = 0; j < TILE_VECTORS; j++) from[j] += TILE;
    }
}
#endif
