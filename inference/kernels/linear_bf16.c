/* Linear layers in bf16, by products of bf16 pairs. */
#define IS_BF16 1
#define DOT v_dot_bf16
#define TILE_PRODUCT _tile_dpbf16ps
#define NAME(verb) verb##_bf16
#include "dense.h"

CHECKED_STEP(linear_bf16, w[0].p, w[1].p, w[2].p, w[3].p, w[4].p, w[5].i, w[6].i, w[7].i)
