/* Kernels whose calls can be recorded and repeated: each has a step, which takes its arguments as words. */
#pragma once
#include <stdint.h>

typedef union {
    int64_t i;
    void *p;
    double f;
} Word;

/* Define the step of the kernel `name`, which returns nothing, or of one that returns 0 unless memory ran out. */
#define STEP(name, ...) \
    int step_##name(const Word *w) { \
        name(__VA_ARGS__); \
        return 0; \
    }
#define CHECKED_STEP(name, ...) \
    int step_##name(const Word *w) { return name(__VA_ARGS__); }
