/* Norms and activations, one pass over each row; sums in float32. */
#include "simd.h"
#include "program.h"
#include "threads.h"

INLINE void norm_row(int is_bf16, const void *x, const float *weight, void *out, int64_t at, int64_t width, float eps) {
    vf squares = v_set(0.0f);
    for (int64_t d = 0; d < width; d += LANES) {
        const vf v = v_read_some(is_bf16, x, at + d, width - d);
        squares = v_fma(v, v, squares);
    }
    const vf factor = v_set(1.0f / sqrtf(v_sum(squares) / (float)width + eps));
    for (int64_t d = 0; d < width; d += LANES) {
        const vf v = v_mul(v_read_some(is_bf16, x, at + d, width - d), factor);
        v_write_some(is_bf16, out, at + d, v_mul(v, v_read_some(0, weight, d, width - d)), width - d);
    }
}

INLINE void add_row(int is_bf16, void *sum, const void *x, int64_t at, int64_t width) {
    for (int64_t d = 0; d < width; d += LANES)
        v_write_some(is_bf16, sum, at + d, v_add(v_read_some(is_bf16, sum, at + d, width - d), v_read_some(is_bf16, x, at + d, width - d)),
                     width - d);
}

/* x / (1 + e^-z). At z = -87 that is a number which no x survives: the quotient is then 0, as it should be. */
INLINE vf gate_of(vf x, vf z) { return v_div(x, v_add(v_set(1.0f), v_exp(v_sub(v_set(0.0f), v_max(v_set(-87.0f), z))))); }

/* Gelu by tanh is x · sigmoid(2u), where u = sqrt(2 / pi) · (x + 0.044715 x³). */
INLINE void gated_row(int is_bf16, int is_gelu, const void *both, void *out, int64_t row, int64_t width) {
    for (int64_t d = 0; d < width; d += LANES) {
        const vf gate = v_read_some(is_bf16, both, 2 * row * width + d, width - d);
        const vf up = v_read_some(is_bf16, both, (2 * row + 1) * width + d, width - d);
        const vf cubic = v_fma(v_mul(v_mul(gate, gate), gate), v_set(0.044715f), gate);
        const vf active = gate_of(gate, is_gelu ? v_mul(cubic, v_set(1.5957691216f)) : gate);
        v_write_some(is_bf16, out, row * width + d, v_mul(active, up), width - d);
    }
}

/* cap · tanh(x / cap), by e^-2|x / cap|. */
INLINE void softcap_row(int is_bf16, const void *x, void *out, int64_t at, int64_t width, float cap) {
    const vf one = v_set(1.0f), zero = v_set(0.0f);
    for (int64_t d = 0; d < width; d += LANES) {
        const vf v = v_read_some(is_bf16, x, at + d, width - d);
        const vf small = v_exp(v_mul(v_abs(v), v_set(-2.0f / cap)));
        const vf capped = v_mul(v_div(v_sub(one, small), v_add(one, small)), v_set(cap));
        v_write_some(is_bf16, out, at + d, v_where(v, zero, capped, v_sub(zero, capped)), width - d);
    }
}

#define OF_TYPE(call) \
    do { \
        if (is_bf16) { enum { type = 1 }; call; } \
        else { enum { type = 0 }; call; } \
    } while (0)

/* out = x / rms(x) · weight (float32) for `rows` rows of `width`; where `delta` isn't NULL, x += delta first. */
void rms_norm(int64_t is_bf16, void *x, const void *delta, const float *weight, void *out, int64_t rows, int64_t width, double eps) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) {
        if (delta) OF_TYPE(add_row(type, x, delta, row * width, width));
        OF_TYPE(norm_row(type, x, weight, out, row * width, width, (float)eps));
    }
}

/* out [rows, width] = act(gate) · up, where `both` [rows, 2 · width] has a row's gate first; act is silu, or gelu by tanh. */
void gated(int64_t is_bf16, int64_t is_gelu, const void *both, void *out, int64_t rows, int64_t width) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) {
        if (is_gelu) OF_TYPE(gated_row(type, 1, both, out, row, width));
        else OF_TYPE(gated_row(type, 0, both, out, row, width));
    }
}

/* out [rows, width] = cap · tanh(x / cap); `out` may be x. */
void softcap(int64_t is_bf16, const void *x, void *out, int64_t rows, int64_t width, double cap) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (rows * width > 16384)
    for (int64_t row = 0; row < rows; row++) OF_TYPE(softcap_row(type, x, out, row * width, width, (float)cap));
}

STEP(rms_norm, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].i, w[6].i, w[7].f)
STEP(gated, w[0].i, w[1].i, w[2].p, w[3].p, w[4].i, w[5].i)
STEP(softcap, w[0].i, w[1].p, w[2].p, w[3].i, w[4].i, w[5].f)
