/* Sixteen lanes of 32 bits, and what the kernels need of them, for every level that this is compiled for.
 *
 * With AVX-512 a vector is one register. Elsewhere it is a group of smaller ones, through the compiler's own vectors, so
 * that the same code builds for AVX2, SSE2, NEON and others. Contraction is off (see build.py): a product is fused with a
 * sum only where this file says so, which makes every copy of an inlined kernel compute the same bits.
 */
#pragma once
#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define LANES 16

typedef uint16_t bf16;
typedef struct {
    float at[LANES];
} lanes; /* for what is too rare to be worth instructions */

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512DQ__) && defined(__AVX512VL__)
#include <immintrin.h>
#define WIDE 1
#define ROWS 6  /* a tile of the products: ROWS rows by PANEL vectors fill the registers */
#define PANEL 4
typedef __m512 vf;
typedef __m512i vi; /* integers: a cast to floats and back costs the compiler a copy */

INLINE vf v_set(float x) { return _mm512_set1_ps(x); }
INLINE vf v_load(const void *p) { return _mm512_loadu_ps(p); }
INLINE void v_store(void *p, vf x) { _mm512_storeu_ps(p, x); }
INLINE vf v_add(vf a, vf b) { return _mm512_add_ps(a, b); }
INLINE vf v_sub(vf a, vf b) { return _mm512_sub_ps(a, b); }
INLINE vf v_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
INLINE vf v_div(vf a, vf b) { return _mm512_div_ps(a, b); }
INLINE vf v_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
INLINE vf v_max(vf a, vf b) { return _mm512_max_ps(a, b); }
INLINE vf v_abs(vf a) { return _mm512_abs_ps(a); }
INLINE float v_sum(vf a) { return _mm512_reduce_add_ps(a); }
INLINE float v_peak(vf a) { return _mm512_reduce_max_ps(a); }
/* 2^n for the n that `v_exp` has in the low bits of n + 1.5·2^23. */
INLINE vf v_power(vf shifted) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_castps_si512(shifted), _mm512_set1_epi32(127)), 23)); }
/* x where a >= b, else y. */
INLINE vf v_where(vf a, vf b, vf x, vf y) { return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), y, x); }
/* A bit for each lane where a >= b. */
INLINE uint32_t v_reach(vf a, vf b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
/* x in the lanes [first, last), else y. */
INLINE vf v_between(int first, int last, vf x, vf y) {
    const uint32_t below = last >= LANES ? 0xffff : last <= 0 ? 0 : (1u << last) - 1;
    const uint32_t skipped = first >= LANES ? 0xffff : first <= 0 ? 0 : (1u << first) - 1;
    return _mm512_mask_blend_ps((__mmask16)(below & ~skipped), y, x);
}
INLINE vf v_from_bf16(const bf16 *p) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16)); }
INLINE void v_to_bf16(bf16 *p, vf x) {
#ifdef __AVX512BF16__
    _mm256_storeu_si256((__m256i *)p, (__m256i)_mm512_cvtneps_pbh(x));
#else
    const __m512i bits = _mm512_castps_si512(x), odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_srli_epi32(_mm512_add_epi32(_mm512_add_epi32(bits, odd), _mm512_set1_epi32(0x7fff)), 16);
    const __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
    const __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    _mm256_storeu_si256((__m256i *)p, _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(nan, rounded, quiet)));
#endif
}
/* Round to the nearest integers and store them as bytes with 128 added. */
INLINE void v_to_bytes(uint8_t *p, vf x) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(_mm512_add_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(128)))); }
INLINE vi i_zero(void) { return _mm512_setzero_si512(); }
INLINE vi i_load(const void *p) { return _mm512_loadu_si512(p); }
INLINE vf i_difference(vi a, vi b) { return _mm512_cvtepi32_ps(_mm512_sub_epi32(a, b)); }
INLINE vf v_words(uint32_t x) { return _mm512_castsi512_ps(_mm512_set1_epi32((int32_t)x)); }
INLINE vf v_low_halves(vf w) { return _mm512_castsi512_ps(_mm512_and_si512(_mm512_castps_si512(w), _mm512_set1_epi32(0xffff))); }
/* Pairs of bf16, the first of `low`. */
INLINE vf v_pairs(const bf16 *low, const bf16 *high) {
    const __m512i first = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)low));
    return _mm512_castsi512_ps(_mm512_or_si512(first, _mm512_castps_si512(v_from_bf16(high))));
}
/* Rotate the pairs of x by (cosine, sine) pairs. */
INLINE vf v_rotate(vf x, vf turn) { return _mm512_fmaddsub_ps(x, _mm512_moveldup_ps(turn), _mm512_mul_ps(_mm512_permute_ps(x, 0xb1), _mm512_movehdup_ps(turn))); }
INLINE void prefetch(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T0); }
INLINE void prefetch_far(const void *p) { _mm_prefetch((const char *)p, _MM_HINT_T1); }

