/* Norms and activations, one pass over each row; sums in float32. */
#include "simd.h"
#include "threads.h"

INLINE void norm_row(int is_bf16, const void *x, const void *weight, void *out, int64_t at, int64_t width, float eps) {
    vf squares = v_set(0.0f);
    for (int64_t d = 0; d < width; d += LANES) {
        const vf v = v_read_some(is_bf16, x, at + d, width - d);
        squares = v_fma(v, v, squares);
    }
    const vf factor = v_set(1.0f / sqrtf(v_sum(squares) / (float)width + eps));
    for (int64_t d = 0; d < width; d += LANES) {
        const vf v = v_mul(v_read_some(is_bf16, x, at + d, width - d), factor);
        v_write_some(is_bf16, out, at + d, v_mul(v, v_read_some(is_bf16, weight, d, width - d)), width - d);
    }
}

INLINE void add_row(int is_bf16, void *sum, const void *x, int64_t at, int64_t width) {
    for (int64_t d = 0; d < width; d += LANES)
        v_write_some(is_bf16, sum, at + d, v_add(v_read_some(is_bf16, sum, at + d, width - d), v_read_some(is_bf16, x, at + d, width - d)),
                     width - d);
}

INLINE void silu_row(int is_bf16, const void *both, void *out, int64_t row, int64_t width) {
    for (int64_t d = 0; d < width; d += LANES) {
        const vf gate = v_read_some(is_bf16, both, 2 * row * width + d, width - d);
        const vf up = v_read_some(is_bf16, both, (2 * row + 1) * width + d, width - d);
        /* e^-gate overflows to a number that no gate survives: the quotient is then 0, as it should be. */
        const vf bounded = v_max(v_set(-87.0f), gate), one = v_set(1.0f);
        const vf active = v_div(gate, v_add(one, v_exp(v_sub(v_set(0.0f), bounded))));
        v_write_some(is_bf16, out, row * width + d, v_mul(active, up), width - d);
    }
}

#define OF_TYPE(call) \
    do { \
        if (is_bf16) { enum { type = 1 }; call; } \
        else { enum { type = 0 }; call; } \
    } while (0)

/* out = x / rms(x) · weight for `rows` rows of `width`; where `delta` isn't NULL, x += delta first. */
void rms_norm(int64_t is_bf16, void *x, const void *delta, const void *weight, void *out, int64_t rows, int64_t width, double eps) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) {
        if (delta) OF_TYPE(add_row(type, x, delta, row * width, width));
        OF_TYPE(norm_row(type, x, weight, out, row * width, width, (float)eps));
    }
}

/* out [rows, width] = silu(gate) · up, where `both` [rows, 2 · width] has a row's gate first. */
void silu_mul(int64_t is_bf16, const void *both, void *out, int64_t rows, int64_t width) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) OF_TYPE(silu_row(type, both, out, row, width));
}
