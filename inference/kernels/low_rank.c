/* What adapters add to a linear layer: for the tokens of each, (x · downᵀ) · upᵀ, for all adapters of a step in one call.
 *
 * A token's product with `down` is a sum of lanes over its inputs in their order, with `up` one chain of DOT over the ranks,
 * whatever is computed beside it: its result depends on that token and its adapter alone, to the bit.
 */
#include "simd.h"
#include "program.h"
#include "threads.h"

#define TALL (WIDE ? 4 : 2) /* rows of a tile */
#define DEEP 4              /* and ranks, in the first product */
#define BLOCK 8             /* rows of one adapter that are computed together */
#define SMALL 150000        /* products that one thread computes before others have begun */
#define EACH_WORD (is_bf16 ? 2 : 1)

/* A module of the layer: its ranks are `words` words behind the first `first`, its outputs `outputs` behind `begin`; `up` is
 * packed in panels like a linear layer's weight. */
typedef struct {
    int64_t first, words, begin, outputs;
    const uint32_t *up;
} Part;
/* `down` has `words` words of ranks, whose inputs fill whole vectors. */
typedef struct {
    const char *down;
    int64_t words, parts;
    Part part[];
} Pair;
/* An adapter has a pair for each place, or NULL; its tokens are those of [begin, end). */
typedef struct {
    const Pair *const *places;
    int64_t begin, end;
} Span;
typedef struct {
    int64_t count;
    Span span[];
} Step;
typedef struct {
    const Pair *pair;
    int64_t row, rows;
} Item;

INLINE vf dot_word(int is_bf16, vf acc, uint32_t x, vf w) { return is_bf16 ? v_dot_bf16(acc, x, w) : v_dot_fp32(acc, x, w); }
INLINE vf dot_vector(int is_bf16, vf acc, vf x, vf w) { return is_bf16 ? v_dot_pairs(acc, x, w) : v_fma(x, w, acc); }

/* sums[row][rank] of `rows` rows of x, `inputs` elements each, and DEEP ranks of `down`, `pitch` bytes each. */
INLINE void shrink_tile(int is_bf16, const int rows, const char *x, const char *down, int64_t inputs, int64_t pitch, float (*sums)[DEEP]) {
    const int64_t width = inputs * 4 / EACH_WORD, whole = width / 64 * 64;
    vf acc[TALL][DEEP];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < DEEP; j++) acc[i][j] = v_set(0.0f);
    for (int64_t d = 0; d < whole; d += 64) {
        vf w[DEEP];
        for (int j = 0; j < DEEP; j++) w[j] = v_load(down + j * pitch + d);
        for (int i = 0; i < rows; i++) {
            const vf v = v_load(x + i * width + d);
            for (int j = 0; j < DEEP; j++) acc[i][j] = dot_vector(is_bf16, acc[i][j], v, w[j]);
        }
    }
    if (whole < width)
        for (int i = 0; i < rows; i++) {
            lanes rest = {{0}};
            memcpy(&rest, x + i * width + whole, (size_t)(width - whole));
            const vf v = v_load(&rest);
            for (int j = 0; j < DEEP; j++) acc[i][j] = dot_vector(is_bf16, acc[i][j], v, v_load(down + j * pitch + whole));
        }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < DEEP; j++) sums[i][j] = v_sum(acc[i][j]);
}

INLINE void put(int is_bf16, uint32_t *row, int64_t rank, float value) {
    if (is_bf16) {
        bf16 rounded[LANES];
        v_to_bf16(rounded, v_set(value));
        ((bf16 *)row)[rank] = rounded[0];
    } else {
        memcpy(row + rank, &value, 4);
    }
}

/* The ranks [from, to) of `hidden` for an item's rows. Both are multiples of DEEP or the end of the ranks. */
INLINE void shrink(int is_bf16, const Item *item, const char *x, uint32_t *hidden, int64_t stride, int64_t inputs, int64_t from, int64_t to) {
    const int64_t width = inputs * 4 / EACH_WORD, pitch = (width + 63) / 64 * 64;
    float sums[TALL][DEEP];
    for (int64_t rank = from; rank < to; rank += DEEP) {
        const char *down = item->pair->down + rank * pitch;
        for (int64_t i = 0; i < item->rows;) {
            const int64_t row = item->row + i;
            const char *at = x + row * width;
            int rows = 1;
            if (item->rows - i >= TALL) shrink_tile(is_bf16, rows = TALL, at, down, inputs, pitch, sums);
            else if (item->rows - i >= 2) shrink_tile(is_bf16, rows = 2, at, down, inputs, pitch, sums);
            else shrink_tile(is_bf16, 1, at, down, inputs, pitch, sums);
            for (int r = 0; r < rows; r++)
                for (int64_t j = 0; j < DEEP && rank + j < to; j++) put(is_bf16, hidden + (row + r) * stride, rank + j, sums[r][j]);
            i += rows;
        }
    }
}

