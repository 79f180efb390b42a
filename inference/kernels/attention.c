/* Attention over paged K/V, for decoding rows and prefill chunks alike.
 *
 * A block of `keys` holds, for each K/V head, its positions as lanes: [key_dim / 4][block_size] words of four bytes,
 * [key_dim / 2][block_size] pairs of bf16, or [key_dim][block_size] floats; a block of `values` [block_size / 4][value_dim]
 * words of four positions, [block_size / 2][value_dim] pairs of positions, or [block_size][value_dim] floats. So neither
 * product needs a transposition or a sum across lanes. In eight bits each position's key and value have a scale for each
 * head (attention_int8.h): [block_size] floats beside them.
 *
 * `each` is how many elements a word holds, which tells what K/V are: 1 float32, 2 bf16, 4 bytes.
 *
 * A query's result is computed over tiles of TILE positions from absolute position 0 on, in order, with the maximum and
 * the sum carried along. What other queries share a tile changes nothing: their keys have weight 0 exactly.
 */
#include "simd.h"
#include "program.h"
#include "threads.h"
#include "tiles.h"

#define TILE 64
#define TILE_VECTORS (TILE / LANES)
#define UNIT (TILED ? 32 : 24) /* queries × heads that one thread computes together */
#define FEW 4   /* with up to so many rows memory is always waited for; with more, by a unit's first rows */
#define LOWEST -3.0e38f

typedef struct {
    const void *query, *keys, *values;
    const float *key_scales, *value_scales; /* of bytes, else NULL */
    const float *sinks;
    void *out;
    const int32_t *begins, *lengths, *slots, *tables;
    int64_t rows, width, heads, kv_heads, key_dim, value_dim, block_size, window;
    float scale, softcap;
} Attention;

#include "attention_int8.h"
#include "attention_tiled.h"

INLINE vf dot(int is_bf16, vf acc, uint32_t x, vf w) { return is_bf16 ? v_dot_bf16(acc, x, w) : v_dot_fp32(acc, x, w); }

/* Scores of `rows` queries with PANEL vectors of keys. A unit's first rows, and any that are FEW, fetch meanwhile what comes
 * next: the values of these positions, `ahead`. */
INLINE void score(int is_bf16, const int rows, int is_first, const uint32_t *query, int64_t words, const uint32_t *const *keys,
                  const uint32_t *const *ahead, int64_t ahead_words, int64_t block_size, float *scores) {
    vf acc[ROWS][PANEL];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) acc[i][j] = v_set(0.0f);
    for (int64_t k = 0; k < words; k++) {
        vf panel[PANEL];
        for (int j = 0; j < PANEL; j++) panel[j] = v_load(keys[j] + k * block_size);
        if ((rows <= FEW || is_first) && k < ahead_words)
            for (int j = 0; j < PANEL; j++) prefetch(ahead[j] + k * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < PANEL; j++) acc[i][j] = dot(is_bf16, acc[i][j], query[i * words + k], panel[j]);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) v_store(scores + i * TILE + j * LANES, acc[i][j]);
}

/* Add the first `count` positions' values from column `column` on, times their weights, to `vectors` vectors of the sums of
 * `rows` queries. The keys that come next, `ahead`, are fetched meanwhile, as in `score`. */
