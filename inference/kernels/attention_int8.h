/* Attention over K/V in eight bits. Include it once, after TILE and FEW are defined.
 *
 * Each key and value of a position and head is bytes times one scale, in keys with 128 added. A query, and a tile's weights
 * times their values' scales, are whole numbers of two bytes times a step, which are multiplied half by half: products and
 * their sums are exact integers, and what a query or a weight loses is 1/256 of what its key or value lost already.
 */
#include "quantise.h"

#define PAIRS (ROWS / 2) /* queries of a tile of the products: each has two rows, its high and its low bytes */
#define HIGHEST 32512.0f /* of a query: 127 · 256, so that what is rounded to its high byte is at most 127 */

/* A query's number for a step of 1, and 128 times the sums of its high and low bytes. */
typedef struct {
    float step;
    int32_t high, low;
} Halves;

#if WIDE
INLINE vi i_set(int32_t x) { return _mm512_set1_epi32(x); }
/* Round to the nearest integers; store their low bytes, and what they are over 256 after `carry` is added. */
INLINE void v_to_halves(uint8_t *high, uint8_t *low, vf x, int32_t carry) {
    const __m512i whole = _mm512_cvtps_epi32(x);
    _mm_storeu_si128((__m128i *)low, _mm512_cvtepi32_epi8(whole));
    _mm_storeu_si128((__m128i *)high, _mm512_cvtepi32_epi8(_mm512_srai_epi32(_mm512_add_epi32(whole, _mm512_set1_epi32(carry)), 8)));
}
/* As `v_dot_bytes`, with the signed bytes in the word x. */
INLINE vi v_dot_signed(vi acc, uint32_t x, vi bytes) {
    const __m512i ours = _mm512_set1_epi32((int32_t)x);
#ifdef __AVX512VNNI__
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(bytes), "v"(ours));
    return acc;
