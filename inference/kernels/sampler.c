/* Passes over a row's logits: the largest, the winner of a Gumbel race among all tokens or those that pass filters, the k
 * largest, the log of the sum of exponentials.
 *
 * Each row is one thread's, in pieces of fixed size, so its results are the same bits in every batch.
 */
#include "simd.h"
#include "threads.h"

#include <stdlib.h>

#define PIECE 512

/* The piece's values as floats; what is behind the vocabulary's end is -inf. */
INLINE int piece(int is_bf16, const void *logits, int64_t at, int64_t left, float *values) {
    const int count = left < PIECE ? (int)left : PIECE;
    for (int i = 0; i < count; i += LANES) {
        const vf x = v_read_some(is_bf16, logits, at + i, count - i);
        v_store(values + i, v_between(0, count - i, x, v_set(-INFINITY)));
    }
    return count;
}

/* The largest value of a row and the first place that has it; a NaN anywhere is the largest. */
INLINE float peak_of(int is_bf16, const void *logits, int64_t at, int64_t width, int64_t *place) {
    float best = -INFINITY, values[PIECE];
    int64_t where = 0;
    for (int64_t from = 0; from < width; from += PIECE) {
        const int count = piece(is_bf16, logits, at + from, width - from, values);
        vf top = v_set(-INFINITY), check = v_set(0.0f);
        for (int i = 0; i < count; i += LANES) {
            const vf x = v_load(values + i);
            top = v_max(x, top);
            const vf bounded = v_max(v_set(-1.0f), x);
            check = v_add(check, v_sub(bounded, bounded)); /* NaN for NaN and for +inf */
        }
        const float found = v_peak(top);
        if (v_sum(check) != 0.0f)
            for (int i = 0; i < count; i++)
                if (values[i] != values[i]) {
                    *place = from + i;
                    return values[i];
                }
        if (found > best) {
            best = found;
            for (int i = 0; i < count; i++)
                if (values[i] == found) {
                    where = from + i;
                    break;
                }
        }
    }
    *place = where;
    return best;
}

INLINE uint64_t mixed(uint64_t word) {
    word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
    word = (word ^ word >> 27) * 0x94D049BB133111EBu;
    return word ^ word >> 31;
}

INLINE float uniform_of(uint64_t key, int64_t place) { return (float)(int64_t)(mixed(key + (uint64_t)(place + 1) * 0x9E3779B97F4A7C15u) >> 1 | 1) * 0x1p-63f; }
INLINE float score_of(float scaled, float uniform) { return scaled - logf(-log1pf(-(uniform < 1 - 0x1p-24f ? uniform : 1 - 0x1p-24f))); }

/* The place with the largest (logit - peak) · inverse - log(exponential). Since an exponential is at least its uniform
 * variate u, a place can win only where u < exp(scaled - best): only then are logarithms computed. */
INLINE int64_t race(int is_bf16, const void *logits, int64_t at, int64_t width, float peak, float inverse, uint64_t key) {
    float best = -INFINITY, scaled[PIECE], uniform[PIECE];
    int64_t winner = 0;
    for (int64_t from = 0; from < width; from += PIECE) {
        const int count = piece(is_bf16, logits, at + from, width - from, scaled);
        for (int i = 0; i < PIECE; i++) uniform[i] = uniform_of(key, from + i);
        for (int i = 0; i < count; i += LANES) {
            const vf x = v_mul(v_sub(v_load(scaled + i), v_set(peak)), v_set(inverse));
            v_store(scaled + i, x);
            /* 1.00001: the bound must not fail by rounding; e^x is at most e^80 here, which is above every u. */
            const vf bound = v_mul(v_exp(v_sub(v_set(0.0f), v_max(v_set(-80.0f), v_sub(v_set(best), x)))), v_set(1.00001f));
            for (uint32_t open = v_reach(bound, v_load(uniform + i)); open; open &= open - 1) {
                const int j = i + __builtin_ctz(open);
                const float score = score_of(scaled[j], uniform[j]);
                if (score > best) {
                    best = score;
                    winner = from + j;
                }
            }
        }
    }
    return winner;
}

INLINE double exponential_sum(int is_bf16, const void *logits, int64_t at, int64_t width, float peak, float inverse) {
    double total = 0;
    float values[PIECE];
    for (int64_t from = 0; from < width; from += PIECE) {
        const int count = piece(is_bf16, logits, at + from, width - from, values);
        vf sum = v_set(0.0f);
        for (int i = 0; i < count; i += LANES)
            sum = v_add(sum, v_exp(v_mul(v_sub(v_load(values + i), v_set(peak)), v_set(inverse))));
        total += (double)v_sum(sum);
    }
    return total;
}

