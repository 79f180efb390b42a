"""The tier of torch's operators on a CPU: packed weights, attention by products, and as few operators as will do.

At one row an operator costs more for its call than for what it computes, and a chunk of a prompt pays for every tensor
that lies between two of them: so queries and keys go through norm and rope together, in one float32 copy.
"""

from __future__ import annotations

from functools import cache

import torch
from torch.nn.functional import gelu, silu

from inference.execution.attention.base import Attention
from inference.execution.attention.products import ProductAttention
from inference.execution.kv_cache import KVCache
from inference.execution.linear import Linear, PackedLinear, TorchLinear, Weight, wide
from inference.execution.operators import Operators


class PackedOperators(Operators):
    exact = False  # the products' order of summation depends on the number of tokens

    def __init__(self, reason: str = "") -> None:
        """`reason` says why there is nothing faster."""
        self.reason = reason
        self.tier = "torch operators, packed weights" + (reason and f" ({reason})")

    def linear(self, weight: Weight, bias: torch.Tensor | None = None, *, is_head: bool = False) -> Linear:
        return PackedLinear(wide(weight), bias)

    def router(self, weight: torch.Tensor) -> Linear:
        return TorchLinear(weight)  # packed layouts pay for wide layers only

    def rms_norm(self, x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        wide = x.float()
        scale = _inverse_rms(wide, eps)
        return (wide * weight if wide is x else wide.mul_(weight)).mul_(scale).to(x.dtype)

    def silu_mul(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return silu(gate).mul_(up)

    def gelu_mul(self, both: torch.Tensor) -> torch.Tensor:
        gate, up = both.chunk(2, -1)
        return gelu(gate, approximate="tanh").mul_(up)

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        return ProductAttention(cache, max_rows=max_rows, max_blocks=max_blocks)

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
        shape = attention.cache.layers[layer].shape
        width = (heads + shape.kv_heads) * shape.key_dim
        tokens = len(joint)
        both = joint[:, :width].view(tokens, -1, shape.key_dim).to(torch.float32, copy=True)
        if query_norm is not None and key_norm is not None:
            both.mul_(_inverse_rms(both, eps))
            both[:, :heads].mul_(query_norm)
            both[:, heads:].mul_(key_norm)
        torch.view_as_complex(both.view(tokens, heads + shape.kv_heads, -1, 2)).mul_(rotations[:, None])
        value = joint[:, width:].view(tokens, -1, shape.value_dim)
        attention.store(layer, both[:, heads:].to(joint.dtype), value)
        return both[:, :heads].to(joint.dtype)


def _inverse_rms(x: torch.Tensor, eps: float) -> torch.Tensor:
    """Return 1 / √(mean of x² + eps) [..., 1] of float32 `x`."""
    norm = torch.linalg.vector_norm(x, 2, -1, keepdim=True)
    return torch.addcmul(_scalar(eps), norm, norm, value=1 / x.shape[-1]).rsqrt_()


@cache
def _scalar(value: float) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float32)
