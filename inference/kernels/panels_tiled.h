/* The product of panels.h by tiles (AMX), for the same weights. Include it instead, after TILE_PRODUCT(sums, x, weights) is
 * defined too. */
#include "threads.h"
#include "tiles.h"

#ifdef INTEGERS
typedef vi sum;
#else
typedef vf sum;
#endif

/* Words from one row to its next, as the product reads them: whole steps. In bf16 the words behind a row's last are zeros then,
 * since weights of zero don't undo what isn't finite. */
INLINE int64_t steps_of(int64_t words) { return (words + TILE_WORDS - 1) / TILE_WORDS; }
INLINE int64_t stride_of(int64_t words) { return steps_of(words) * TILE_WORDS; }
/* The registers 0 to 3 hold sums, 4 and 5 rows of x, 6 and 7 weights. */
INLINE void begin_products(int64_t count) {
    Shape shape = {.palette = 1};
    const int rows = count < 1 ? 1 : count < TILE_ROWS ? (int)count : TILE_ROWS; /* no register is empty */
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = 4 * TILE_WORDS;
        shape.rows[i] = (uint8_t)(i < 6 ? rows : TILE_ROWS);
    }
    set_shape(&shape);
}

#define STEP_WORDS (TILE_WORDS * COLUMNS) /* of a panel, for one step */
#define AHEAD (2 * STEP_WORDS)

/* What one panel's products need beside x: its whole steps, what is left of it as one more, and where the next weights lie. */
typedef struct {
    const uint32_t *whole, *rest, *ahead;
    int64_t wholes, steps;
} Panel;

INLINE const uint32_t *weights_of(const Panel *p, int64_t step) { return step < p->wholes ? p->whole + step * STEP_WORDS : p->rest; }

/* Rows of x: where the first begins, bytes from one to the next within a tile, words from a step to the next, and from one tile to
 * the next, which holds the rows from `apart` on. */
typedef struct {
    const uint32_t *first;
    int64_t bytes, step, tile, apart;
} Rows;

/* One tile of rows, for all columns. With `streams` the weights come from memory, and are fetched a little ahead. */
INLINE void one_tile(const int streams, const Panel *p, Rows x, sum (*sums)[PANEL]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < p->steps; step++) {
        const uint32_t *w = weights_of(p, step);
        for (int line = 0; streams && line < STEP_WORDS / LANES; line++) prefetch(p->whole + step * STEP_WORDS + AHEAD + line * LANES);
        _tile_loadd(4, x.first + step * x.step, x.bytes);
        _tile_loadd(6, w, 4 * COLUMNS);
        TILE_PRODUCT(0, 4, 6);
        _tile_loadd(7, w + LANES, 4 * COLUMNS);
        TILE_PRODUCT(1, 4, 7);
        _tile_loadd(6, w + 2 * LANES, 4 * COLUMNS);
        TILE_PRODUCT(2, 4, 6);
        _tile_loadd(7, w + 3 * LANES, 4 * COLUMNS);
        TILE_PRODUCT(3, 4, 7);
    }
    _tile_stored(0, &sums[0][0], sizeof *sums);
    _tile_stored(1, &sums[0][1], sizeof *sums);
    _tile_stored(2, &sums[0][2], sizeof *sums);
    _tile_stored(3, &sums[0][3], sizeof *sums);
}

/* Two tiles of rows, for one half of the columns after the other. With `streams` the first half fetches for both; else each
 * step fetches `lines` lines of the next panel. */
INLINE void two_tiles(const int streams, const Panel *p, int lines, Rows x, sum (*sums)[PANEL]) {
    const uint32_t *ahead = p->ahead;
    for (int half = 0; half < 2; half++) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t step = 0; step < p->steps; step++) {
            const uint32_t *w = weights_of(p, step) + half * 2 * LANES, *rows = x.first + step * x.step;
            for (int line = 0; streams && !half && line < STEP_WORDS / LANES; line++) prefetch(p->whole + step * STEP_WORDS + AHEAD + line * LANES);
            for (int line = 0; !streams && line < lines; line++, ahead += LANES) prefetch_far(ahead);
            _tile_loadd(4, rows, x.bytes);
            _tile_loadd(6, w, 4 * COLUMNS);
            _tile_loadd(5, rows + x.tile, x.bytes);
            _tile_loadd(7, w + LANES, 4 * COLUMNS);
            TILE_PRODUCT(0, 4, 6);
            TILE_PRODUCT(1, 4, 7);
            TILE_PRODUCT(2, 5, 6);
            TILE_PRODUCT(3, 5, 7);
        }
        _tile_stored(0, &sums[0][2 * half], sizeof *sums);
        _tile_stored(1, &sums[0][2 * half + 1], sizeof *sums);
        _tile_stored(2, &sums[x.apart][2 * half], sizeof *sums);
        _tile_stored(3, &sums[x.apart][2 * half + 1], sizeof *sums);
    }
}

static void rows_by_one(int streams, const Panel *p, const Rows *x, sum (*sums)[PANEL]) {
    if (streams) one_tile(1, p, *x, sums);
    else one_tile(0, p, *x, sums);
}

