/* The product of panels.h by tiles (AMX), for the same weights. Include it instead, after TILE_PRODUCT(sums, x, weights) is
 * defined too. */
#include "threads.h"
#include "tiles.h"

#ifdef INTEGERS
typedef vi sum;
#else
typedef vf sum;
#endif

/* How rows of words are laid out for the product: [tiles][steps][TILE_ROWS][TILE_WORDS], so that a tile is one piece of memory. In
 * bf16 the words behind a row's last are zeros, since weights of zero don't undo what isn't finite. */
#define COPIES_ROWS 1
#define PITCH TILE_SIZE /* words from one piece of LANES words of a row to its next */
INLINE int64_t steps_of(int64_t words) { return (words + TILE_WORDS - 1) / TILE_WORDS; }
INLINE size_t room_for(int64_t count, int64_t words) { return (size_t)((count + TILE_ROWS - 1) / TILE_ROWS * steps_of(words) * TILE_SIZE) * 4; }
INLINE uint32_t *row_at(uint32_t *x, int64_t words, int64_t row) { return x + (row / TILE_ROWS * steps_of(words) * TILE_ROWS + row % TILE_ROWS) * TILE_WORDS; }
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
INLINE void end_products(void) { _tile_release(); }

#define STEP_WORDS (TILE_WORDS * COLUMNS) /* of a panel, for one step */
#define AHEAD (2 * STEP_WORDS)

/* What one panel's products need beside x: its whole steps, what is left of it as one more, and where the next weights lie. */
typedef struct {
    const uint32_t *whole, *rest, *ahead;
    int64_t wholes, steps;
} Panel;

INLINE const uint32_t *weights_of(const Panel *p, int64_t step) { return step < p->wholes ? p->whole + step * STEP_WORDS : p->rest; }

/* One tile of rows, for all columns. With `streams` the weights come from memory, and are fetched a little ahead. */
INLINE void one_tile(const int streams, const Panel *p, const uint32_t *x, sum (*sums)[PANEL]) {
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < p->steps; step++) {
        const uint32_t *w = weights_of(p, step);
        for (int line = 0; streams && line < STEP_WORDS / LANES; line++) prefetch(p->whole + step * STEP_WORDS + AHEAD + line * LANES);
        _tile_loadd(4, x + step * TILE_SIZE, 4 * TILE_WORDS);
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
INLINE void two_tiles(const int streams, const Panel *p, int lines, const uint32_t *x, sum (*sums)[PANEL]) {
    const uint32_t *below = x + p->steps * TILE_SIZE, *ahead = p->ahead;
    for (int half = 0; half < 2; half++) {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
        for (int64_t step = 0; step < p->steps; step++) {
            const uint32_t *w = weights_of(p, step) + half * 2 * LANES;
            if (streams && !half)
                for (int line = 0; line < STEP_WORDS / LANES; line++) prefetch(p->whole + step * STEP_WORDS + AHEAD + line * LANES);
            for (int line = 0; !streams && line < lines; line++, ahead += LANES) prefetch_far(ahead);
            _tile_loadd(4, x + step * TILE_SIZE, 4 * TILE_WORDS);
            _tile_loadd(6, w, 4 * COLUMNS);
            _tile_loadd(5, below + step * TILE_SIZE, 4 * TILE_WORDS);
            _tile_loadd(7, w + LANES, 4 * COLUMNS);
            TILE_PRODUCT(0, 4, 6);
            TILE_PRODUCT(1, 4, 7);
            TILE_PRODUCT(2, 5, 6);
            TILE_PRODUCT(3, 5, 7);
        }
        _tile_stored(0, &sums[0][2 * half], sizeof *sums);
        _tile_stored(1, &sums[0][2 * half + 1], sizeof *sums);
        _tile_stored(2, &sums[TILE_ROWS][2 * half], sizeof *sums);
        _tile_stored(3, &sums[TILE_ROWS][2 * half + 1], sizeof *sums);
    }
}

static void rows_by_one(int streams, const Panel *p, const uint32_t *x, sum (*sums)[PANEL]) {
    if (streams) one_tile(1, p, x, sums);
    else one_tile(0, p, x, sums);
}

static void rows_by_two(int streams, const Panel *p, int lines, const uint32_t *x, sum (*sums)[PANEL]) {
    if (streams) two_tiles(1, p, 0, x, sums);
    else two_tiles(0, p, lines, x, sums);
}

/* Fill `rest`, room for a step, with what a panel of `words` words has behind its whole steps and zeros. */
static Panel panel_of(const uint32_t *packed, int64_t number, int64_t words, uint32_t *rest) {
    const uint32_t *w = packed + number * words * COLUMNS;
    const int64_t wholes = words / TILE_WORDS, left = words % TILE_WORDS;
    if (left) {
        memset(rest, 0, STEP_WORDS * 4);
        memcpy(rest, w + wholes * STEP_WORDS, (size_t)(left * COLUMNS) * 4);
    }
    return (Panel){w, rest, w + words * COLUMNS, wholes, steps_of(words)};
}

/* Multiply the `count` rows in `x` with panel `number` of `packed`, between `begin_products` and `end_products`. Up to two tiles are done before the memory has brought the next weights; many take their time, and
 * share out the next panel's lines, if there is a `next`. */
#define MULTIPLY(number, next) \
    do { \
        const int64_t pairs = (count + 2 * TILE_ROWS - 1) / (2 * TILE_ROWS), steps = steps_of(words); \
        const int lines = (next) && pairs > 1 ? (int)((STEP_WORDS / LANES / 2 + pairs - 1) / pairs) : 0; \
        uint32_t rest[STEP_WORDS]; \
        sum held[2 * TILE_ROWS][PANEL]; \
        Panel panel_here = panel_of(packed, number, words, rest); \
        settle(rest); \
        for (int64_t row = 0; row < count; row += 2 * TILE_ROWS) { \
            const int64_t left = count - row; \
            const uint32_t *rows_here = x + row * steps * TILE_WORDS; \
            if (left > TILE_ROWS) rows_by_two(pairs == 1, &panel_here, lines, rows_here, held); \
            else rows_by_one(pairs == 1, &panel_here, rows_here, held); \
            panel_here.ahead += 2 * panel_here.steps * lines * LANES; \
            FINISH(held, row, (int)(left < 2 * TILE_ROWS ? left : 2 * TILE_ROWS), (number) * COLUMNS) \
        } \
    } while (0)