INLINE void expand_tile(int is_bf16, const int rows, const uint32_t *hidden, int64_t stride, const uint32_t *up, int64_t words, void *out,
                        int64_t at, int64_t pitch, int64_t left) {
    vf acc[TALL][PANEL];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) acc[i][j] = v_set(0.0f);
    for (int64_t k = 0; k < words; k++) {
        vf w[PANEL];
        for (int j = 0; j < PANEL; j++) w[j] = v_load(up + k * COLUMNS + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < PANEL; j++) acc[i][j] = dot_word(is_bf16, acc[i][j], hidden[i * stride + k], w[j]);
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) {
            const int64_t rest = left - j * LANES, place = at + i * pitch + j * LANES;
            if (rest > 0) v_write_some(is_bf16, out, place, v_add(v_read_some(is_bf16, out, place, rest), acc[i][j]), rest);
        }
}

/* Add to an item's rows of `out`, in the share [piece, piece + 1) / pieces of the panels of all its modules. */
INLINE void expand(int is_bf16, const Item *item, const uint32_t *hidden, int64_t stride, void *out, int64_t outputs, int64_t piece, int64_t pieces) {
    const Pair *pair = item->pair;
    int64_t all = 0, number = 0;
    for (int64_t p = 0; p < pair->parts; p++) all += (pair->part[p].outputs + COLUMNS - 1) / COLUMNS;
    const int64_t from = all * piece / pieces, to = all * (piece + 1) / pieces;
    for (int64_t p = 0; p < pair->parts; p++) {
        const Part *part = &pair->part[p];
        for (int64_t column = 0; column < part->outputs; column += COLUMNS, number++) {
            if (number < from || number >= to) continue;
            const uint32_t *up = part->up + column * part->words;
            for (int64_t i = 0; i < item->rows;) {
                const int64_t row = item->row + i, at = row * outputs + part->begin + column, left = part->outputs - column;
                const uint32_t *own = hidden + row * stride + part->first;
                int rows = 1;
                if (item->rows - i >= TALL) expand_tile(is_bf16, rows = TALL, own, stride, up, part->words, out, at, outputs, left);
                else if (item->rows - i >= 2) expand_tile(is_bf16, rows = 2, own, stride, up, part->words, out, at, outputs, left);
                else expand_tile(is_bf16, 1, own, stride, up, part->words, out, at, outputs, left);
                i += rows;
            }
        }
    }
}

INLINE int of_type(int is_bf16, const Step *step, int64_t place, const void *x, void *out, int64_t tokens, int64_t outputs, int64_t inputs) {
    int64_t stride = 0, count = 0, work = 0;
    Item *items = scratch(0, (size_t)tokens * sizeof(Item));
    if (!items) return 1;
    for (int64_t s = 0; s < step->count; s++) {
        const Span *span = &step->span[s];
        const Pair *pair = span->places[place];
        if (!pair) continue;
        if (pair->words > stride) stride = pair->words;
        work += (span->end - span->begin) * pair->words * EACH_WORD * (inputs + outputs);
        for (int64_t row = span->begin; row < span->end; row += BLOCK)
            items[count++] = (Item){pair, row, span->end - row < BLOCK ? span->end - row : BLOCK};
    }
    if (!count) return 0;
    uint32_t *hidden = scratch(1, (size_t)(tokens * stride) * 4);
    if (!hidden) return 1;
    const int64_t pieces = count < 4 * kernel_threads ? 4 * kernel_threads / count : 1;
#pragma omp parallel num_threads(kernel_threads) if (work > SMALL)
    {
#pragma omp for schedule(static)
        for (int64_t n = 0; n < count * pieces; n++) {
            const Item *item = &items[n / pieces];
            const int64_t ranks = item->pair->words * EACH_WORD, tiles = (ranks + DEEP - 1) / DEEP, piece = n % pieces;
            const int64_t from = tiles * piece / pieces * DEEP, to = tiles * (piece + 1) / pieces * DEEP;
            shrink(is_bf16, item, x, hidden, stride, inputs, from, to < ranks ? to : ranks);
        }
#pragma omp for schedule(static)
        for (int64_t n = 0; n < count * pieces; n++)
            expand(is_bf16, &items[n / pieces], hidden, stride, out, outputs, n % pieces, pieces);
    }
    return 0;
}

/* Add to out [tokens, outputs] what the adapters of `step` give for x [tokens, inputs] at the layer `place`, in place. Return
 * 0, or 1 where memory ran out. */
int low_rank(int64_t is_bf16, const Step *step, int64_t place, const void *x, void *out, int64_t tokens, int64_t outputs, int64_t inputs) {
    if (is_bf16) return of_type(1, step, place, x, out, tokens, outputs, inputs);
    return of_type(0, step, place, x, out, tokens, outputs, inputs);
}

CHECKED_STEP(low_rank, w[0].i, w[1].p, w[2].i, w[3].p, w[4].p, w[5].i, w[6].i, w[7].i)
