/* One pass over a row's logits: the largest, the winner of a Gumbel race, the k largest, the log of the sum of exponentials.
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

INLINE float log_exponential(float uniform) { return logf(-log1pf(-uniform)); }

/* The place with the largest (logit - peak) · inverse - log(exponential). Since an exponential is at least its uniform
 * variate u, a place can win only where u < exp(scaled - best): only then are logarithms computed. */
INLINE int64_t race(int is_bf16, const void *logits, int64_t at, int64_t width, float peak, float inverse, uint64_t key) {
    float best = -INFINITY, scaled[PIECE], uniform[PIECE];
    int64_t winner = 0;
    for (int64_t from = 0; from < width; from += PIECE) {
        const int count = piece(is_bf16, logits, at + from, width - from, scaled);
        for (int i = 0; i < PIECE; i++)
            uniform[i] = (float)(int64_t)(mixed(key + (uint64_t)(from + i + 1) * 0x9E3779B97F4A7C15u) >> 1 | 1) * 0x1p-63f;
        vf open = v_set(0.0f);
        for (int i = 0; i < count; i += LANES) {
            const vf x = v_mul(v_sub(v_load(scaled + i), v_set(peak)), v_set(inverse)), u = v_load(uniform + i);
            v_store(scaled + i, x);
            /* 1.00001: the bound must not fail by rounding; e^x is at most e^80 here, which is above every u. */
            const vf bound = v_mul(v_exp(v_sub(v_set(0.0f), v_max(v_set(-80.0f), v_sub(v_set(best), x)))), v_set(1.00001f));
            open = v_add(open, v_where(u, bound, v_set(0.0f), v_set(1.0f)));
            v_store(uniform + i, v_where(u, bound, v_set(2.0f), u));
        }
        if (v_sum(open) == 0.0f) continue;
        for (int i = 0; i < count; i++)
            if (uniform[i] < 2.0f) {
                const float score = scaled[i] - log_exponential(uniform[i] < 1 - 0x1p-24f ? uniform[i] : 1 - 0x1p-24f);
                if (score > best) {
                    best = score;
                    winner = from + i;
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
    float value;
    int32_t place;
} Candidate;

static int by_value(const void *a, const void *b) {
    const Candidate *x = a, *y = b;
    return x->value != y->value ? (x->value < y->value ? 1 : -1) : (x->place > y->place ? 1 : x->place < y->place ? -1 : 0);
}

/* The k largest, the first of equals first. `kept` has room for 4 · k + PIECE: whenever it is full, it is sorted and cut. */
INLINE void largest(int is_bf16, const void *logits, int64_t at, int64_t width, int64_t k, Candidate *kept, float *values_out,
                    int64_t *places) {
    float values[PIECE], least = -INFINITY;
    int64_t held = 0;
    for (int64_t from = 0; from < width; from += PIECE) {
        const int count = piece(is_bf16, logits, at + from, width - from, values);
        vf top = v_set(-INFINITY);
        for (int i = 0; i < count; i += LANES) top = v_max(v_load(values + i), top);
        if (held >= k && !(v_peak(top) > least)) continue;
        for (int i = 0; i < count; i++)
            if (held < k || values[i] > least) kept[held++] = (Candidate){values[i], (int32_t)(from + i)};
        if (held >= 4 * k) {
            qsort(kept, (size_t)held, sizeof *kept, by_value);
            held = k;
            least = kept[k - 1].value;
        }
    }
    qsort(kept, (size_t)held, sizeof *kept, by_value);
    for (int64_t i = 0; i < k; i++) {
        values_out[i] = kept[i].value;
        places[i] = kept[i].place;
    }
}

#define OF_TYPE(call) \
    do { \
        if (is_bf16) { enum { type = 1 }; call; } \
        else { enum { type = 0 }; call; } \
    } while (0)

/* See sampler.py for these four. */
void argmax(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, float *peaks, int64_t *places) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) OF_TYPE(peaks[row] = peak_of(type, logits, row * width, width, places + row));
}

void gumbel_argmax(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, const float *inverse, const int64_t *keys,
                   int64_t *places) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * width;
        int64_t first;
        OF_TYPE(const float peak = peak_of(type, logits, at, width, &first);
                places[row] = race(type, logits, at, width, peak, inverse[row], (uint64_t)keys[row]));
    }
}

void log_sum_exp(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, const float *inverse, float *sums) {
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++) {
        const int64_t at = row * width;
        int64_t first;
        OF_TYPE(const float peak = peak_of(type, logits, at, width, &first);
                sums[row] = peak * inverse[row] + (float)log(exponential_sum(type, logits, at, width, peak, inverse[row])));
    }
}

int top_candidates(int64_t is_bf16, const void *logits, int64_t rows, int64_t width, int64_t k, float *values, int64_t *places) {
    const size_t room = (size_t)(4 * k + PIECE);
    Candidate *memory = scratch(0, room * sizeof *memory * (size_t)kernel_threads);
    if (!memory) return 1;
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t row = 0; row < rows; row++)
        OF_TYPE(largest(type, logits, row * width, width, k, memory + room * (size_t)thread_number(), values + row * k, places + row * k));
    return 0;
}
