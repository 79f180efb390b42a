#include "threads.h"

#include <stdlib.h>

int kernel_threads = 1;
static __thread struct {
    void *memory;
    size_t bytes;
} pieces[3];

void use_threads(int count) { kernel_threads = count > 0 ? count : 1; }

void *scratch(int part, size_t bytes) {
    if (pieces[part].bytes < bytes || !pieces[part].memory) { /* NULL would say that there is none, for no bytes too */
        const size_t rounded = (bytes / 4096 + 1) * 4096;
        free(pieces[part].memory);
        pieces[part].memory = aligned_alloc(64, rounded);
        pieces[part].bytes = pieces[part].memory ? rounded : 0;
    }
    return pieces[part].memory;
}
