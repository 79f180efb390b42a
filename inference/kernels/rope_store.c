/* What lies between the q, k, v projection and attention: norms of queries and keys, rotary positions, writing K/V.
 *
 * The layout of K/V is told in attention.c.
 */
#include "simd.h"
#include "program.h"
#include "quantise.h"
#include "threads.h"

#define WIDEST 1024 /* elements of a head */

/* Where K/V are written. */
typedef struct {
    void *keys, *values;
    float *key_scales, *value_scales; /* of bytes, else NULL */
    const int64_t *places;
    int64_t kv_heads, key_dim, value_dim, block_size;
} Cache;

/* Write one head's key of one token, `dim` elements of `key` from `at` on: a column of the block. Keys in bytes have 128 added. */
INLINE void store_key(int is_bf16, const Cache *c, const void *key, int64_t at, int64_t place, int64_t head) {
    uint32_t bytes[WIDEST / 4];
    const uint32_t *from = is_bf16 ? (const uint32_t *)((const bf16 *)key + at) : (const uint32_t *)key + at;
    int64_t words = c->key_dim / (is_bf16 ? 2 : 1);
    const int64_t block = place / c->block_size * c->kv_heads + head, offset = place % c->block_size;
    if (c->key_scales) {
        c->key_scales[block * c->block_size + offset] = quantise(is_bf16, key, at, (uint8_t *)bytes, c->key_dim);
        from = bytes;
        words = c->key_dim / 4;
    }
    uint32_t *to = (uint32_t *)c->keys + block * words * c->block_size + offset;
    for (int64_t k = 0; k < words; k++) memcpy(to + k * c->block_size, from + k, 4);
}

/* Write the values of a token in bytes, side by side at element `at` of `from`: one byte of each of the position's words. */
INLINE void store_value_bytes(int is_bf16, const Cache *c, const void *from, int64_t at, int64_t place) {
    uint8_t bytes[WIDEST];
    for (int64_t head = 0; head < c->kv_heads; head++, at += c->value_dim) {
        const int64_t position = (place / c->block_size * c->kv_heads + head) * c->block_size + place % c->block_size;
        c->value_scales[position] = quantise(is_bf16, from, at, bytes, c->value_dim);
        uint8_t *to = (uint8_t *)c->values + position / 4 * 4 * c->value_dim + position % 4;
        for (int64_t k = 0; k < c->value_dim; k++) to[4 * k] = bytes[k] ^ 0x80; /* without the 128 */
    }
}

/* Write the values of a token, side by side at element `at` of `from`. In bf16 two tokens that make pairs of positions, among
 * those of one thread [first, last), are written when it comes to the second, whose values are `stride` elements further on. */
INLINE void store_values(int is_bf16, const Cache *c, const void *from, int64_t at, int64_t stride, int64_t token, int64_t first, int64_t last) {
    const int64_t place = c->places[token], dim = c->value_dim;
    if (c->value_scales) {
        store_value_bytes(is_bf16, c, from, at, place);
        return;
    }
    const int is_second = is_bf16 && place % 2 && token > first && c->places[token - 1] == place - 1;
    if (is_bf16 && place % 2 == 0 && token + 1 < last && c->places[token + 1] == place + 1) return;
    for (int64_t head = 0; head < c->kv_heads; head++, at += dim) {
        const int64_t position = (place / c->block_size * c->kv_heads + head) * c->block_size + place % c->block_size;
        if (is_second) {
            uint32_t *to = (uint32_t *)c->values + position / 2 * dim;
            for (int64_t k = 0; k < dim; k += LANES) v_store(to + k, v_pairs((const bf16 *)from + at - stride + k, (const bf16 *)from + at + k));
        } else if (is_bf16) {
            bf16 *to = (bf16 *)c->values + position / 2 * 2 * dim + position % 2;
            for (int64_t k = 0; k < dim; k++) to[2 * k] = ((const bf16 *)from)[at + k];
        } else {
            memcpy((float *)c->values + position * dim, (const float *)from + at, (size_t)dim * 4);
        }
    }
}

/* Norm (unless `weight` is NULL) and rotate one head. */
INLINE void turn(int is_bf16, const void *from, int64_t at, const float *weight, float eps, const float *rotation, int64_t dim, void *out,
                 int64_t out_at) {
    float factor = 1.0f;
    if (weight) {
        vf squares = v_set(0.0f);
        for (int64_t d = 0; d < dim; d += LANES) {
            const vf x = v_read(is_bf16, from, at + d);
            squares = v_fma(x, x, squares);
        }
        factor = 1.0f / sqrtf(v_sum(squares) / (float)dim + eps);
    }
    for (int64_t d = 0; d < dim; d += LANES) {
        vf x = v_read(is_bf16, from, at + d);
        if (weight) x = v_mul(v_mul(x, v_set(factor)), v_load(weight + d));
        v_write(is_bf16, out, out_at + d, v_rotate(x, v_load(rotation + d)));
    }
}