typedef struct {
    float value, weight;
    int32_t place;
} Candidate;

/* Whether a comes first: the larger one, and the first place of equals. */
INLINE int precedes(const Candidate *a, const Candidate *b) { return a->value != b->value ? a->value > b->value : a->place < b->place; }

static int by_value(const void *a, const void *b) { return precedes(a, b) ? -1 : precedes(b, a); }

/* Bring to the front of `c` those that come first, up to `most` and until their weights reach `mass`; return how many they
 * are. Each part is divided by one of its own, so it takes linear time but for the rarest of orders. */
static int64_t front(Candidate *c, int64_t count, int64_t most, double mass) {
    int64_t from = 0, to = count;
    while (from < to && most > 0 && mass > 0) {
        const int64_t chosen = from + (int64_t)(mixed((uint64_t)(from + to * 31)) % (uint64_t)(to - from));
        const Candidate pivot = c[chosen];
        double sum = 0;
        int64_t end = from;
        c[chosen] = c[to - 1];
        for (int64_t i = from; i < to - 1; i++)
            if (precedes(c + i, &pivot)) {
                const Candidate one = c[i];
                c[i] = c[end];
                c[end++] = one;
                sum += one.weight;
            }
        c[to - 1] = c[end];
        c[end] = pivot;
        if (end - from >= most || sum >= mass) {
            to = end;
        } else {
            most -= end - from + 1;
            mass -= sum + pivot.weight;
            from = end + 1;
        }
    }
    return from;
}

/* Collect all that are at least `least`, or with `most` > 0 the `most` largest; return how many. `kept` has room for
 * `room_for` of them. */
static inline int64_t room_for(int64_t most, int64_t width) { return most && 4 * most + 4 * PIECE < width ? 4 * most + 4 * PIECE : width; }
INLINE int64_t collect(int is_bf16, const void *logits, int64_t at, int64_t width, float least, int64_t most, Candidate *kept) {
    const int64_t room = room_for(most, width);
    float values[PIECE];
    int64_t held = 0;
    for (int64_t from = 0; from < width; from += PIECE) {
        const int count = piece(is_bf16, logits, at + from, width - from, values);
        if (held + count > room) {
            held = front(kept, held, most, INFINITY);
            least = INFINITY;
            for (int64_t i = 0; i < held; i++) least = kept[i].value < least ? kept[i].value : least;
            least = nextafterf(least, INFINITY); /* later ones come behind their equals */
        }
        for (int i = 0; i < count; i += LANES)
            for (uint32_t found = v_reach(v_load(values + i), v_set(least)); found; found &= found - 1) {
                const int j = i + __builtin_ctz(found);
                if (j < count) kept[held++] = (Candidate){values[j], 0.0f, (int32_t)(from + j)};
            }
    }
    return most ? front(kept, held, most, INFINITY) : held;
}

INLINE double weigh(Candidate *kept, int64_t count, float peak, float inverse) {
    double total = 0;
    float weights[LANES];
    for (int64_t i = 0; i < count; i += LANES) {
        const int some = count - i < LANES ? (int)(count - i) : LANES;
        for (int j = 0; j < LANES; j++) weights[j] = j < some ? (kept[i + j].value - peak) * inverse : -INFINITY;
        v_store(weights, v_exp(v_load(weights)));
        for (int j = 0; j < some; j++) total += kept[i + j].weight = weights[j];
    }
    return total;
}

/* The winner of the race among the tokens that pass top-k (0: all do), then top-p, then min-p. */
INLINE int64_t filtered(int is_bf16, const void *logits, int64_t at, int64_t width, float peak, float inverse, int64_t top_k, float top_p,
                        float min_p, uint64_t key, Candidate *kept) {
    const int64_t most = top_k < width ? top_k : 0;
    const float least = logf(min_p);
    double total = 0;
    float bound = -INFINITY;
    if (!most) {
        bound = least;
        if (top_p < 1) {
            /* What is below the bound has no more weight together than top-p leaves over. */
            total = exponential_sum(is_bf16, logits, at, width, peak, inverse);
            const float unused = (float)log((1 - (double)top_p) * total / (double)width) - 0.01f;
            bound = unused > least ? unused : least;
        }
        /* A little lower, since this rounds in another way than the test below. */
        bound = peak + (bound - 0.01f) / inverse;
        bound -= 1e-6f * (fabsf(peak) + fabsf(bound));
    }
    int64_t count = collect(is_bf16, logits, at, width, bound, most, kept);
    const double found = weigh(kept, count, peak, inverse);
    if (top_p < 1) count = front(kept, count, count, fmax(top_p * (most ? found : total), 0x1p-1000));
    float best = -INFINITY, shrunk = 0;
    int64_t winner = 0;
    for (int64_t i = 0; i < count; i++) {
        const float scaled = (kept[i].value - peak) * inverse, uniform = uniform_of(key, kept[i].place);
        if (scaled < least || !(uniform * shrunk < kept[i].weight * 1.00001f)) continue; /* as in `race` */
        const float score = score_of(scaled, uniform);
        if (score > best || (score == best && kept[i].place < winner)) {
            best = score;
            winner = kept[i].place;
            shrunk = expf(best);
        }
    }
    return winner;
}

