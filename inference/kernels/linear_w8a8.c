/* Linear layers in eight bits: weights with one scale per output, activations with one per token, exact integer sums. */
#define DOT v_dot_bytes
#define TILE_PRODUCT _tile_dpbusd
#define INTEGERS
#define FINISH(acc, row, rows, column) \
    { for (int i = 0; i < rows; i++) finish(is_bf16, acc[i], row + i, column, scale[row + i], scales, sums, bias, residual, out, outputs); }
#include "simd.h"

INLINE void finish(int is_bf16, vi acc[PANEL], int64_t row, int64_t column, float scale, const float *scales, const int32_t *sums,
                   const void *bias, const void *residual, void *out, int64_t outputs) {
    for (int j = 0; j < PANEL; j++, column += LANES) {
        const int64_t left = outputs - column;
        if (left <= 0) return;
        vf y = v_mul(v_mul(i_difference(acc[j], i_load(sums + column)), v_set(scale)), v_load(scales + column));
        if (bias) y = v_add(y, v_read_some(is_bf16, bias, column, left));
        if (residual) y = v_add(y, v_read_some(is_bf16, residual, row * outputs + column, left));
        v_write_some(is_bf16, out, row * outputs + column, y, left);
    }
}
#include "tiles.h"
#if TILED
#include "panels_tiled.h"
#else
#include "panels.h"
#endif
#include "program.h"
#include "quantise.h"

/* Pack weights [outputs, inputs]: `numbers` in eight bits with their `scales`, or where they are NULL those of `weight` float32,
 * rounded with a scale of the largest value / 127 in each output. `scales` and `sums` (128 × the output's sum, since activations are
 * stored with 128 added) have an entry for every packed column. */
void pack_w8a8(const float *weight, const int8_t *numbers, uint32_t *packed, float *scales, int32_t *sums, int64_t outputs, int64_t inputs) {
    const int64_t words = (inputs + 3) / 4, panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t column = 0; column < COLUMNS; column++) {
            const int64_t output = panel * COLUMNS + column, real = output < outputs ? inputs : 0;
            float peak = 1e-12f;
            int32_t sum = 0;
            for (int64_t k = output * inputs; !numbers && k < output * inputs + real; k++)
                peak = fabsf(weight[k]) > peak ? fabsf(weight[k]) : peak;
            for (int64_t k = 0; k < words; k++) {
                int8_t bytes[4] = {0};
                for (int64_t i = 0; i < 4 && 4 * k + i < real; i++) {
                    const int64_t at = output * inputs + 4 * k + i;
                    bytes[i] = numbers ? numbers[at] : (int8_t)lrintf(weight[at] * (127.0f / peak));
                    sum += bytes[i];
                }
                memcpy(packed + (panel * words + k) * COLUMNS + column, bytes, 4);
            }
            if (!numbers) scales[output] = peak / 127.0f;
            sums[output] = 128 * sum;
        }
}

INLINE int linear(int is_bf16, const void *rows_in, const uint32_t *packed, const float *scales, const int32_t *sums, const void *bias,
                  const void *residual, void *out, int64_t count, int64_t outputs, int64_t inputs) {
    const int64_t words = (inputs + 3) / 4, panels = (outputs + COLUMNS - 1) / COLUMNS, stride = stride_of(words);
    uint32_t *x = scratch(0, (size_t)(count * stride) * 4);
    float *scale = scratch(1, (size_t)count * 4);
    if (!x || !scale) return 1;
#pragma omp parallel num_threads(kernel_threads)
    {
#pragma omp for schedule(static)
        for (int64_t row = 0; row < count; row++)
            scale[row] = quantise(is_bf16, rows_in, row * inputs, (uint8_t *)(x + row * stride), inputs);
        MULTIPLY;
    }
    return 0;
}

/* As `linear_bf16`; rows, bias, residual and out are bf16 or float32. Return 0, or 1 where memory ran out. */
int linear_w8a8(int64_t is_bf16, const void *rows_in, const uint32_t *packed, const float *scales, const int32_t *sums,
                const void *bias, const void *residual, void *out, int64_t count, int64_t outputs, int64_t inputs) {
    return is_bf16 ? linear(1, rows_in, packed, scales, sums, bias, residual, out, count, outputs, inputs)
                   : linear(0, rows_in, packed, scales, sums, bias, residual, out, count, outputs, inputs);
}

CHECKED_STEP(linear_w8a8, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].p, w[7].p, w[8].i, w[9].i, w[10].i)
