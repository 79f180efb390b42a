/* Linear layers in float32. */
#define IS_BF16 0
#define DOT v_dot_fp32
#define NAME(verb) verb##_fp32
#include "dense.h"

CHECKED_STEP(linear_fp32, w[0].p, w[1].p, w[2].p, w[3].p, w[4].p, w[5].i, w[6].i, w[7].i)
