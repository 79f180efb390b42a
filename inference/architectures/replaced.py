"""Linear layers of a transformers model, replaced by those of our operators where only their call is used."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.functional import linear

from inference.execution.operators import Operators


class _WatchedLinear(torch.nn.Linear):
    """A linear layer that notices when anything but its own call takes its weight or bias."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parameters = self._parameters
        weight, bias = parameters["weight"], parameters["bias"]
        return linear(x, weight, bias)  # type: ignore[arg-type] # a linear layer has a weight

    def __getattr__(self, name: str) -> Any:
        if name in {"weight", "bias"}:
            self.__dict__["taken"] = True
        return super().__getattr__(name)


class OperatorLinear(torch.nn.Module):
    """A linear layer of our operators, called as torch's is."""

    def __init__(self, plain: torch.nn.Linear, operators: Operators, *, is_head: bool) -> None:
        super().__init__()
        bias = None if plain.bias is None else plain.bias.detach()
        self.linear = operators.linear(plain.weight.detach(), bias, is_head=is_head)
        self.in_features, self.out_features = plain.in_features, plain.out_features

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x.reshape(-1, self.in_features).contiguous()).view(*x.shape[:-1], self.out_features)


@contextmanager
def watched_linears(model: Any) -> Iterator[AbstractSet[torch.nn.Linear]]:
    """Yield a set that has, when the block has ended, the linear layers of torch whose weights only their call took."""
    plain = [module for module in model.modules() if type(module) is torch.nn.Linear]
    unused: set[torch.nn.Linear] = set()
    for module in plain:
        module.__class__ = _WatchedLinear
    try:
        yield unused
    finally:
        for module in plain:
            module.__class__ = torch.nn.Linear
            if not module.__dict__.pop("taken", False):
                unused.add(module)


def replace_linears(model: Any, linears: AbstractSet[torch.nn.Linear], operators: Operators) -> int:
    """Put the operators' layers in the place of `linears`, except where they don't take a layer's shape or dtype.

    Return how many weights those have.
    """
    head = model.get_output_embeddings()
    weights = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if child in linears:
                try:
                    replacement = OperatorLinear(child, operators, is_head=child is head)
                except (TypeError, ValueError):  # an odd number of inputs, or a router in another dtype
                    continue
                setattr(parent, name, replacement)
                weights += child.weight.numel()
    return weights
