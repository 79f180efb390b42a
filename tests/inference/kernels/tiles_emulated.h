/* The tile registers of AMX in plain C, so that the kernels of tiles.h are tried on processors without them. Semantics and
 * checks follow "Advanced Matrix Extensions" in Intel's architecture manual: what a processor would refuse ends the program.
 * Given to the compiler before each source of the kernels. */
#pragma once
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define __AMX_TILE__ 1
#define __AMX_BF16__ 1
#define __AMX_INT8__ 1
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#undef _tile_dpbusd
#define _tile_loadconfig emulated_config
#define _tile_release emulated_release
#define _tile_zero emulated_zero
#define _tile_loadd emulated_load
#define _tile_stored emulated_store
#define _tile_dpbf16ps emulated_bf16
#define _tile_dpbusd emulated_bytes

static __thread struct {
    int rows, bytes;
    uint32_t at[16][16];
} tiles[8];

static inline void emulated_need(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "a processor with tiles would refuse this: %s\n", what);
    abort();
}

/* Registers are zeros after this. */
static void emulated_config(const void *memory) {
    const uint8_t *shape = (const uint8_t *)memory;
    emulated_need(shape[0] == 1, "a palette that isn't 1");
    memset(tiles, 0, sizeof tiles);
    for (int i = 0; i < 8; i++) {
        uint16_t bytes;
        memcpy(&bytes, shape + 16 + 2 * i, 2);
        tiles[i].bytes = bytes;
        tiles[i].rows = shape[48 + i];
        emulated_need(tiles[i].bytes && tiles[i].bytes <= 64 && tiles[i].bytes % 4 == 0, "bytes of a row");
        emulated_need(tiles[i].rows && tiles[i].rows <= 16, "rows of a register");
    }
}

static void emulated_release(void) { memset(tiles, 0, sizeof tiles); }

static void emulated_zero(int to) {
    emulated_need(tiles[to].rows, "a register without a shape");
    memset(tiles[to].at, 0, sizeof tiles[to].at);
}

static void emulated_load(int to, const void *from, int64_t stride) {
    emulated_zero(to);
    for (int i = 0; i < tiles[to].rows; i++) memcpy(tiles[to].at[i], (const char *)from + i * stride, (size_t)tiles[to].bytes);
}

static void emulated_store(int from, void *to, int64_t stride) {
    emulated_need(tiles[from].rows, "a register without a shape");
    for (int i = 0; i < tiles[from].rows; i++) memcpy((char *)to + i * stride, tiles[from].at[i], (size_t)tiles[from].bytes);
}

static void emulated_shapes(int sums, int a, int b) {
    emulated_need(tiles[sums].rows && tiles[a].rows && tiles[b].rows, "a register without a shape");
    emulated_need(sums != a && sums != b && a != b, "a register twice in a product");
    emulated_need(tiles[sums].rows == tiles[a].rows && tiles[sums].bytes == tiles[b].bytes && tiles[a].bytes == 4 * tiles[b].rows, "shapes that don't fit");
}

static inline float emulated_float(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* The even and the odd inputs of each pair are summed apart, then added to what was there. */
static void emulated_bf16(int sums, int a, int b) {
    emulated_shapes(sums, a, b);
    for (int m = 0; m < tiles[sums].rows; m++) {
        float even[16] = {0}, odd[16] = {0};
        for (int k = 0; k < tiles[b].rows; k++)
            for (int n = 0; n < tiles[sums].bytes / 4; n++) {
                const uint32_t x = tiles[a].at[m][k], y = tiles[b].at[k][n];
                even[n] = __builtin_fmaf(emulated_float(x << 16), emulated_float(y << 16), even[n]);
                odd[n] = __builtin_fmaf(emulated_float(x & 0xffff0000), emulated_float(y & 0xffff0000), odd[n]);
            }
        for (int n = 0; n < tiles[sums].bytes / 4; n++) {
            const float sum = emulated_float(tiles[sums].at[m][n]) + (even[n] + odd[n]);
            memcpy(&tiles[sums].at[m][n], &sum, 4);
        }
    }
}

/* Unsigned bytes of `a` times signed bytes of `b`. */
static void emulated_bytes(int sums, int a, int b) {
    emulated_shapes(sums, a, b);
    for (int m = 0; m < tiles[sums].rows; m++)
        for (int k = 0; k < tiles[b].rows; k++)
            for (int n = 0; n < tiles[sums].bytes / 4; n++)
                for (int byte = 0; byte < 4; byte++) {
                    const int32_t x = tiles[a].at[m][k] >> 8 * byte & 0xff, y = (int8_t)(tiles[b].at[k][n] >> 8 * byte & 0xff);
                    tiles[sums].at[m][n] += (uint32_t)(x * y);
                }
}
