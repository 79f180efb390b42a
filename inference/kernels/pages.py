"""Large pieces of the host's memory."""

from __future__ import annotations

import mmap
from contextlib import suppress
from math import prod

import torch


def zeros(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor of zeros that begins at a page; its memory is taken page by page as it is first written."""
    size = prod(shape)
    if not size:
        return torch.zeros(shape, dtype=dtype)
    # torch.zeros writes its zeros, and so takes all of its memory at once.
    pages = mmap.mmap(-1, size * dtype.itemsize, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # a system without huge pages
        pages.madvise(mmap.MADV_HUGEPAGE)  # fewer misses of the address cache while kernels walk through it
    return torch.frombuffer(pages, dtype=dtype).view(shape)
