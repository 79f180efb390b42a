/* Rows in eight bits, with one scale each: activations of linear layers in eight bits, and keys and values. */
#pragma once
#include "simd.h"

/* Quantise one row to bytes with 128 added, up to a whole word; return its scale. A row that isn't finite has the scale NaN. */
INLINE float quantise(int is_bf16, const void *row, int64_t first, uint8_t *bytes, int64_t inputs) {
    vf peaks = v_set(0.0f), total = v_set(0.0f);
    for (int64_t k = 0; k < inputs; k += LANES) {
        const vf x = v_read_some(is_bf16, row, first + k, inputs - k);
        peaks = v_max(peaks, v_abs(x));
        total = v_fma(x, v_set(0.0f), total); /* NaN where a value isn't finite: a maximum would lose that */
    }
    float peak = v_peak(peaks);
    const float finite = v_sum(total);
    peak = peak > 1e-12f ? peak : 1e-12f;
    const vf inverse = v_set(finite == 0.0f ? 127.0f / peak : 0.0f);
    int64_t k = 0;
    for (; k + LANES <= inputs; k += LANES) v_to_bytes(bytes + k, v_mul(v_read(is_bf16, row, first + k), inverse));
    if (k < inputs) {
        uint8_t last[LANES];
        v_to_bytes(last, v_mul(v_read_some(is_bf16, row, first + k, inputs - k), inverse));
        memcpy(bytes + k, last, (size_t)((inputs - k + 3) / 4 * 4));
    }
    return finite == 0.0f ? peak / 127.0f : NAN;
}