INLINE void mix(int is_bf16, const int rows, int is_first, const int vectors, const float *weights, const uint32_t *const *values, int64_t column,
                const uint32_t *const *ahead, int64_t ahead_words, int64_t block_size, int count, int64_t value_dim, float *sums) {
    vf acc[ROWS][PANEL];
    const int step = is_bf16 ? 2 : 1, chunk = LANES / step; /* words of one vector of positions */
    sums += column;
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) acc[i][j] = v_load(sums + i * value_dim + j * LANES);
    for (int k = 0; k < (count + step - 1) / step; k++) {
        const int64_t word = (k % chunk) * value_dim + column;
        const uint32_t *from = values[k / chunk] + word;
        vf panel[PANEL];
        for (int j = 0; j < vectors; j++) panel[j] = v_load(from + j * LANES);
        if ((rows <= FEW || is_first) && word / LANES < ahead_words)
            for (int j = 0; j < vectors; j++) prefetch(ahead[k / chunk] + (word / LANES + j) * block_size);
        if (is_bf16 && 2 * k + 1 == count) /* the pair's second position is past the end: anything may lie there */
            for (int j = 0; j < vectors; j++) panel[j] = v_low_halves(panel[j]);
        for (int i = 0; i < rows; i++) {
            uint32_t word;
            memcpy(&word, (const char *)(weights + i * TILE) + 4 * k, 4);
            for (int j = 0; j < vectors; j++) acc[i][j] = dot(is_bf16, acc[i][j], word, panel[j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) v_store(sums + i * value_dim + j * LANES, acc[i][j]);
}

#if ROWS > 2
#define FOR_ROWS(count, call) \
    switch (count) { \
        case 1: { enum { rows = 1 }; call; break; } \
        case 2: { enum { rows = 2 }; call; break; } \
        case 3: { enum { rows = 3 }; call; break; } \
        case 4: { enum { rows = 4 }; call; break; } \
        case 5: { enum { rows = 5 }; call; break; } \
        default: { enum { rows = ROWS }; call; } \
    }
#else
#define FOR_ROWS(count, call) \
    switch (count) { \
        case 1: { enum { rows = 1 }; call; break; } \
        default: { enum { rows = ROWS }; call; } \
    }
#endif

/* Turn one query's scores of a tile, of which those in [first, last) are visible, into weights; carry maximum and sum. */
INLINE void soften(int is_bf16, float *scores, int first, int last, float scale, float softcap, float *peak, float *total, float *sums,
                   int64_t value_dim) {
    vf s[TILE_VECTORS], top = v_set(*peak), added = v_load(total);
    const int whole = first <= 0 && last >= TILE;
    for (int j = 0; j < TILE_VECTORS; j++) {
        s[j] = v_mul(v_load(scores + j * LANES), v_set(scale));
        if (softcap > 0) { /* cap · tanh(s / cap); NaN stays */
            const vf twice = v_exp(v_mul(s[j], v_set(2.0f / softcap)));
            const vf bounded = v_where(s[j], v_set(40.0f * softcap), v_set(1.0f), v_div(v_sub(twice, v_set(1.0f)), v_add(twice, v_set(1.0f))));
            s[j] = v_mul(bounded, v_set(softcap));
        }
        if (!whole) s[j] = v_between(first - j * LANES, last - j * LANES, s[j], v_set(-INFINITY));
        top = v_max(s[j], top);
    }
    const float highest = v_peak(top);
    if (highest != *peak) {
        const vf shrink = v_exp(v_set(*peak - highest));
        added = v_mul(added, shrink);
        for (int64_t d = 0; d < value_dim; d += LANES) v_store(sums + d, v_mul(v_load(sums + d), shrink));
        *peak = highest;
    }
    for (int j = 0; j < TILE_VECTORS; j++) {
        const vf weight = v_exp(v_sub(s[j], v_set(highest)));
        if (is_bf16) { /* in place: a vector of bf16 never reaches the scores that are still to be read */
            v_to_bf16((bf16 *)scores + j * LANES, weight);
            added = v_add(added, v_from_bf16((bf16 *)scores + j * LANES));
        } else {
            v_store(scores + j * LANES, weight);
            added = v_add(added, weight);
        }
    }
    v_store(total, added);
}

/* Where the keys and values of a tile's vectors of positions lie, and their scales. */
typedef struct {
    const uint32_t *keys[TILE_VECTORS], *values[TILE_VECTORS];
    const float *key_scales[TILE_VECTORS], *value_scales[TILE_VECTORS];
} Lines;

/* The lines of the tile at position `tile`; past `end`, its first. */
INLINE void find(const int each, const Attention *a, const int32_t *table, int64_t kv_head, int64_t tile, int64_t end, Lines *lines) {
    for (int j = 0; j < TILE_VECTORS; j++) {
        const int64_t position = tile + j * LANES < end ? tile + j * LANES : tile, offset = position % a->block_size;
        const int64_t at = table[position / a->block_size] * a->kv_heads + kv_head;
        lines->keys[j] = (const uint32_t *)a->keys + at * (a->key_dim / each) * a->block_size + offset;
        lines->values[j] = (const uint32_t *)a->values + (at * a->block_size + offset) / each * a->value_dim;
        if (each != 4) continue;
        lines->key_scales[j] = a->key_scales + at * a->block_size + offset;
        lines->value_scales[j] = a->value_scales + at * a->block_size + offset;
        prefetch(lines->key_scales[j]);
        prefetch(lines->value_scales[j]);
    }
}

/* What one thread computes together: of row `row` and each of `kv_heads` K/V heads from `kv_head` on, `count` (query, head)
 * pairs from number `first` on. */
typedef struct {
    int32_t row, kv_head, kv_heads, first, count;
} Unit;

INLINE void attend_unit(const int each, int is_bf16, const int tiled, const Attention *a, const Unit *u, float *memory) {
    const int64_t group = a->heads / a->kv_heads, words = a->key_dim / each, size = is_bf16 ? 2 : 4, stride = each == 4 ? 2 * words : words;
    const int64_t row = u->row, first = u->first, queries = a->begins[row + 1] - a->begins[row], start = a->lengths[row] - queries;
    const int count = u->count, all = count * u->kv_heads;
    const int64_t end = start + (first + count - 1) / group + 1, earliest = start + first / group; /* positions of the last and first query */
    const int32_t *table = a->tables + (int64_t)a->slots[row] * a->width;
    uint32_t *query = (uint32_t *)memory;
    float *scores = memory + UNIT * a->key_dim, *sums = scores + UNIT * TILE, peak[UNIT], total[UNIT * LANES];
    Halves halves[UNIT]; /* of queries in two bytes, for keys of one */
    for (int i = 0; i < all; i++) {
        const int64_t pair = first + i % count;
        const int64_t token = a->begins[row] + pair / group, head = (u->kv_head + i / count) * group + pair % group;
        const int64_t from = (token * a->heads + head) * a->key_dim;
        if (each == 4) halves[i] = halve(is_bf16, a->query, from, query + i * stride, a->key_dim);
        else memcpy(query + i * words, (const char *)a->query + from * size, (size_t)(words * 4));
        peak[i] = a->sinks ? a->sinks[head] : LOWEST;
        memset(total + i * LANES, 0, LANES * sizeof *total);
        if (a->sinks) total[i * LANES] = 1.0f;
    }
    memset(sums, 0, (size_t)(all * a->value_dim) * 4);
#if TILED
    uint32_t *rest = (uint32_t *)(sums + UNIT * a->value_dim);
    if (tiled) shape_attention(count);
#endif
    const int64_t seen = a->window > 0 && earliest - a->window + 1 > 0 ? earliest - a->window + 1 : 0, begin = seen / TILE * TILE;
    Lines now, next;
    find(each, a, table, u->kv_head, begin, end, &next);
    for (int64_t tile = begin; tile < end; tile += TILE)
        for (int part = 0; part < u->kv_heads; part++) { /* side by side in memory */
            const int last = part + 1 == u->kv_heads;
            const int64_t behind = !last ? tile : tile + TILE < end ? tile + TILE : tile;
            now = next;
            find(each, a, table, u->kv_head + (last ? 0 : part + 1), behind, end, &next);
            const int64_t visible = end - tile < TILE ? end - tile : TILE;
            const uint32_t *own_query = query + part * count * stride;
            float *own_sums = sums + part * count * a->value_dim;
            float steps[UNIT]; /* what a weight in two bytes counts */
#if TILED
            if (tiled) score_tiled(count, own_query, words, now.keys, now.values, a->value_dim / each, a->block_size, scores);
            else
#endif
            if (each == 4)
                for (int i = 0; i < count; i += PAIRS)
                    for (int j = 0; j < TILE_VECTORS && j * LANES < visible; j += PANEL)
                        FOR_PAIRS(count - i, score_int8(pairs, i == 0, own_query + i * stride, words, now.keys + j, now.values + j, a->value_dim / each, a->block_size, halves + part * count + i, now.key_scales + j, scores + i * TILE + j * LANES))
            else
                for (int i = 0; i < count; i += ROWS)
                    for (int j = 0; j < TILE_VECTORS && j * LANES < visible; j += PANEL)
                        FOR_ROWS(count - i, score(is_bf16, rows, i == 0, own_query + i * words, words, now.keys + j, now.values + j, a->value_dim / each, a->block_size, scores + i * TILE + j * LANES))
            for (int i = 0; i < count; i++) {
                const int64_t position = start + (first + i) / group, low = a->window > 0 ? position - a->window + 1 - tile : -tile;
                const int64_t high = position + 1 - tile;
                const int from = low > TILE ? TILE : low < 0 ? 0 : (int)low, to = high > TILE ? TILE : high < 0 ? 0 : (int)high;
                const int state = part * count + i;
                soften(each == 2, scores + i * TILE, from, to, a->scale, a->softcap, peak + state, total + state * LANES,
                       own_sums + i * a->value_dim, a->value_dim);
                if (each == 4) steps[i] = halve_weights(scores + i * TILE, now.value_scales, from, to);
            }
#if TILED
            if (tiled) mix_tiled(count, scores, now.values, next.keys, words, a->block_size, (int)visible, a->value_dim, rest, own_sums);
            else
#endif
            if (each == 4)
                for (int i = 0; i < count; i += PAIRS) {
                    int64_t d = 0;
                    for (; d + COLUMNS <= a->value_dim; d += COLUMNS)
                        FOR_PAIRS(count - i, mix_int8(pairs, i == 0, PANEL, scores + i * TILE, steps + i, now.values, d, next.keys, words, a->block_size, (int)visible, a->value_dim, own_sums + i * a->value_dim))
                    for (; d < a->value_dim; d += LANES)
                        FOR_PAIRS(count - i, mix_int8(pairs, i == 0, 1, scores + i * TILE, steps + i, now.values, d, next.keys, words, a->block_size, (int)visible, a->value_dim, own_sums + i * a->value_dim))
                }
            else
                for (int i = 0; i < count; i += ROWS) {
                    int64_t d = 0;
                    for (; d + COLUMNS <= a->value_dim; d += COLUMNS)
                        FOR_ROWS(count - i, mix(is_bf16, rows, i == 0, PANEL, scores + i * TILE, now.values, d, next.keys, words, a->block_size, (int)visible, a->value_dim, own_sums + i * a->value_dim))
                    for (; d < a->value_dim; d += LANES)
                        FOR_ROWS(count - i, mix(is_bf16, rows, i == 0, 1, scores + i * TILE, now.values, d, next.keys, words, a->block_size, (int)visible, a->value_dim, own_sums + i * a->value_dim))
                }
        }
#if TILED
    if (tiled) _tile_release();
#endif
    for (int i = 0; i < all; i++) {
        const int64_t pair = first + i % count;
        const int64_t token = a->begins[row] + pair / group, head = (u->kv_head + i / count) * group + pair % group;
        for (int64_t d = 0; d < a->value_dim; d += LANES)
            v_write(is_bf16, a->out, (token * a->heads + head) * a->value_dim + d, v_div(v_load(sums + i * a->value_dim + d), v_set(v_sum(v_load(total + i * LANES)))));
    }
}

static void unit_bf16(const Attention *a, const Unit *u, float *memory) { attend_unit(2, 1, 0, a, u, memory); }
static void unit_tiled(const Attention *a, const Unit *u, float *memory) { attend_unit(2, 1, TILED, a, u, memory); }
static void unit_fp32(const Attention *a, const Unit *u, float *memory) { attend_unit(1, 0, 0, a, u, memory); }
static void unit_int8(int is_bf16, const Attention *a, const Unit *u, float *memory) { attend_unit(4, is_bf16, 0, a, u, memory); }

/* How many units the pairs of a row's queries make for each K/V head. */
static int64_t pieces_of(const Attention *a, int64_t row) {
    return ((int64_t)(a->begins[row + 1] - a->begins[row]) * (a->heads / a->kv_heads) + UNIT - 1) / UNIT;
}

/* See `attend` in attention.py. Return 0, or 1 where memory ran out. */
int attend(int64_t is_bf16, const void *query, const void *keys, const void *values, const float *key_scales, const float *value_scales,
           void *out, const int32_t *begins, const int32_t *lengths, const int32_t *slots, const int32_t *tables, const float *sinks,
           int64_t rows, int64_t width, int64_t heads, int64_t kv_heads, int64_t key_dim, int64_t value_dim, int64_t block_size,
           int64_t window, double scale, double softcap) {
    const Attention a = {query, keys, values, key_scales, value_scales, sinks, out, begins, lengths, slots, tables, rows, width, heads,
                         kv_heads, key_dim, value_dim, block_size, window, (float)scale, (float)softcap};
    const int64_t group = heads / kv_heads;
    int64_t most = 0, count = 0;
    for (int64_t row = 0; row < rows; row++) most += pieces_of(&a, row) * kv_heads;
    const int tiled = TILED && key_dim % (2 * LANES) == 0; /* whole tiles of queries */
    const size_t memory_words = (size_t)(UNIT * (key_dim + TILE + value_dim) + LANES / 2 * value_dim + LANES);
    float *memory = scratch(0, memory_words * 4 * (size_t)kernel_threads);
    Unit *units = scratch(1, (size_t)most * sizeof *units);
    if (!memory || !units) return 1;
    /* One query's K/V heads are read together, as they lie, while that leaves some units for each thread. */
    int64_t together = most / (2 * kernel_threads);
    together = together > UNIT / group ? UNIT / group : together;
    together = together > kv_heads ? kv_heads : together < 1 ? 1 : together;
    /* The last units of each row first: they see the most keys, and none of those may be left for the end. */
    for (int64_t row = 0; row < rows; row++)
        for (int64_t piece = pieces_of(&a, row) - 1; piece >= 0; piece--) {
            const int64_t first = piece * UNIT, left = (begins[row + 1] - begins[row]) * group - first;
            const int64_t side = begins[row + 1] - begins[row] == 1 && left <= UNIT ? together : 1;
            for (int64_t head = 0; head < kv_heads; head += side)
                units[count++] = (Unit){(int32_t)row, (int32_t)head, (int32_t)(kv_heads - head < side ? kv_heads - head : side), (int32_t)first,
                                        (int32_t)(left < UNIT ? left : UNIT)};
        }
#pragma omp parallel for num_threads(kernel_threads) schedule(dynamic, 1)
    for (int64_t i = 0; i < count; i++) {
        float *mine = memory + memory_words * (size_t)thread_number();
        if (key_scales) unit_int8((int)is_bf16, &a, units + i, mine);
        else if (is_bf16 && tiled) unit_tiled(&a, units + i, mine);
        else if (is_bf16) unit_bf16(&a, units + i, mine);
        else unit_fp32(&a, units + i, mine);
    }
    return 0;
}

CHECKED_STEP(attend, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].p, w[7].p, w[8].p, w[9].p, w[10].p, w[11].p, w[12].i, w[13].i,
             w[14].i, w[15].i, w[16].i, w[17].i, w[18].i, w[19].i, w[20].f, w[21].f)
