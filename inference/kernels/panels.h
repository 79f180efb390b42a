/* The product behind every linear layer: rows of words times panels of packed weights.
 *
 * Include it once, after DOT (`v_dot_…`) and FINISH(acc, row, rows, column) are defined, and INTEGERS where DOT sums those. Weights are packed as
 * [panels][words][COLUMNS] words of 32 bits; a word holds one float, two bf16 or four bytes of consecutive inputs. Each
 * output is one chain of DOT over the words in their order, whatever the number of rows, the tile and the thread: a row's
 * result depends on that row alone, to the bit.
 */
#include "simd.h"
#include "threads.h"

#ifdef INTEGERS
typedef vi sum;
#define ZERO i_zero()
#define WORDS i_load
#else
typedef vf sum;
#define ZERO v_set(0.0f)
#define WORDS v_load
#endif

/* Words from one row to its next, as the product reads them. */
INLINE int64_t stride_of(int64_t words) { return words; }

/* Go on with `acc` over `words` words. `lines` of each step's PANEL cache lines are fetched from `ahead` on, where the next
 * weights lie. */
INLINE void tile(const int rows, const int lines, const uint32_t *x, int64_t stride, const uint32_t *w, int64_t words,
                 const uint32_t *ahead, sum (*acc)[PANEL]) {
    sum own[ROWS][PANEL];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) own[i][j] = acc[i][j];
    for (int64_t k = 0; k < words; k++) {
        sum panel[PANEL];
        for (int j = 0; j < PANEL; j++) panel[j] = WORDS(w + k * COLUMNS + j * LANES);
        for (int j = 0; j < lines; j++) prefetch(ahead + k * COLUMNS + j * LANES);
        for (int i = 0; i < rows; i++) {
            const uint32_t word = x[i * stride + k];
            for (int j = 0; j < PANEL; j++) own[i][j] = DOT(own[i][j], word, panel[j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) acc[i][j] = own[i][j];
}

#if WIDE
#define TILE_OF(rows) \
    case rows: \
        if (lines == 4) tile(rows, 4, x, stride, w, words, ahead, acc); \
        else if (lines == 2) tile(rows, 2, x, stride, w, words, ahead, acc); \
        else if (lines == 1) tile(rows, 1, x, stride, w, words, ahead, acc); \
        else tile(rows, 0, x, stride, w, words, ahead, acc); \
        break;
#else
#define TILE_OF(rows) \
    case rows: tile(rows, 0 * lines, x, stride, w, words, ahead, acc); break;
#endif

static void any_tile(int rows, int lines, const uint32_t *x, int64_t stride, const uint32_t *w, int64_t words,
                     const uint32_t *ahead, sum (*acc)[PANEL]) {
    switch (rows) {
        TILE_OF(1)
        TILE_OF(2)
#if ROWS > 2
        TILE_OF(3)
        TILE_OF(4)
        TILE_OF(5)
        TILE_OF(6)
#endif
    }
}

/* Multiply the `count` rows of `words` words in `x` with panel `number` of `packed`.
 *
 * All tiles but a lone one compute from the cache, and fetch what comes next in memory meanwhile, so that memory never
 * rests: for few tiles the next CHUNK words of the panel, since what is in use and what comes both stay in the first cache
 * then; for many, which take their time, the whole next panel, if there is a `next`. */
#define MULTIPLY_PANEL(number, next) \
    do { \
        const uint32_t *w = packed + (number) * words * COLUMNS; \
        const int64_t stride = stride_of(words), tiles = (count + ROWS - 1) / ROWS, chunk = WIDE && tiles > 1 && tiles <= HELD ? CHUNK : words; \
        sum held[HELD][ROWS][PANEL]; \
        for (int64_t from = 0, row = 0; from < words; from += chunk, row = 0) { \
            const int64_t here = words - from < chunk ? words - from : chunk; \
            for (int64_t t = 0; t < tiles; t++) { \
                const int rows = (int)((count - row + tiles - t - 1) / (tiles - t)); \
                const int first = (int)(t * PANEL / tiles), last = (int)((t + 1) * PANEL / tiles); \
                const int is_end = from + here == words; \
                const int lines = !WIDE ? 0 : tiles == 1 ? PANEL : (is_end && !(next)) || t >= PANEL ? 0 : tiles > PANEL ? 1 : last - first; \
                const uint32_t *ahead = tiles == 1 ? w + AHEAD : w + (from + here) * COLUMNS + (tiles > PANEL ? t : first) * LANES; \
                sum (*acc)[PANEL] = held[tiles <= HELD ? t : 0]; \
                if (!from) \
                    for (int i = 0; i < rows * PANEL; i++) acc[i / PANEL][i % PANEL] = ZERO; \
                any_tile(rows, lines, x + row * stride + from, stride, w + from * COLUMNS, here, ahead, acc); \
                if (is_end) FINISH(acc, row, rows, (number) * COLUMNS) \
                row += rows; \
            } \
        } \
    } while (0)

/* Multiply the `count` rows in `x` with all panels of `packed`, this thread's part of them. */
#define MULTIPLY \
    _Pragma("omp for schedule(static)") for (int64_t panel = 0; panel < panels; panel++) MULTIPLY_PANEL(panel, panel + 1 < panels)

#define AHEAD 1024 /* words: a lone tile streams from memory, and fetches 4 KB ahead of itself */
#define CHUNK 32
#define HELD 8 /* tiles whose sums are kept from chunk to chunk */
