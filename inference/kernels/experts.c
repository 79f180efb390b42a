/* Around a mixture of experts: which experts a token goes to, and the sum of what they gave. */
#include "simd.h"
#include "program.h"
#include "threads.h"

#define MOST 1024 /* experts */

/* Choose `chosen` of a token's experts by their logits, the highest first and the lower number of equal ones; a logit that
 * isn't finite takes part all the same, so that the numbers are always of different experts. */
INLINE void route_row(int is_bf16, const void *logits, int64_t at, int64_t experts, int64_t chosen, int is_normalised, int is_shared,
                      int32_t *numbers, float *weights) {
    float at_all[MOST + LANES], whole = 0.0f, of_chosen = 0.0f;
    uint8_t taken[MOST] = {0};
    for (int64_t e = 0; e < experts + is_shared; e += LANES)
        v_store(at_all + e, v_read_some(is_bf16, logits, at + e, experts + is_shared - e));
    const float shared = at_all[experts];
    for (int64_t k = 0; k < chosen; k++) {
        int64_t best = -1;
        for (int64_t e = 0; e < experts; e++)
            if (!taken[e] && (best < 0 || at_all[e] > at_all[best])) best = e;
        taken[best] = 1;
        numbers[k] = (int32_t)best;
    }
    const float peak = at_all[numbers[0]];
    for (int64_t e = experts; e % LANES; e++) at_all[e] = -INFINITY;
    vf total = v_set(0.0f);
    for (int64_t e = 0; e < experts; e += LANES) {
        const vf part = v_exp(v_sub(v_load(at_all + e), v_set(peak)));
        v_store(at_all + e, part);
        total = v_add(total, part);
    }
    whole = v_sum(total);
    for (int64_t k = 0; k < chosen; k++) of_chosen += at_all[numbers[k]];
    for (int64_t k = 0; k < chosen; k++) weights[k] = at_all[numbers[k]] / (is_normalised ? of_chosen : whole);
    if (is_shared) { /* sigmoid */
        float one[LANES] = {0};
        v_store(one, v_exp(v_set(shared < 0 ? shared : -shared)));
        weights[chosen] = shared != shared ? shared : (shared < 0 ? one[0] : 1.0f) / (1.0f + one[0]);
    }
}

static void route_bf16(const void *logits, int64_t at, int64_t experts, int64_t chosen, int is_normalised, int is_shared, int32_t *numbers,
                       float *weights) {
    route_row(1, logits, at, experts, chosen, is_normalised, is_shared, numbers, weights);
}
static void route_fp32(const void *logits, int64_t at, int64_t experts, int64_t chosen, int is_normalised, int is_shared, int32_t *numbers,
                       float *weights) {
    route_row(0, logits, at, experts, chosen, is_normalised, is_shared, numbers, weights);
}

/* See `route` in experts.py. */
void route(int64_t is_bf16, const void *logits, int32_t *numbers, float *weights, int64_t tokens, int64_t experts, int64_t chosen,
           int64_t is_normalised, int64_t is_shared) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (tokens * experts > 4096)
    for (int64_t token = 0; token < tokens; token++) {
        const int64_t at = token * (experts + is_shared);
        int32_t *number = numbers + token * chosen;
        float *weight = weights + token * (chosen + is_shared);
        if (is_bf16) route_bf16(logits, at, experts, chosen, (int)is_normalised, (int)is_shared, number, weight);
        else route_fp32(logits, at, experts, chosen, (int)is_normalised, (int)is_shared, number, weight);
    }
}

INLINE void combine_row(int is_bf16, const void *rows, const int32_t *places, const float *weights, int64_t terms, const void *residual,
                        void *out, int64_t at, int64_t width) {
    for (int64_t d = 0; d < width; d += LANES) {
        vf sum = v_set(0.0f);
        for (int64_t k = 0; k < terms; k++)
            sum = v_fma(v_read_some(is_bf16, rows, places[k] * width + d, width - d), v_set(weights[k]), sum);
        if (residual) sum = v_add(sum, v_read_some(is_bf16, residual, at + d, width - d));
        v_write_some(is_bf16, out, at + d, sum, width - d);
    }
}

/* See `combine` in experts.py. */
void combine(int64_t is_bf16, const void *rows, const int32_t *places, const float *weights, const void *residual, void *out,
             int64_t tokens, int64_t terms, int64_t width) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (tokens * terms * width > 16384)
    for (int64_t token = 0; token < tokens; token++) {
        const int32_t *place = places + token * terms;
        const float *weight = weights + token * terms;
        if (is_bf16) combine_row(1, rows, place, weight, terms, residual, out, token * width, width);
        else combine_row(0, rows, place, weight, terms, residual, out, token * width, width);
    }
}

STEP(route, w[0].i, w[1].p, w[2].p, w[3].p, w[4].i, w[5].i, w[6].i, w[7].i, w[8].i)
STEP(combine, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].i, w[7].i, w[8].i)
