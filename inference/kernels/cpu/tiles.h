/* Tiles of 16 rows of 64 bytes, for processors that multiply such (AMX). See "Advanced Matrix Extensions" in Intel's
 * architecture manual: each product adds 16 rows of 16 words of x times 16 words of 16 outputs to 16 rows of 16 sums.
 *
 * A row's sums are computed from that row alone, in the order of the words, whatever stands in the tile's other rows: like
 * the chains of panels.h they are the same bits for any number of rows. In bf16 their order differs from those chains' (a
 * product sums its even and its odd inputs apart), so that everything in bf16 is computed by tiles or nothing is; sums of
 * bytes are exact.
 */
#pragma once
#include "simd.h"

#if defined(__AMX_TILE__) && defined(__AMX_BF16__) && defined(__AMX_INT8__)
#define TILED 1
#define TILE_ROWS 16
#define TILE_WORDS 16 /* of a row */
#define TILE_SIZE (TILE_ROWS * TILE_WORDS)

/* The registers 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights. Give the first six so many rows. */
INLINE void shape_tiles(int rows) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = 4 * TILE_WORDS;
        shape.rows[i] = (uint8_t)(i < 6 ? rows : TILE_ROWS);
    }
    _tile_loadconfig(&shape);
}

/* Whatever was written is in memory before tiles are read: the compiler isn't told that they read it. */
INLINE void settle_memory(void) { __asm__ volatile("" ::: "memory"); }
#else
#define TILED 0
#endif
