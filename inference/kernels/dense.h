/* Linear layers whose weights keep their type: sums in float32, one rounding at the end. Include it once, after IS_BF16, DOT
 * and NAME(verb) are defined, and TILE_PRODUCT where tiles can do it. */
#define FINISH(acc, row, rows, column) \
    { for (int i = 0; i < rows; i++) finish(acc[i], row + i, column, bias, residual, out, outputs); }
#include "simd.h"

static void finish(vf acc[PANEL], int64_t row, int64_t column, const void *bias, const void *residual, void *out, int64_t outputs) {
    for (int j = 0; j < PANEL; j++, column += LANES) {
        const int64_t left = outputs - column;
        vf y = acc[j];
        if (left <= 0) return;
        if (bias) y = v_add(y, v_read_some(IS_BF16, bias, column, left));
        if (residual) y = v_add(y, v_read_some(IS_BF16, residual, row * outputs + column, left));
        v_write_some(IS_BF16, out, row * outputs + column, y, left);
    }
}
#include "tiles.h"
#if TILED && defined(TILE_PRODUCT)
#include "panels_tiled.h"
#else
#include "panels.h"
#endif
#include "program.h"

#define EACH_WORD (IS_BF16 ? 2 : 1) /* inputs in a word */

/* Pack `weight` [outputs, inputs] of whole words; `packed` has room for whole panels. */
void NAME(pack)(const uint32_t *weight, uint32_t *packed, int64_t outputs, int64_t inputs) {
    const int64_t words = inputs / EACH_WORD, panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t column = 0; column < COLUMNS; column++) {
            const int64_t output = panel * COLUMNS + column;
            for (int64_t k = 0; k < words; k++)
                packed[(panel * words + k) * COLUMNS + column] = output < outputs ? weight[output * words + k] : 0;
        }
}

/* out [count, outputs] = x [count, inputs] · weightᵀ + bias + residual; bias and residual may be NULL, and out may be the
 * residual. Return 0, or 1 where memory ran out. */
int NAME(linear)(const uint32_t *rows_in, const uint32_t *packed, const void *bias, const void *residual, void *out, int64_t count,
                 int64_t outputs, int64_t inputs) {
    const int64_t words = inputs / EACH_WORD, panels = (outputs + COLUMNS - 1) / COLUMNS;
    const int64_t stride = stride_of(words);
    uint32_t *copy = stride == words ? NULL : scratch(0, (size_t)(count * stride) * 4);
    const uint32_t *x = copy ? copy : rows_in;
    if (stride != words && !copy) return 1;
#pragma omp parallel num_threads(kernel_threads)
    {
        if (copy) { /* with zeros behind each row */
#pragma omp for schedule(static)
            for (int64_t row = 0; row < count; row++)
                for (int64_t k = 0; k < stride; k += LANES) v_store(copy + row * stride + k, v_read_some(0, rows_in, row * words + k, words - k));
        }
        MULTIPLY;
    }
    return 0;
}