/* acc + x·w in each lane, of one float, two bf16 (the lower first) or four bytes (unsigned in x, signed in w) a word; x is one
 * word for all lanes, but a vector in `v_dot_pairs`.
 * Around the intrinsics of the last two gcc 12 copies every accumulator, hence the assembler. */
INLINE vf v_dot_fp32(vf acc, uint32_t x, vf w) { return _mm512_fmadd_ps(v_words(x), w, acc); }
INLINE vf v_dot_bf16(vf acc, uint32_t x, vf w) {
#ifdef __AVX512BF16__
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(v_words(x)), "v"(w));
    return acc;
#else
    const __m512i bits = _mm512_castps_si512(w);
    acc = _mm512_fmadd_ps(v_words(x << 16), _mm512_castsi512_ps(_mm512_slli_epi32(bits, 16)), acc);
    return _mm512_fmadd_ps(v_words(x & 0xffff0000), _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32((int32_t)0xffff0000))), acc);
#endif
}
INLINE vf v_dot_pairs(vf acc, vf x, vf w) {
#ifdef __AVX512BF16__
    __asm__("vdpbf16ps %2, %1, %0" : "+v"(acc) : "v"(x), "v"(w));
    return acc;
#else
    const __m512i a = _mm512_castps_si512(x), b = _mm512_castps_si512(w), high = _mm512_set1_epi32((int32_t)0xffff0000);
    acc = _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_slli_epi32(a, 16)), _mm512_castsi512_ps(_mm512_slli_epi32(b, 16)), acc);
    return _mm512_fmadd_ps(_mm512_castsi512_ps(_mm512_and_si512(a, high)), _mm512_castsi512_ps(_mm512_and_si512(b, high)), acc);
#endif
}
INLINE vi v_dot_bytes(vi acc, uint32_t x, vi bytes) {
    const __m512i ours = _mm512_set1_epi32((int32_t)x);
#ifdef __AVX512VNNI__
    __asm__("vpdpbusd %2, %1, %0" : "+v"(acc) : "v"(ours), "v"(bytes));
    return acc;
#else
    /* Even and odd bytes as words, since maddubs would saturate. */
    const __m512i low = _mm512_set1_epi16(0xff);
    const __m512i even = _mm512_madd_epi16(_mm512_and_si512(ours, low), _mm512_srai_epi16(_mm512_slli_epi16(bytes, 8), 8));
    const __m512i odd = _mm512_madd_epi16(_mm512_srli_epi16(ours, 8), _mm512_srai_epi16(bytes, 8));
    return _mm512_add_epi32(acc, _mm512_add_epi32(even, odd));
#endif
}
#else
#ifdef __AVX2__
#include <immintrin.h>
#define PART 32
#else
#define PART 16
#endif
#if defined(__aarch64__)
#include <arm_neon.h>
#endif
#define WIDE 0
#define ROWS 2
#define PANEL 2
#define PARTS (64 / PART)
#define EACH for (int i = 0; i < PARTS; i++)
typedef float part __attribute__((vector_size(PART)));
typedef int32_t ints __attribute__((vector_size(PART)));
typedef uint32_t bits __attribute__((vector_size(PART)));
typedef struct {
    part p[PARTS];
} vf;
typedef vf vi;

