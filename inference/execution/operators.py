"""The operators of a decoder's layers: one tier for a whole model.

Three tiers: own kernels in C (`c_operators.py`), torch's operators with packed weights (`packed_operators.py`), and
plain torch, which is the reference that the others are tested against. `tiers.py` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterable

import torch
from torch.nn.functional import gelu, rms_norm, silu

from inference.execution import experts
from inference.execution.attention.base import Attention
from inference.execution.attention.reference import ReferenceAttention
from inference.execution.kv_cache import KVCache
from inference.execution.linear import Linear, TorchLinear, Weight, wide
from inference.execution.low_rank import LowRank, TorchLowRank
from inference.sampling.passes import Passes
from inference.sampling.torch_passes import TorchPasses

CPU = torch.device("cpu")


class Operators(ABC):
    """The operators of one tier; tensors are [tokens, width].

    `tier` is for operators of the machine, with the `reason` why there is nothing faster, if there is one;
    `quantization` is the scheme of the linear layers ("": the weights' dtype).
    `kept` are the dtypes of `EightBits` that are computed with as they are, all others are made `wide` first.
    `exact` is True when each token's result has the same bits whatever else is in its batch.
    """

    tier: str
    reason: str = ""
    quantization: str = ""
    kept: frozenset[torch.dtype] = frozenset()
    exact: bool

    device = CPU

    @abstractmethod
    def linear(self, weight: Weight, bias: torch.Tensor | None = None, *, is_head: bool = False) -> Linear:
        """Return the linear layer of `weight` [out, in]; `is_head` for the one that gives logits."""

    def router(self, weight: torch.Tensor) -> Linear:
        """Return the linear layer of `weight` in its own dtype, since rounding may choose another expert."""
        return self.linear(weight)

    def low_rank(self) -> LowRank:
        """Return the adapters' products of a model whose linear layers have none yet."""
        return TorchLowRank(self.device)

    @abstractmethod
    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        """Return x / rms(x) · weight; `weight` is float32 [width]."""

    @abstractmethod
    def silu_mul(self, both: torch.Tensor) -> torch.Tensor:
        """Return silu(gate) · up of [tokens, 2 · width], gate first."""

    @abstractmethod
    def gelu_mul(self, both: torch.Tensor) -> torch.Tensor:
        """Return gelu(gate) · up of [tokens, 2 · width], gate first; gelu by its form with tanh."""

    def softcap(self, x: torch.Tensor, cap: float) -> torch.Tensor:
        """Return cap · tanh(x / cap)."""
        return torch.tanh(x / cap).mul_(cap)

    def route(
        self, logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Do what `experts.route` does."""
        return experts.route(logits, chosen, is_normalised=is_normalised, is_shared=is_shared)

    def products(
        self, of_experts: Iterable[tuple[Weight, Weight]], activation: experts.Activation
    ) -> experts.ExpertProducts:
        """Return the networks of a layer's experts, each given by its joint projection of gate and up, and down."""
        return experts.separate_products(self.linear, of_experts, activation)

    def combine(
        self, rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor:
        """Do what `experts.combine` does."""
        return experts.combine(rows, places, weights, residual)

    def repeated(
        self, attention: Attention, compute: Callable[..., torch.Tensor], *inputs: torch.Tensor, key: Hashable = ()
    ) -> torch.Tensor:
        """Return what `compute(*inputs)` returns, which is valid until the next step.

        It may be recorded and repeated without it: so what it does has to depend on the attention's inputs, on `inputs`
        [tokens, …], which it may overwrite, on what `key` stands for, and on what never changes alone.
        """
        return compute(*inputs)

    def passes(self) -> Passes:
        """Return the sampler's passes over logits."""
        return TorchPasses()

    @abstractmethod
    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        """Return the attention over `cache`."""

    def rope_store(
        self,
        attention: Attention,
        layer: int,
        joint: torch.Tensor,
        rotations: torch.Tensor,
        heads: int,
        query_norm: torch.Tensor | None,
        key_norm: torch.Tensor | None,
        eps: float,
    ) -> torch.Tensor:
        """Return the rotated queries [T, heads, key_dim] of `joint`, and store its rotated keys and its values.

        `joint` holds each token's `heads` query heads, its key heads and its value heads, queries and keys in adjacent
        (real, imaginary) pairs, which `rotations` complex64 [T, key_dim / 2] turns; with `query_norm` and `key_norm`
        float32 [key_dim] each head is normed before.
        """
        shape = attention.cache.layers[layer].shape
        tokens = joint.shape[0]
        sizes = [heads * shape.key_dim, shape.kv_heads * shape.key_dim, shape.kv_heads * shape.value_dim]
        query, key, value = torch.split(joint, sizes, -1)
        query, key = query.view(tokens, -1, shape.key_dim), key.view(tokens, -1, shape.key_dim)
        if query_norm is not None and key_norm is not None:
            query, key = _normed(query, query_norm, eps), _normed(key, key_norm, eps)
        attention.store(layer, _rotate(key, rotations), value.view(tokens, -1, shape.value_dim))
        return _rotate(query, rotations)


class TorchOperators(Operators):
    """Torch's plainest operators: the reference, and what a GPU without Triton has."""

    exact = False  # the products' order of summation depends on the number of tokens

    def __init__(self, *, reason: str = "", device: torch.device = CPU) -> None:
        """`reason` says why there is nothing faster."""
        self.device = device
        self.reason = reason
        self.tier = "torch reference" + (reason and f" ({reason})")

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, *, is_head: bool = False) -> Linear:
        return TorchLinear(wide(weight), bias)

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return _normed(x, weight, eps)

    def silu_mul(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return silu(gate) * up

    def gelu_mul(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return gelu(gate, approximate="tanh") * up

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        return ReferenceAttention(cache, max_rows=max_rows, max_blocks=max_blocks)


def _normed(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return rms_norm(x.float(), x.shape[-1:], weight, eps).to(x.dtype)


def _rotate(heads: torch.Tensor, rotations: torch.Tensor) -> torch.Tensor:
    """Rotate the pairs of `heads` [T, heads, width] by the complex `rotations` [T, width / 2]."""
    pairs = torch.view_as_complex(heads.float().reshape(*heads.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * rotations[:, None]).flatten(-2).to(heads.dtype)