/* For the tokens [first, last); each lies in one piece, so they are read one after the other. */
INLINE void rope_tokens(int is_bf16, const Cache *c, const void *joint, int64_t first, int64_t last, int64_t heads, const float *query_norm,
                        const float *key_norm, float eps, const float *rotations, void *query) {
    const int64_t dim = c->key_dim, width = (heads + c->kv_heads) * dim + c->kv_heads * c->value_dim;
    float one[WIDEST];
    for (int64_t token = first; token < last; token++) {
        const float *rotation = rotations + token * dim;
        int64_t at = token * width;
        for (int64_t head = 0; head < heads; head++, at += dim)
            turn(is_bf16, joint, at, query_norm, eps, rotation, dim, query, (token * heads + head) * dim);
        if (c->places[token] < 0) continue;
        for (int64_t head = 0; head < c->kv_heads; head++, at += dim) {
            turn(is_bf16, joint, at, key_norm, eps, rotation, dim, one, 0);
            store_key(is_bf16, c, one, 0, c->places[token], head);
        }
        store_values(is_bf16, c, joint, at, width, token, first, last);
    }
}

static void rope_tokens_bf16(const Cache *c, const void *joint, int64_t first, int64_t last, int64_t heads, const float *query_norm,
                             const float *key_norm, float eps, const float *rotations, void *query) {
    rope_tokens(1, c, joint, first, last, heads, query_norm, key_norm, eps, rotations, query);
}
static void rope_tokens_fp32(const Cache *c, const void *joint, int64_t first, int64_t last, int64_t heads, const float *query_norm,
                             const float *key_norm, float eps, const float *rotations, void *query) {
    rope_tokens(0, c, joint, first, last, heads, query_norm, key_norm, eps, rotations, query);
}

/* See `rope_store` in attention.py. */
void rope_store(int64_t is_bf16, const void *joint, const float *query_norm, const float *key_norm, const float *rotations,
                const int64_t *places, void *query, void *keys, void *values, float *key_scales, float *value_scales, int64_t tokens,
                int64_t heads, int64_t kv_heads, int64_t key_dim, int64_t value_dim, int64_t block_size, double eps) {
    const Cache cache = {keys, values, key_scales, value_scales, places, kv_heads, key_dim, value_dim, block_size};
    const int64_t parts = kernel_threads;
#pragma omp parallel for num_threads(parts) schedule(static) if (tokens * (heads + 2 * kv_heads) * key_dim > 16384)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = tokens * part / parts, last = tokens * (part + 1) / parts;
        if (is_bf16) rope_tokens_bf16(&cache, joint, first, last, heads, query_norm, key_norm, (float)eps, rotations, query);
        else rope_tokens_fp32(&cache, joint, first, last, heads, query_norm, key_norm, (float)eps, rotations, query);
    }
}

INLINE void store_tokens(int is_bf16, const Cache *c, const void *key, const void *value, int64_t first, int64_t last) {
    const int64_t key_width = c->kv_heads * c->key_dim, value_width = c->kv_heads * c->value_dim;
    for (int64_t token = first; token < last; token++) {
        if (c->places[token] < 0) continue;
        for (int64_t head = 0; head < c->kv_heads; head++)
            store_key(is_bf16, c, key, token * key_width + head * c->key_dim, c->places[token], head);
        store_values(is_bf16, c, value, token * value_width, value_width, token, first, last);
    }
}

/* See `store` in attention.py. */
void store(int64_t is_bf16, const void *key, const void *value, const int64_t *places, void *keys, void *values, float *key_scales,
           float *value_scales, int64_t tokens, int64_t kv_heads, int64_t key_dim, int64_t value_dim, int64_t block_size) {
    const Cache cache = {keys, values, key_scales, value_scales, places, kv_heads, key_dim, value_dim, block_size};
    const int64_t parts = kernel_threads;
#pragma omp parallel for num_threads(parts) schedule(static) if (tokens * kv_heads * key_dim > 16384)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = tokens * part / parts, last = tokens * (part + 1) / parts;
        if (is_bf16) store_tokens(1, &cache, key, value, first, last);
        else store_tokens(0, &cache, key, value, first, last);
    }
}

STEP(rope_store, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].p, w[7].p, w[8].p, w[9].p, w[10].p, w[11].i, w[12].i, w[13].i,
     w[14].i, w[15].i, w[16].i, w[17].f)
STEP(store, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].p, w[7].p, w[8].i, w[9].i, w[10].i, w[11].i, w[12].i)
