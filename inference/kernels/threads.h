/* How many threads a kernel takes, and the memory that it needs for one call. */
#pragma once
#include <omp.h>
#include <stddef.h>

extern int kernel_threads;

static inline int thread_number(void) { return omp_get_thread_num(); }

/* At least `bytes` of this thread's memory, at a multiple of 64, valid until the next call in this thread; `part` 0, 1
 * and 2 are pieces that live side by side. NULL where there is none. */
void *scratch(int part, size_t bytes);
