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

/* What each of the eight registers holds, as the processor is told. */
typedef struct {
    uint8_t palette, start, reserved[14];
    uint16_t bytes[16]; /* of a row */
    uint8_t rows[16];
} Shape;

/* Before tiles are read, what was written at `p` is in memory, and all else: compilers aren't told that it is read. */
INLINE void settle(const void *p) { __asm__ volatile("" ::"r"(p) : "memory"); }

INLINE void set_shape(const Shape *shape) {
    settle(shape);
    _tile_loadconfig(shape);
}
#else
#define TILED 0
#endif
