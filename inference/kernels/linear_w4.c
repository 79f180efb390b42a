/* Linear layers with weights of four bits and one scale for each 32 inputs of an output; activations in bf16.
 *
 * A group's products are summed as integers-times-bf16 first and scaled once, in the order of groups, for every number of
 * rows: few rows decode the weights in registers, many rows decode a group's panel once for all.
 */
#include "simd.h"
#include "program.h"
#include "threads.h"

#define GROUP 32
#define STEPS (GROUP / 2)         /* pairs of inputs */
#define GROUP_WORDS (COLUMNS * GROUP / 8)

/* Four bits of each of the 32 halves of `w`, from bit 4·part on, as bf16 of -8 … 7: a word of the result is a pair. */
INLINE vf decode(vf w, int part) {
#if WIDE
    static const bf16 values[32] = {
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0,
        0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80, 0x0000, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0};
    return _mm512_castsi512_ps(_mm512_permutexvar_epi16(_mm512_srli_epi16(_mm512_castps_si512(w), 4 * part), _mm512_loadu_si512(values)));
#else
    uint32_t words[LANES];
    memcpy(words, &w, 64);
    for (int i = 0; i < LANES; i++) {
        const float low = (float)(int32_t)(words[i] >> (4 * part) & 15) - 8, high = (float)(int32_t)(words[i] >> (16 + 4 * part) & 15) - 8;
        uint32_t a, b;
        memcpy(&a, &low, 4);
        memcpy(&b, &high, 4);
        words[i] = a >> 16 | (b & 0xffff0000);
    }
    return v_load(words);
#endif
}

/* Pack `weight` [outputs, inputs] float32, inputs a multiple of 32: `packed` [panels][groups][4][COLUMNS] words of four
 * pairs of inputs, `scales` bf16 [panels][groups][COLUMNS]. */
void pack_w4(const float *weight, uint32_t *packed, bf16 *scales, int64_t outputs, int64_t inputs) {
    const int64_t groups = inputs / GROUP, panels = (outputs + COLUMNS - 1) / COLUMNS;
#pragma omp parallel for num_threads(kernel_threads)
    for (int64_t panel = 0; panel < panels; panel++)
        for (int64_t group = 0; group < groups; group++)
            for (int64_t column = 0; column < COLUMNS; column++) {
                const int64_t output = panel * COLUMNS + column;
                const float *x = weight + output * inputs + group * GROUP;
                float extreme = 0, best_scale = 0, best_error = INFINITY;
                int best[GROUP] = {0};
                for (int i = 0; output < outputs && i < GROUP; i++) extreme = fabsf(x[i]) > fabsf(extreme) ? x[i] : extreme;
                /* The outermost value at -8, or a little outside of the range: what has the smallest square error. */
                for (int attempt = 0; extreme != 0 && attempt < 9; attempt++) {
                    uint32_t bits;
                    float scale = extreme / -(6.8f + 0.15f * (float)attempt), error = 0;
                    int codes[GROUP];
                    memcpy(&bits, &scale, 4);
                    bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;
                    memcpy(&scale, &bits, 4);
                    for (int i = 0; i < GROUP; i++) {
                        const long code = lrintf(x[i] / scale);
                        codes[i] = (int)(code < -8 ? -8 : code > 7 ? 7 : code);
                        error += (x[i] - scale * (float)codes[i]) * (x[i] - scale * (float)codes[i]);
                    }
                    if (error < best_error) {
                        best_error = error;
                        best_scale = scale;
                        memcpy(best, codes, sizeof best);
                    }
                }
                uint32_t bits;
                memcpy(&bits, &best_scale, 4);
                scales[(panel * groups + group) * COLUMNS + column] = (bf16)(bits >> 16);
                for (int word = 0; word < 4; word++) {
                    uint32_t packed_word = 0;
                    for (int part = 0; part < 4; part++) {
                        const int *pair = best + 2 * (4 * word + part);
                        packed_word |= (uint32_t)(pair[0] + 8) << (4 * part) | (uint32_t)(pair[1] + 8) << (16 + 4 * part);
                    }
                    packed[((panel * groups + group) * 4 + word) * COLUMNS + column] = packed_word;
                }
            }
}

/* Add one group to `sums` of one to ROWS rows. */
INLINE void add_group(const int rows, const uint32_t *x, int64_t stride, const uint32_t *pairs, const bf16 *scales, float *sums) {
    vf acc[ROWS][PANEL];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) acc[i][j] = v_set(0.0f);
    for (int k = 0; k < STEPS; k++) {
        vf panel[PANEL];
        for (int j = 0; j < PANEL; j++) panel[j] = v_load(pairs + k * COLUMNS + j * LANES);
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < PANEL; j++) acc[i][j] = v_dot_bf16(acc[i][j], x[i * stride + k], panel[j]);
    }
    for (int j = 0; j < PANEL; j++) {
        const vf scale = v_from_bf16(scales + j * LANES);
        for (int i = 0; i < rows; i++) {
            float *sum = sums + i * COLUMNS + j * LANES;
            v_store(sum, v_fma(acc[i][j], scale, v_load(sum)));
        }
    }
}

