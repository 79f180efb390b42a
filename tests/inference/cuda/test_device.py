"""What a GPU's errors mean, by their words: lost, out of memory, or one step's own; and how work is captured."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from unittest.mock import MagicMock

import pytest
import torch

from inference.cuda.device import Cuda
from inference.cuda.runner import told
from inference.errors import DeviceLostError

ADVICE = (
    "\nCUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be "
    "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\nCompile with `TORCH_USE_CUDA_DSA` to enable "
    "device-side assertions.\n"
)  # torch's, behind every error of CUDA
LOST = [
    "CUDA error: an illegal memory access was encountered",
    "CUDA error: an illegal instruction was encountered",
    "CUDA error: device-side assert triggered",
    "CUDA error: unspecified launch failure",
    "CUDA error: misaligned address",
    "CUDA error: invalid program counter",
    "CUDA error: operation not supported on global/shared address space",
    "CUDA error: hardware stack error",
    "CUDA error: the launch timed out and was terminated",
    "CUDA error: uncorrectable ECC error encountered",
    "CUDA error: uncorrectable NVLink error detected during the execution",
    "CUDA error: unknown error",
    "CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle, opa, opb, m, n, k)`",
    "CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
    "Triton Error [CUDA]: an illegal memory access was encountered",
]
LACKING = [
    "CUDA error: out of memory",
    "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
    "cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
]
OTHER = [
    "CUDA error: invalid argument",
    "CUDA error: no kernel image is available for execution on the device",
    "CUDA error: CUBLAS_STATUS_NOT_SUPPORTED when calling `cublasLtMatmulAlgoGetHeuristic( ltHandle)`",
    "CUDA error: operation not permitted when stream is capturing",
    "Expected all tensors to be on the same device, but found at least two devices, cuda:0 and cpu!",
    "mat1 and mat2 shapes cannot be multiplied (3x4 and 5x6)",
    "unknown error",  # a tokenizer's, say
]
CLASSES = [RuntimeError, pytest.param(getattr(torch, "AcceleratorError", RuntimeError), id="AcceleratorError")]


@pytest.mark.parametrize("kind", CLASSES)
@pytest.mark.parametrize("text", LOST)
@pytest.mark.parametrize("advice", ["", ADVICE], ids=["", "advice"])
def test_an_error_that_ends_the_context_ends_the_worker(kind, text, advice) -> None:
    failure = told(kind(text + advice))
    assert isinstance(failure, DeviceLostError)
    assert str(failure).endswith(text)


def test_the_word_cuda_is_not_needed_in_what_torch_raises_for_its_accelerators() -> None:
    if hasattr(torch, "AcceleratorError"):
        assert isinstance(told(torch.AcceleratorError("HIP error: unspecified launch failure")), DeviceLostError)
    assert not isinstance(told(ValueError("CUDA error: unspecified launch failure")), DeviceLostError)


@pytest.mark.parametrize("kind", [*CLASSES, torch.OutOfMemoryError])
@pytest.mark.parametrize("text", LACKING)
def test_want_of_memory_makes_steps_smaller_and_ends_nothing(kind, text) -> None:
    if kind is torch.OutOfMemoryError or not text.startswith("CUDA out of"):  # which torch raises as that class alone
        assert isinstance(told(kind(text + ADVICE)), MemoryError)


@pytest.mark.parametrize("text", OTHER)
def test_any_other_error_is_its_steps_alone(text) -> None:
    error = RuntimeError(text + ADVICE if text.startswith("CUDA") else text)
    assert told(error) is error


def test_capturing_forbids_nothing_to_the_threads_that_serve_other_models(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stands in for what CUDA does on a GPU: what isn't safe while a graph is captured fails in every thread, unless
    the capture is of its own thread alone.
    """
    modes: list[str] = []

    class Graph:
        def replay(self) -> None: ...

    def graph(_: Graph, *, pool: object, capture_error_mode: str = "global") -> AbstractContextManager[None]:
        assert pool == "pool"
        modes.append(capture_error_mode)
        return nullcontext()

    for name, stand_in in {
        "Stream": MagicMock(),
        "current_stream": MagicMock(),
        "stream": lambda _: nullcontext(),
        "synchronize": lambda _: None,
        "CUDAGraph": Graph,
        "graph": graph,
        "get_device_capability": lambda _: (9, 0),
        "graph_pool_handle": lambda: "pool",
    }.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    work = MagicMock(return_value=torch.ones(2))
    _, result = Cuda(torch.device("cuda")).capture(work)
    assert result is work.return_value
    assert work.call_count == 2  # once to compile what it launches, and once captured
    assert modes == ["thread_local"]
