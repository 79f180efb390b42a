/* Linear layers in float32. */
#define DOT v_dot_fp32
#define FINISH(acc, row, rows, column) \
    { for (int i = 0; i < rows; i++) finish(acc[i], row + i, column, bias, residual, out, outputs); }
#include "simd.h"

static void finish(vf acc[PANEL], int64_t row, int64_t column, const float *bias, const float *residual, float *out,
                   int64_t outputs) {
    for (int j = 0; j < PANEL; j++, column += LANES) {
        const int64_t left = outputs - column;
        vf y = acc[j];
        if (left <= 0) return;
        if (bias) y = v_add(y, v_read_some(0, bias, column, left));
        if (residual) y = v_add(y, v_read_some(0, residual, row * outputs + column, left));
        v_write_some(0, out, row * outputs + column, y, left);
    }
}
#include "panels.h"
#include "program.h"

/* Pack `weight` [outputs, inputs]; `packed` has room for whole panels. */
void pack_fp32(const uint32_t *weight, uint32_t *packed, int64_t outputs, int64_t inputs) {
    const int64_t panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t column = 0; column < COLUMNS; column++) {
            const int64_t output = panel * COLUMNS + column;
            for (int64_t k = 0; k < inputs; k++)
                packed[(panel * inputs + k) * COLUMNS + column] = output < outputs ? weight[output * inputs + k] : 0;
        }
}

/* As `linear_bf16`, in float32. */
void linear_fp32(const float *rows_in, const uint32_t *packed, const float *bias, const float *residual, float *out, int64_t count,
                 int64_t outputs, int64_t inputs) {
    const uint32_t *x = (const uint32_t *)rows_in;
    const int64_t words = inputs, stride = words, panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t panel = 0; panel < panels; panel++) MULTIPLY(panel, panel + 1 < panels);
}

STEP(linear_fp32, w[0].p, w[1].p, w[2].p, w[3].p, w[4].p, w[5].i, w[6].i, w[7].i)