INLINE vf v_load(const void *p) { vf r; memcpy(&r, p, 64); return r; }
INLINE void v_store(void *p, vf x) { memcpy(p, &x, 64); }
INLINE vf v_set(float x) { vf r; EACH r.p[i] = (part){0} + x; return r; }
INLINE vf v_words(uint32_t x) { vf r; EACH r.p[i] = (part)((bits){0} + x); return r; }
INLINE vf v_add(vf a, vf b) { EACH a.p[i] += b.p[i]; return a; }
INLINE vf v_sub(vf a, vf b) { EACH a.p[i] -= b.p[i]; return a; }
INLINE vf v_mul(vf a, vf b) { EACH a.p[i] *= b.p[i]; return a; }
INLINE vf v_div(vf a, vf b) { EACH a.p[i] /= b.p[i]; return a; }
INLINE vf v_fma(vf a, vf b, vf c) {
#if defined(__AVX2__) && defined(__FMA__)
    EACH c.p[i] = (part)_mm256_fmadd_ps((__m256)a.p[i], (__m256)b.p[i], (__m256)c.p[i]);
#elif defined(__aarch64__)
    EACH c.p[i] = (part)vfmaq_f32((float32x4_t)c.p[i], (float32x4_t)a.p[i], (float32x4_t)b.p[i]);
#else
    EACH c.p[i] += a.p[i] * b.p[i];
#endif
    return c;
}
INLINE part p_where(ints chosen, part x, part y) { return (part)((chosen & (ints)x) | (~chosen & (ints)y)); }
INLINE vf v_where(vf a, vf b, vf x, vf y) { EACH y.p[i] = p_where((ints)(a.p[i] >= b.p[i]), x.p[i], y.p[i]); return y; }
INLINE uint32_t v_reach(vf a, vf b) {
    lanes x, y;
    uint32_t found = 0;
    memcpy(&x, &a, 64);
    memcpy(&y, &b, 64);
    for (int i = 0; i < LANES; i++) found |= (uint32_t)(x.at[i] >= y.at[i]) << i;
    return found;
}
INLINE vf v_max(vf a, vf b) { EACH a.p[i] = p_where((ints)(a.p[i] > b.p[i]), a.p[i], b.p[i]); return a; }
INLINE vf v_abs(vf a) { EACH a.p[i] = (part)((bits)a.p[i] & 0x7fffffffu); return a; }
INLINE float v_sum(vf a) {
    lanes l;
    memcpy(&l, &a, 64);
    for (int width = 8; width; width /= 2)
        for (int i = 0; i < width; i++) l.at[i] += l.at[i + width];
    return l.at[0];
}
INLINE float v_peak(vf a) {
    lanes l;
    memcpy(&l, &a, 64);
    for (int i = 1; i < LANES; i++) l.at[0] = l.at[i] > l.at[0] ? l.at[i] : l.at[0];
    return l.at[0];
}
INLINE vf v_power(vf shifted) { EACH shifted.p[i] = (part)(((bits)shifted.p[i] + 127u) << 23); return shifted; }
INLINE vf v_between(int first, int last, vf x, vf y) {
    lanes a, b;
    memcpy(&a, &x, 64);
    memcpy(&b, &y, 64);
    for (int i = 0; i < LANES; i++) b.at[i] = i >= first && i < last ? a.at[i] : b.at[i];
    return v_load(&b);
}
INLINE vf v_from_bf16(const bf16 *p) {
    uint32_t words[LANES];
    for (int i = 0; i < LANES; i++) words[i] = (uint32_t)p[i] << 16;
    return v_load(words);
}
INLINE void v_to_bf16(bf16 *p, vf x) {
    uint32_t words[LANES];
    memcpy(words, &x, 64);
    for (int i = 0; i < LANES; i++) {
        const uint32_t word = words[i];
        p[i] = (word & 0x7fffffff) > 0x7f800000 ? (bf16)(word >> 16 | 0x40) : (bf16)((word + 0x7fff + (word >> 16 & 1)) >> 16);
    }
}
INLINE void v_to_bytes(uint8_t *p, vf x) {
    lanes l;
    const float shift = 12582912.0f; /* 1.5·2^23: the sum has no room for fractions */
    memcpy(&l, &x, 64);
    for (int i = 0; i < LANES; i++) p[i] = (uint8_t)((int32_t)((l.at[i] + shift) - shift) + 128);
}
INLINE vi i_zero(void) { return v_set(0.0f); }
INLINE vi i_load(const void *p) { return v_load(p); }
INLINE vf i_difference(vi a, vi b) { EACH a.p[i] = __builtin_convertvector((ints)a.p[i] - (ints)b.p[i], part); return a; }
INLINE vf v_low_halves(vf w) { EACH w.p[i] = (part)((bits)w.p[i] & 0xffffu); return w; }
INLINE vf v_pairs(const bf16 *low, const bf16 *high) {
    uint32_t words[LANES];
    for (int i = 0; i < LANES; i++) words[i] = low[i] | (uint32_t)high[i] << 16;
    return v_load(words);
}
INLINE vf v_rotate(vf x, vf turn) {
    lanes a, t, r;
    memcpy(&a, &x, 64);
    memcpy(&t, &turn, 64);
    for (int i = 0; i < LANES; i += 2) {
        r.at[i] = a.at[i] * t.at[i] - a.at[i + 1] * t.at[i + 1];
        r.at[i + 1] = a.at[i + 1] * t.at[i] + a.at[i] * t.at[i + 1];
    }
    return v_load(&r);
}
INLINE void prefetch(const void *p) { __builtin_prefetch(p); }
INLINE void prefetch_far(const void *p) { __builtin_prefetch(p, 0, 2); }
INLINE vf v_dot_fp32(vf acc, uint32_t x, vf w) { return v_fma(v_words(x), w, acc); }
INLINE vf v_dot_bf16(vf acc, uint32_t x, vf w) {
    vf high = w;
    EACH high.p[i] = (part)((bits)w.p[i] & 0xffff0000u);
    EACH w.p[i] = (part)((bits)w.p[i] << 16);
    return v_fma(v_words(x & 0xffff0000), high, v_fma(v_words(x << 16), w, acc));
}
INLINE vf v_dot_pairs(vf acc, vf x, vf w) {
    vf high = x, other = w;
    EACH high.p[i] = (part)((bits)x.p[i] & 0xffff0000u);
    EACH other.p[i] = (part)((bits)w.p[i] & 0xffff0000u);
    EACH x.p[i] = (part)((bits)x.p[i] << 16);
    EACH w.p[i] = (part)((bits)w.p[i] << 16);
    return v_fma(high, other, v_fma(x, w, acc));
}
INLINE vi v_dot_bytes(vi acc, uint32_t x, vi w) {
    EACH {
        const ints bytes = (ints)w.p[i];
        ints sum = (ints)acc.p[i];
        sum += (bytes << 24 >> 24) * (int32_t)(x & 0xff);
        sum += (bytes << 16 >> 24) * (int32_t)(x >> 8 & 0xff);
        sum += (bytes << 8 >> 24) * (int32_t)(x >> 16 & 0xff);
        sum += (bytes >> 24) * (int32_t)(x >> 24);
        acc.p[i] = (part)sum;
    }
    return acc;
}
#endif

