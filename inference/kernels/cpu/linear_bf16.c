/* Linear layers in bf16: products of bf16 pairs, sums in float32, one rounding at the end. */
#define DOT v_dot_bf16
#define FINISH(acc, row, rows, column) \
    { for (int i = 0; i < rows; i++) finish(acc[i], row + i, column, bias, residual, out, outputs); }
#include "simd.h"

static void finish(vf acc[PANEL], int64_t row, int64_t column, const bf16 *bias, const bf16 *residual, bf16 *out,
                   int64_t outputs) {
    for (int j = 0; j < PANEL; j++, column += LANES) {
        const int64_t left = outputs - column;
        vf y = acc[j];
        if (left <= 0) return;
        if (bias) y = v_add(y, v_read_some(1, bias, column, left));
        if (residual) y = v_add(y, v_read_some(1, residual, row * outputs + column, left));
        v_write_some(1, out, row * outputs + column, y, left);
    }
}
#include "panels.h"
#include "program.h"

/* Pack `weight` [outputs, inputs], inputs even; `packed` has room for whole panels. */
void pack_bf16(const bf16 *weight, uint32_t *packed, int64_t outputs, int64_t inputs) {
    const int64_t words = inputs / 2, panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t column = 0; column < COLUMNS; column++) {
            const int64_t output = panel * COLUMNS + column;
            for (int64_t k = 0; k < words; k++) {
                uint32_t word = 0;
                if (output < outputs) memcpy(&word, weight + output * inputs + 2 * k, 4);
                packed[(panel * words + k) * COLUMNS + column] = word;
            }
        }
}

/* out [count, outputs] = rows [count, inputs] · weightᵀ + bias + residual; bias and residual may be NULL, and out may be
 * the residual. */
void linear_bf16(const bf16 *rows_in, const uint32_t *packed, const bf16 *bias, const bf16 *residual, bf16 *out, int64_t count,
                 int64_t outputs, int64_t inputs) {
    const uint32_t *x = (const uint32_t *)rows_in;
    const int64_t words = inputs / 2, stride = words, panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t panel = 0; panel < panels; panel++) MULTIPLY(panel, panel + 1 < panels);
}

STEP(linear_bf16, w[0].p, w[1].p, w[2].p, w[3].p, w[4].p, w[5].i, w[6].i, w[7].i)