static void many_rows(const uint32_t *x, int64_t stride, const uint32_t *w, const bf16 *scales, int64_t groups, int64_t count, float *sums) {
    uint32_t pairs[STEPS * COLUMNS] __attribute__((aligned(64)));
    memset(sums, 0, (size_t)(count * COLUMNS) * 4);
    for (int64_t group = 0; group < groups; group++) {
        for (int k = 0; k < STEPS; k++)
            for (int j = 0; j < PANEL; j++)
                v_store(pairs + k * COLUMNS + j * LANES, decode(v_load(w + (group * 4 + k / 4) * COLUMNS + j * LANES), k % 4));
        for (int64_t row = 0; row < count; row += ROWS) {
            const uint32_t *rows = x + row * stride + group * STEPS;
            float *sum = sums + row * COLUMNS;
            switch (count - row) {
                case 1: add_group(1, rows, stride, pairs, scales + group * COLUMNS, sum); break;
#if ROWS > 2
                case 2: add_group(2, rows, stride, pairs, scales + group * COLUMNS, sum); break;
                case 3: add_group(3, rows, stride, pairs, scales + group * COLUMNS, sum); break;
                case 4: add_group(4, rows, stride, pairs, scales + group * COLUMNS, sum); break;
                case 5: add_group(5, rows, stride, pairs, scales + group * COLUMNS, sum); break;
#endif
                default: add_group(ROWS, rows, stride, pairs, scales + group * COLUMNS, sum);
            }
        }
    }
}

/* One or two rows: decoded in registers. */
INLINE void few_rows(const int rows, const uint32_t *x, int64_t stride, const uint32_t *w, const bf16 *scales, int64_t groups, float *sums) {
    vf total[2][PANEL];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) total[i][j] = v_set(0.0f);
    for (int64_t group = 0; group < groups; group++) {
        vf acc[2][PANEL];
        for (int i = 0; i < rows; i++)
            for (int j = 0; j < PANEL; j++) acc[i][j] = v_set(0.0f);
        for (int word = 0; word < 4; word++) {
            vf panel[PANEL];
            for (int j = 0; j < PANEL; j++) {
                const uint32_t *from = w + (group * 4 + word) * COLUMNS + j * LANES;
                panel[j] = v_load(from);
                prefetch(from + 1024);
            }
            for (int part = 0; part < 4; part++)
                for (int j = 0; j < PANEL; j++) {
                    const vf pairs = decode(panel[j], part);
                    for (int i = 0; i < rows; i++) acc[i][j] = v_dot_bf16(acc[i][j], x[i * stride + group * STEPS + word * 4 + part], pairs);
                }
        }
        for (int j = 0; j < PANEL; j++) {
            const vf scale = v_from_bf16(scales + group * COLUMNS + j * LANES);
            for (int i = 0; i < rows; i++) total[i][j] = v_fma(acc[i][j], scale, total[i][j]);
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < PANEL; j++) v_store(sums + i * COLUMNS + j * LANES, total[i][j]);
}

/* As `linear_bf16`; rows, bias, residual and out are bf16 or float32 (then rounded to bf16 first). Return 0, or 1 where
 * memory ran out. */
int linear_w4(int64_t is_bf16, const void *rows_in, const uint32_t *packed, const bf16 *scales, const void *bias, const void *residual,
              void *out, int64_t count, int64_t outputs, int64_t inputs) {
    const int64_t groups = inputs / GROUP, stride = inputs / 2, panels = (outputs + COLUMNS - 1) / COLUMNS;
    const size_t one = (size_t)(count * COLUMNS) * 4;
    float *all_sums = scratch(0, one * (size_t)kernel_threads);
    const uint32_t *x = rows_in;
    if (!is_bf16) {
        bf16 *rounded = scratch(1, (size_t)(count * inputs) * 2);
        if (!rounded) return 1;
        for (int64_t i = 0; i < count * inputs; i += LANES) v_to_bf16(rounded + i, v_load((const float *)rows_in + i));
        x = (const uint32_t *)rounded;
    }
    if (!all_sums) return 1;
#pragma omp parallel for num_threads(kernel_threads) schedule(static)
    for (int64_t panel = 0; panel < panels; panel++) {
        float *sums = all_sums + (size_t)(count * COLUMNS) * (size_t)thread_number();
        const uint32_t *w = packed + panel * groups * GROUP_WORDS;
        const bf16 *scale = scales + panel * groups * COLUMNS;
        if (count == 1) few_rows(1, x, stride, w, scale, groups, sums);
        else if (count == 2) few_rows(2, x, stride, w, scale, groups, sums);
        else many_rows(x, stride, w, scale, groups, count, sums);
        for (int64_t row = 0; row < count; row++)
            for (int64_t column = panel * COLUMNS, j = 0; j < PANEL && column < outputs; j++, column += LANES) {
                const int64_t left = outputs - column, at = row * outputs + column;
                vf y = v_load(sums + row * COLUMNS + j * LANES);
                if (bias) y = v_add(y, v_read_some((int)is_bf16, bias, column, left));
                if (residual) y = v_add(y, v_read_some((int)is_bf16, residual, at, left));
                v_write_some((int)is_bf16, out, at, y, left);
            }
    }
    return 0;
}

CHECKED_STEP(linear_w4, w[0].i, w[1].p, w[2].p, w[3].p, w[4].p, w[5].p, w[6].p, w[7].i, w[8].i, w[9].i)
