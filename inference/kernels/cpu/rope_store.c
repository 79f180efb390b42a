/* What lies between the q, k, v projection and attention: norms of queries and keys, rotary positions, writing K/V.
 *
 * The layout of K/V is told in attention.c.
 */
#include "simd.h"
#include "program.h"
#include "threads.h"

#define WIDEST 1024 /* elements of a head */

/* Write one head's key of one token: a column of the block. */
INLINE void store_key(int is_bf16, const void *key, void *keys, int64_t block, int64_t offset, int64_t block_size, int64_t dim) {
    const int64_t words = dim / (is_bf16 ? 2 : 1);
    uint32_t *to = (uint32_t *)keys + block * words * block_size + offset;
    for (int64_t k = 0; k < words; k++) memcpy(to + k * block_size, (const uint32_t *)key + k, 4);
}

INLINE void store_value(int is_bf16, const void *value, void *values, int64_t block, int64_t offset, int64_t block_size, int64_t dim) {
    if (is_bf16) {
        bf16 *to = (bf16 *)values + (block * block_size + offset / 2 * 2) * dim + offset % 2;
        for (int64_t k = 0; k < dim; k++) to[2 * k] = ((const bf16 *)value)[k];
    } else {
        memcpy((float *)values + (block * block_size + offset) * dim, value, (size_t)dim * 4);
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

INLINE void rope_head(int is_bf16, const void *joint, int64_t tokens, int64_t head, int64_t heads, int64_t kv_heads, int64_t key_dim,
                      int64_t value_dim, const float *query_norm, const float *key_norm, float eps, const float *rotations, const int64_t *places,
                      int64_t block_size, void *query, void *keys, void *values) {
    const int64_t width = (heads + kv_heads) * key_dim + kv_heads * value_dim;
    float one[WIDEST];
    for (int64_t token = 0; token < tokens; token++) {
        const float *rotation = rotations + token * key_dim;
        const int64_t at = token * width, place = places[token];
        if (head < heads) {
            turn(is_bf16, joint, at + head * key_dim, query_norm, eps, rotation, key_dim, query, (token * heads + head) * key_dim);
        } else if (place >= 0) {
            const int64_t kv = head < heads + kv_heads ? head - heads : head - heads - kv_heads;
            const int64_t block = place / block_size * kv_heads + kv, offset = place % block_size;
            if (head < heads + kv_heads) {
                turn(is_bf16, joint, at + head * key_dim, key_norm, eps, rotation, key_dim, one, 0);
                store_key(is_bf16, one, keys, block, offset, block_size, key_dim);
            } else {
                const int64_t from = at + (heads + kv_heads) * key_dim + kv * value_dim;
                store_value(is_bf16, (const char *)joint + from * (is_bf16 ? 2 : 4), values, block, offset, block_size, value_dim);
            }
        }
    }
}

static void rope_head_bf16(const void *joint, int64_t tokens, int64_t head, int64_t heads, int64_t kv_heads, int64_t key_dim,
                           int64_t value_dim, const float *query_norm, const float *key_norm, float eps, const float *rotations,
                           const int64_t *places, int64_t block_size, void *query, void *keys, void *values) {
    rope_head(1, joint, tokens, head, heads, kv_heads, key_dim, value_dim, query_norm, key_norm, eps, rotations, places, block_size, query, keys,
              values);
}
static void rope_head_fp32(const void *joint, int64_t tokens, int64_t head, int64_t heads, int64_t kv_heads, int64_t key_dim,
                           int64_t value_dim, const float *query_norm, const float *key_norm, float eps, const float *rotations,
                           const int64_t *places, int64_t block_size, void *query, void *keys, void *values) {
    rope_head(0, joint, tokens, head, heads, kv_heads, key_dim, value_dim, query_norm, key_norm, eps, rotations, places, block_size, query, keys,
              values);
}

/* See `rope_store` in attention.py. */
void rope_store(int64_t is_bf16, const void *joint, const float *query_norm, const float *key_norm, const float *rotations,
                const int64_t *places, void *query, void *keys, void *values, int64_t tokens, int64_t heads, int64_t kv_heads,
                int64_t key_dim, int64_t value_dim, int64_t block_size, double eps) {
    const int64_t all = heads + 2 * kv_heads;
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (tokens * all * key_dim > 16384)
    for (int64_t head = 0; head < all; head++) {
        if (is_bf16)
            rope_head_bf16(joint, tokens, head, heads, kv_heads, key_dim, value_dim, query_norm, key_norm, (float)eps, rotations, places,
                           block_size, query, keys, values);
        else
            rope_head_fp32(joint, tokens, head, heads, kv_heads, key_dim, value_dim, query_norm, key_norm, (float)eps, rotations, places,
                           block_size, query, keys, values);
    }
}

/* See `store` in attention.py. */
void store(int64_t is_bf16, const void *key, const void *value, const int64_t *places, void *keys, void *values, int64_t tokens,
           int64_t kv_heads, int64_t key_dim, int64_t value_dim, int64_t block_size) {
    const int64_t size = is_bf16 ? 2 : 4;
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (tokens * kv_heads * key_dim > 16384)
    for (int64_t head = 0; head < kv_heads; head++)
        for (int64_t token = 0; token < tokens; token++) {
            const int64_t place = places[token], block = place / block_size * kv_heads + head, offset = place % block_size;
            const char *k = (const char *)key + (token * kv_heads + head) * key_dim * size;
            const char *v = (const char *)value + (token * kv_heads + head) * value_dim * size;
            if (place < 0) continue;
            if (is_bf16) {
                store_key(1, k, keys, block, offset, block_size, key_dim);
                store_value(1, v, values, block, offset, block_size, value_dim);
            } else {
                store_key(0, k, keys, block, offset, block_size, key_dim);
                store_value(0, v, values, block, offset, block_size, value_dim);
            }
        }
}

STEP(rope_store, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].p, w[7].p, w[8].p, w[9].i, w[10].i, w[11].i, w[12].i, w[13].i, w[14].i,
     w[15].f)
STEP(store, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].i, w[7].i, w[8].i, w[9].i, w[10].i)