#define OF_TYPE(call) \
    do { \
        if (is_bf16) { enum { type = 1 }; call; } \
        else { enum { type = 0 }; call; } \
    } while (0)

/* See sampler.py for these. */
void argmax(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, float *peaks, int64_t *places) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) OF_TYPE(peaks[row] = peak_of(type, logits, row * width, width, places + row));
}

void gumbel_argmax(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, const float *peaks, const float *inverse,
                   const int64_t *keys, int64_t *places) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        OF_TYPE(places[row] = race(type, logits, row * width, width, peaks[row], inverse[row], (uint64_t)keys[row]));
}

int filtered_argmax(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, const float *peaks, const float *inverse,
                    const int64_t *top_k, const float *top_p, const float *min_p, const int64_t *keys, int64_t *places) {
    int64_t room = 0;
    for (int64_t row = 0; row < rows; row++) {
        const int64_t own = room_for(top_k[row] < width ? top_k[row] : 0, width);
        room = own > room ? own : room;
    }
    Candidate *memory = scratch(0, (size_t)room * sizeof *memory * (size_t)kernel_threads);
    if (!memory) return 1;
#pragma omp parallel for num_threads(kernel_threads) schedule(dynamic, 1)
    for (int64_t row = 0; row < rows; row++)
        OF_TYPE(places[row] = filtered(type, logits, row * width, width, peaks[row], inverse[row], top_k[row], top_p[row], min_p[row],
                                       (uint64_t)keys[row], memory + room * thread_number()));
    return 0;
}

void rule_out(int64_t is_bf16, void *logits, int64_t width, int64_t count, const int64_t *rows, const uint32_t *masks, int64_t words) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static) if (count > 1)
    for (int64_t n = 0; n < count; n++) {
        for (int64_t from = 0; from < width; from += 32) {
            const int64_t word = from / 32, left = width - from < 32 ? width - from : 32;
            const uint32_t mask = word < words ? masks[n * words + word] : 0;
            if (mask == UINT32_MAX) continue;
            if (is_bf16) {
                uint16_t *values = (uint16_t *)logits + rows[n] * width + from;
                for (int64_t i = 0; i < left; i++) values[i] = mask >> i & 1 ? values[i] : 0xFF80;
            } else {
                uint32_t *values = (uint32_t *)logits + rows[n] * width + from;
                for (int64_t i = 0; i < left; i++) values[i] = mask >> i & 1 ? values[i] : 0xFF800000;
            }
        }
    }
}

void log_sum_exp(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, const float *peaks, const float *inverse, float *sums) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        OF_TYPE(sums[row] = (float)log(exponential_sum(type, logits, row * width, width, peaks[row], inverse[row])));
}

void count_above(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, const float *bounds, int64_t *counts) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        int64_t above = 0, behind = -width & (LANES - 1);
        for (int64_t i = 0; i < width; i += LANES) {
            vf x;
            OF_TYPE(x = v_read_some(type, logits, row * width + i, width - i));
            above += LANES - __builtin_popcount(v_reach(v_set(bounds[row]), x));
        }
        counts[row] = above - (0.0f > bounds[row] ? behind : 0); /* zeros stand behind the vocabulary */
    }
}

int top_candidates(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, int64_t k, float *values, int64_t *places) {
    const int64_t room = room_for(k < width ? k : 0, width);
    Candidate *memory = scratch(0, (size_t)room * sizeof *memory * (size_t)kernel_threads);
    if (!memory) return 1;
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        Candidate *kept = memory + room * thread_number();
        int64_t held;
        OF_TYPE(held = collect(type, logits, row * width, width, -INFINITY, k < width ? k : 0, kept));
        for (; held < k; held++) kept[held] = (Candidate){NAN, 0.0f, 0}; /* NaN logits are no candidates */
        qsort(kept, (size_t)k, sizeof *kept, by_value);
        for (int64_t i = 0; i < k; i++) {
            values[row * k + i] = kept[i].value;
            places[row * k + i] = kept[i].place;
        }
    }
    return 0;
}