static void rows_by_two(int streams, const Panel *p, int lines, const Rows *x, sum (*sums)[PANEL]) {
    if (streams) two_tiles(1, p, 0, *x, sums);
    else two_tiles(0, p, lines, *x, sums);
}

/* Fill `rest`, room for a step, with what a panel of `words` words has behind its whole steps and zeros. */
static Panel panel_of(const uint32_t *packed, int64_t number, int64_t words, uint32_t *rest) {
    const uint32_t *w = packed + number * words * COLUMNS;
    const int64_t wholes = words / TILE_WORDS, left = words % TILE_WORDS;
    if (left) {
        memset(rest, 0, STEP_WORDS * 4);
        memcpy(rest, w + wholes * STEP_WORDS, (size_t)(left * COLUMNS) * 4);
    }
    return (Panel){w, rest, NULL, wholes, steps_of(words)};
}

/* Lay `count` rows out as tiles, [tiles][steps][TILE_ROWS][TILE_WORDS]. */
static void lay_out(const uint32_t *x, int64_t count, int64_t steps, uint32_t *to) {
    for (int64_t row = 0; row < count; row += TILE_ROWS)
        for (int64_t step = 0; step < steps; step++, to += TILE_SIZE)
            for (int64_t i = 0; i < TILE_ROWS && row + i < count; i++)
                v_store(to + i * TILE_WORDS, v_load(x + ((row + i) * steps + step) * TILE_WORDS));
}

/* Rows `row` and behind of `count`, two tiles or one: of tiles laid out at `copy`, or else where they are, so that the last tile
 * reaches back where it would hold fewer rows than the registers; those computed twice are the same. */
INLINE Rows rows_of(const uint32_t *x, const uint32_t *copy, int64_t steps, int64_t row, int64_t count, int64_t *back) {
    const int64_t stride = steps * TILE_WORDS, left = count - row;
    const int64_t apart = left < 2 * TILE_ROWS && left > TILE_ROWS ? left - TILE_ROWS : TILE_ROWS;
    *back = !copy && left < TILE_ROWS && row ? TILE_ROWS - left : 0;
    if (copy) return (Rows){copy + row * stride, 4 * TILE_WORDS, TILE_SIZE, steps * TILE_SIZE, TILE_ROWS};
    return (Rows){x + (row - *back) * stride, 4 * stride, TILE_WORDS, apart * stride, apart};
}

#ifndef BLOCK /* tests have a smaller one */
#define BLOCK (320 << 10) /* words of x that are laid out at a time: the second cache holds them beside two panels */
#endif
#define WORTHWHILE 4 /* panels that pay for laying out x */

/* Multiply the `count` rows in `x` with all panels of `packed`, this thread's part of them. Up to two tiles are done before
 * the memory has brought the next weights; many take their time, and share out the next panel's lines. Tiles of many rows
 * are first laid out as they are read, by each thread for itself, since its own cache brings them faster than another's. */
#define MULTIPLY \
    do { \
        const int64_t steps = steps_of(words), me = thread_number(), all = omp_get_num_threads(); \
        const int64_t own = panels * me / all, end = panels * (me + 1) / all; \
        const int64_t fitting = BLOCK / stride / (2 * TILE_ROWS) * 2 * TILE_ROWS; \
        const int64_t block = fitting > 2 * TILE_ROWS ? fitting : 2 * TILE_ROWS; \
        const int copies = count > 2 * TILE_ROWS && end - own >= WORTHWHILE; \
        uint32_t *const copy = copies ? scratch(2, (size_t)((block < count ? block : count + TILE_ROWS) * stride) * 4) : NULL; \
        sum held[2 * TILE_ROWS][PANEL]; \
        uint32_t rest[STEP_WORDS]; \
        begin_products(count); \
        for (int64_t from = 0, here; from < count && own < end; from += here) { \
            here = copy && count - from > block ? block : count - from; \
            const int64_t pairs = (here + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS); \
            if (copy) lay_out(x + from * stride, here, steps, copy); \
            for (int64_t panel = own; panel < end; panel++) { \
                const int64_t next = panel + 1 < end ? panel + 1 : from + here < count ? own : -1; \
                const int lines = next >= 0 && pairs > 1 ? (int)((STEP_WORDS / LANES / 2 + pairs - 1) / pairs) : 0; \
                Panel panel_here = panel_of(packed, panel, words, rest); \
                panel_here.ahead = packed + next * words * COLUMNS; \
                settle(rest); \
                for (int64_t row = 0; row < here; row += 2 * TILE_ROWS) { \
                    const int64_t left = here - row < 2 * TILE_ROWS ? here - row : 2 * TILE_ROWS; \
                    int64_t back; \
                    const Rows rows_here = rows_of(x + from * stride, copy, steps, row, here, &back); \
                    sum(*done)[PANEL] = held + back; \
                    if (left > TILE_ROWS) rows_by_two(pairs == 1, &panel_here, lines, &rows_here, held); \
                    else rows_by_one(pairs == 1, &panel_here, &rows_here, held); \
                    panel_here.ahead += 2 * panel_here.steps * lines * LANES; \
                    FINISH(done, from + row, (int)left, panel * COLUMNS) \
                } \
            } \
        } \
        _tile_release(); \
    } while (0)
