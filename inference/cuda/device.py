"""A runner's device, beyond tensors: pinned memory, a mark in its stream, captured work, and room for K/V."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

import torch

from inference.errors import ModelRefusedError
from inference.execution.kv_cache import KVSpec

SHARE = 0.9  # of what is free: captured graphs and fragments take from the rest


class NoRoomError(ModelRefusedError):
    """The K/V cache doesn't fit beside the largest step: smaller steps may leave it room."""


@dataclass(frozen=True, slots=True)
class Room:
    """Bytes that a largest step needs beyond the weights (`peak`), and those `free` between steps."""

    free: int
    peak: int

    def beside(self, reserve: int) -> Room:
        """Return the room that is left where `reserve` bytes stay free for others."""
        return Room(self.free - reserve, self.peak)

    def blocks(self, spec: KVSpec, block_size: int, *, tokens: int, max_tokens: int) -> int:
        """Return how many blocks to make, the null block included: for `tokens`, or with 0 for what fits.

        That is SHARE of what the step leaves, for `max_tokens` tokens at most. Raise NoRoomError when `tokens`
        don't fit, or not even one block does.
        """
        block_bytes = spec.bytes_per_token * block_size
        most = int(SHARE * max(0, self.free - self.peak)) // block_bytes - 1
        wanted = -(-(tokens or max_tokens) // block_size)
        if most < (wanted if tokens else 1):
            raise NoRoomError(
                f"there is no room for its K/V: {tokens or block_size} tokens take "
                f"{(wanted if tokens else 1) * block_bytes / 1e6:.1f} MB, and {SHARE:.0%} may be used of the "
                f"{(self.free - self.peak) / 1e6:.1f} MB that a step leaves free"
            )
        return min(most, wanted) + 1


class Device(Protocol):
    """A device that works through what it is given in order, while the host goes on.

    `capability` is its compute capability.
    """

    name: torch.device
    capability: tuple[int, int]

    def active(self) -> AbstractContextManager[object]:
        """Return a context in which the calling thread's work goes to this device."""
        ...

    def pinned(self, numbers: int) -> torch.Tensor:
        """Return int64 [numbers] on the host, to which the device copies without the host's help."""
        ...

    def mark(self) -> Callable[[], None]:
        """Return a function that blocks until the device has done what it has been given so far."""
        ...

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        """Return (a function that repeats `work` on the same memory, the tensor that it writes its result to)."""
        ...

    def room(self, work: Callable[[], None]) -> Room:
        """Do `work`, which needs the most memory, and return what it needed and what is free."""
        ...

    def release(self) -> None:
        """Give cached memory back, after an allocation failed."""
        ...


class Cuda:
    """A `Device` of CUDA. All captured work shares one pool of memory, so that the largest should come first."""

    def __init__(self, name: torch.device) -> None:
        self.name = name
        self.capability = torch.cuda.get_device_capability(name)
        self._pool = torch.cuda.graph_pool_handle()

    def active(self) -> AbstractContextManager[object]:
        return torch.cuda.device(self.name)

    def pinned(self, numbers: int) -> torch.Tensor:
        return torch.empty(numbers, dtype=torch.long, pin_memory=True)

    def mark(self) -> Callable[[], None]:
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.name))
        return event.synchronize

    def capture(self, work: Callable[[], torch.Tensor]) -> tuple[Callable[[], None], torch.Tensor]:
        # The first runs compile kernels and let libraries allocate what they keep: none of that may be captured.
        side = torch.cuda.Stream(self.name)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self.name))
        with torch.cuda.stream(side):
            work()
        torch.cuda.current_stream(self.name).wait_stream(side)
        torch.cuda.synchronize(self.name)
        graph = torch.cuda.CUDAGraph()
        # CUDA's own mode forbids every other thread what mustn't be captured, as to ask for an event or to allocate:
        # steps of the models that are served here already would fail while this one is loaded.
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = work()
        return graph.replay, result

    def room(self, work: Callable[[], None]) -> Room:
        torch.cuda.reset_peak_memory_stats(self.name)
        work()
        torch.cuda.synchronize(self.name)
        peak = torch.cuda.max_memory_allocated(self.name) - torch.cuda.memory_allocated(self.name)
        torch.cuda.empty_cache()
        return Room(torch.cuda.mem_get_info(self.name)[0], peak)

    def release(self) -> None:
        torch.cuda.empty_cache()


_ACCELERATOR_ERROR: tuple[type[BaseException], ...] = tuple(filter(None, [getattr(torch, "AcceleratorError", None)]))

# In small letters, CUDA's and its libraries' words for errors after which a process has to be started anew. cuBLAS and
# cuDNN say "not initialized" where the context is lost, and at a first call also for want of memory: a new process
# is the way out of both. Any CUDA error may end in advice about "device-side assertions".
_LOST = (
    "illegal memory access",
    "illegal instruction",
    "device-side assert triggered",
    "unspecified launch failure",
    "misaligned address",
    "invalid program counter",
    "operation not supported on global/shared address space",
    "hardware stack error",
    "tensor memory not completely freed",
    "launch timed out",
    "uncorrectable ecc",
    "uncorrectable nvlink",
    "device is lost",
    "unknown error",
    "cublas_status_execution_failed",
    "cublas_status_not_initialized",
    "cudnn_status_execution_failed",
    "cudnn_status_not_initialized",
)


def is_lost(error: BaseException) -> bool:
    """Whether an error has left the device's context unusable: every later call in this process would fail too."""
    text = str(error).lower()
    # Before torch.AcceleratorError, and in what libraries and Triton raise, the words alone tell whose error it is.
    is_devices = isinstance(error, _ACCELERATOR_ERROR) or (
        isinstance(error, RuntimeError) and any(name in text for name in ("cuda", "cublas", "cudnn"))
    )
    return is_devices and any(words in text for words in _LOST)