#define COLUMNS (PANEL * LANES) /* of one panel of packed weights */

/* e^x within 2e-7 of it, 0 below the smallest normal number and for -inf, NaN for NaN (`v_max` returns its second then). */
INLINE vf v_exp(vf x) {
    const vf shift = v_set(12582912.0f), least = v_set(-87.3f);
    const vf bounded = v_max(least, x), shifted = v_fma(bounded, v_set(1.44269504f), shift), n = v_sub(shifted, shift);
    const vf f = v_fma(n, v_set(2.12194440e-4f), v_fma(n, v_set(-0.693359375f), bounded));
    vf p = v_fma(v_set(1.9875691500e-4f), f, v_set(1.3981999507e-3f));
    p = v_fma(p, f, v_set(8.3334519073e-3f));
    p = v_fma(p, f, v_set(4.1665795894e-2f));
    p = v_fma(p, f, v_set(1.6666665459e-1f));
    p = v_fma(p, f, v_set(5.0000001201e-1f));
    p = v_add(v_fma(p, v_mul(f, f), f), v_set(1.0f));
    return v_where(least, x, v_set(0.0f), v_mul(p, v_power(shifted)));
}

/* Sixteen values of bf16 or float32 at element `i`, or the first `n` of them with zeros behind. */
INLINE vf v_read(int is_bf16, const void *p, int64_t i) { return is_bf16 ? v_from_bf16((const bf16 *)p + i) : v_load((const float *)p + i); }
INLINE void v_write(int is_bf16, void *p, int64_t i, vf x) {
    if (is_bf16) v_to_bf16((bf16 *)p + i, x);
    else v_store((float *)p + i, x);
}
INLINE vf v_read_some(int is_bf16, const void *p, int64_t i, int64_t n) {
    lanes l = {{0}};
    if (n >= LANES) return v_read(is_bf16, p, i);
    memcpy(&l, (const char *)p + i * (is_bf16 ? 2 : 4), (size_t)n * (is_bf16 ? 2 : 4));
    return v_read(is_bf16, &l, 0);
}
INLINE void v_write_some(int is_bf16, void *p, int64_t i, vf x, int64_t n) {
    lanes l;
    if (n >= LANES) {
        v_write(is_bf16, p, i, x);
        return;
    }
    v_write(is_bf16, &l, 0, x);
    memcpy((char *)p + i * (is_bf16 ? 2 : 4), &l, (size_t)n * (is_bf16 ? 2 : 4));
}