#else
    const __m512i low = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(bytes, low), _mm512_srai_epi16(_mm512_slli_epi16(ours, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(bytes, 8), _mm512_srai_epi16(ours, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}
#define FOR_PAIRS(count, call) \
    switch (count) { \
        case 1: { enum { pairs = 1 }; call; break; } \
        case 2: { enum { pairs = 2 }; call; break; } \
        default: { enum { pairs = PAIRS }; call; } \
    }
#else
INLINE vi i_set(int32_t x) { vi r; EACH r.p[i] = (part)((ints){0} + x); return r; }
INLINE void v_to_halves(uint8_t *high, uint8_t *low, vf x, int32_t carry) {
    lanes l;
    const float shift = 12582912.0f; /* as in `v_to_bytes` */
    memcpy(&l, &x, 64);
    for (int i = 0; i < LANES; i++) {
        const int32_t whole = (int32_t)((l.at[i] + shift) - shift);
        low[i] = (uint8_t)whole;
        high[i] = (uint8_t)((whole + carry) >> 8);
    }
}
INLINE vi v_dot_signed(vi acc, uint32_t x, vi w) {
    EACH {
        const bits bytes = (bits)w.p[i];
        ints sum = (ints)acc.p[i];
        sum += (ints)(bytes & 0xffu) * (int8_t)x;
        sum += (ints)(bytes >> 8 & 0xffu) * (int8_t)(x >> 8);
        sum += (ints)(bytes >> 16 & 0xffu) * (int8_t)(x >> 16);
        sum += (ints)(bytes >> 24) * (int8_t)(x >> 24);
        acc.p[i] = (part)sum;
    }
    return acc;
}
#define FOR_PAIRS(count, call) \
    { enum { pairs = PAIRS }; call; }
#endif

/* Write the high bytes of the query of `dim` elements at element `from`, and then its low ones, both signed. Numbers that
 * aren't finite make the step NaN. */
INLINE Halves halve(int is_bf16, const void *query, int64_t from, uint32_t *bytes, int64_t dim) {
    int8_t *high = (int8_t *)bytes, *low = high + dim;
    Halves halves = {0.0f, 0, 0};
    vf peaks = v_set(0.0f), total = v_set(0.0f);
    for (int64_t d = 0; d < dim; d += LANES) {
        const vf x = v_read(is_bf16, query, from + d);
        peaks = v_max(peaks, v_abs(x));
        total = v_fma(x, v_set(0.0f), total);
    }
    const float peak = v_peak(peaks), finite = v_sum(total);
    const vf inverse = v_set(finite == 0.0f && peak > 1e-30f ? HIGHEST / peak : 0.0f);
    for (int64_t d = 0; d < dim; d += LANES) v_to_halves((uint8_t *)high + d, (uint8_t *)low + d, v_mul(v_read(is_bf16, query, from + d), inverse), 128);
    for (int64_t d = 0; d < dim; d++) {
        halves.high += 128 * high[d];
        halves.low += 128 * low[d];
    }
    halves.step = finite == 0.0f ? peak / HIGHEST : NAN;
    return halves;
}

/* As `score` in attention.c, of queries whose high bytes are followed by their low ones. */
INLINE void score_int8(const int pairs, int is_first, const uint32_t *query, int64_t words, const uint32_t *const *keys,
                       const uint32_t *const *ahead, int64_t ahead_words, int64_t block_size, const Halves *halves,
                       const float *const *scales, float *scores) {
    vi acc[2 * PAIRS][PANEL];
    for (int i = 0; i < 2 * pairs; i++)
        for (int j = 0; j < PANEL; j++) acc[i][j] = i_zero();
    for (int64_t k = 0; k < words; k++) {
        vi panel[PANEL];
        for (int j = 0; j < PANEL; j++) panel[j] = i_load(keys[j] + k * block_size);
        if ((2 * pairs <= FEW || is_first) && k < ahead_words)
            for (int j = 0; j < PANEL; j++) prefetch(ahead[j] + k * LANES);
        for (int i = 0; i < 2 * pairs; i++)
            for (int j = 0; j < PANEL; j++) acc[i][j] = v_dot_signed(acc[i][j], query[i * words + k], panel[j]);
    }
    for (int i = 0; i < pairs; i++)
        for (int j = 0; j < PANEL; j++) {
            const vf high = i_difference(acc[2 * i][j], i_set(halves[i].high)), low = i_difference(acc[2 * i + 1][j], i_set(halves[i].low));
            v_store(scores + i * TILE + j * LANES, v_mul(v_fma(high, v_set(256.0f), low), v_mul(v_load(scales[j]), v_set(halves[i].step))));
        }
}

/* Turn a tile's weights, of which those in [first, last) aren't zero, into two bytes each, times their values' scales: TILE
 * high bytes and then TILE low ones, in place. Return what a step of them counts, which is NaN if a scale in use is. */
INLINE float halve_weights(float *weights, const float *const *scales, int first, int last) {
    vf w[TILE / LANES], peaks = v_set(0.0f), total = v_set(0.0f);
    uint8_t *bytes = (uint8_t *)weights;
    for (int j = 0; j < TILE / LANES; j++) {
        w[j] = v_mul(v_load(weights + j * LANES), v_load(scales[j]));
        if (first > 0 || last < TILE) w[j] = v_between(first - j * LANES, last - j * LANES, w[j], v_set(0.0f));
        peaks = v_max(peaks, w[j]);
        total = v_fma(w[j], v_set(0.0f), total);
    }
    const float peak = v_peak(peaks), finite = v_sum(total);
    const vf inverse = v_set(finite == 0.0f && peak > 1e-30f ? 65535.0f / peak : 0.0f);
    for (int j = 0; j < TILE / LANES; j++) v_to_halves(bytes + j * LANES, bytes + TILE + j * LANES, v_mul(w[j], inverse), 0);
    return finite == 0.0f ? peak / 65535.0f : NAN;
}

/* As `mix` in attention.c, with weights of `halve_weights` and what their steps count. */
INLINE void mix_int8(const int pairs, int is_first, const int vectors, const float *weights, const float *steps, const uint32_t *const *values,
                     int64_t column, const uint32_t *const *ahead, int64_t ahead_words, int64_t block_size, int count, int64_t value_dim,
                     float *sums) {
    vi acc[2 * PAIRS][PANEL];
    const int chunk = LANES / 4; /* words of one vector of positions */
    for (int i = 0; i < 2 * pairs; i++)
        for (int j = 0; j < vectors; j++) acc[i][j] = i_zero();
    for (int k = 0; k < (count + 3) / 4; k++) {
        const int64_t at = (k % chunk) * value_dim + column;
        const uint32_t *from = values[k / chunk] + at;
        vi panel[PANEL];
        for (int j = 0; j < vectors; j++) panel[j] = i_load(from + j * LANES);
        if ((2 * pairs <= FEW || is_first) && at / LANES < ahead_words)
            for (int j = 0; j < vectors; j++) prefetch(ahead[k / chunk] + (at / LANES + j) * block_size);
        for (int i = 0; i < 2 * pairs; i++) {
            uint32_t word;
            memcpy(&word, (const uint8_t *)(weights + i / 2 * TILE) + i % 2 * TILE + 4 * k, 4);
            for (int j = 0; j < vectors; j++) acc[i][j] = v_dot_bytes(acc[i][j], word, panel[j]);
        }
    }
    for (int i = 0; i < pairs; i++)
        for (int j = 0; j < vectors; j++) {
            float *sum = sums + i * value_dim + column + j * LANES;
            const vf high = i_difference(acc[2 * i][j], i_zero()), low = i_difference(acc[2 * i + 1][j], i_zero());
            v_store(sum, v_fma(v_fma(high, v_set(256.0f), low), v_set(steps[i]), v_load(sum)));
        }
}
