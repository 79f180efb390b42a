/* Repeating recorded calls of kernels, without going back to Python between them. */
#include "program.h"

/* `words` has `calls` calls: the address of a step, the number of its arguments, and these. Return 0, or 1 where memory ran
 * out. */
int run_program(const Word *words, int64_t calls) {
    for (int64_t i = 0; i < calls; i++) {
        int (*step)(const Word *);
        *(const void **)&step = words[0].p;
        if (step(words + 2)) return 1;
        words += 2 + words[1].i;
    }
    return 0;
}
