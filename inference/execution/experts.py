"""Layers of feed-forward networks: one for all tokens, or a mixture of experts of which each token has a few."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import torch

from inference.execution.linear import Linear, Weight

Activation = Callable[[torch.Tensor], torch.Tensor]
"""From [tokens, 2 · width], gate first, to act(gate) · up [tokens, width]."""


class FeedForward(Protocol):
    """x [T, width] → what the layer makes of it (+ residual) [T, width]."""

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor: ...


class GatedFeedForward:
    """The same network for every token: down(act(gate) · up)."""

    def __init__(self, gate_up: Linear, down: Linear, activation: Activation) -> None:
        self._gate_up = gate_up
        self._down = down
        self._activation = activation

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        return self._down(self._activation(self._gate_up(x)), residual)


class ExpertProducts(Protocol):
    """The experts' networks, each computed over its own tokens."""

    def __call__(self, x: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what each token's experts `numbers` int32 [T, k] make of x [T, width].

        That is rows [T · k, width], and the `places` int32 [T, k] of a token's in them.
        """
        ...


class SeparateProducts:
    """One product for each expert that has tokens: they are sorted by expert, each expert's in their own order.

    A row's result depends on the row and its expert alone where that is so for the linear layers.
    """

    def __init__(self, experts: Sequence[FeedForward]) -> None:
        self._experts = experts

    def __call__(self, x: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        flat = numbers.reshape(-1)
        order = torch.argsort(flat, stable=True)
        counts: list[int] = torch.bincount(flat, minlength=len(self._experts)).tolist()
        given = x[order // numbers.shape[1]]
        parts = []
        begin = 0
        for expert, count in zip(self._experts, counts, strict=True):
            if count:
                parts.append(expert(given[begin : begin + count]))
                begin += count
        places = torch.empty_like(flat)
        places[order] = torch.arange(len(flat), dtype=places.dtype, device=places.device)
        return parts[0] if len(parts) == 1 else torch.cat(parts), places.view(numbers.shape)


class Routing(Protocol):
    """A tier's operators for a mixture; `route` and `combine` below say what they return."""

    def route(
        self, logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

    def combine(
        self, rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
    ) -> torch.Tensor: ...


class MixtureOfExperts:
    """Each token goes to `chosen` experts, and has the sum of their results by the weights of its routing.

    The weights are the softmax over all experts' logits, or over those chosen with `is_normalised`. `shared` is a
    network that every token goes to; its weight is the sigmoid of the router's last logit.
    """

    def __init__(
        self,
        operators: Routing,
        router: Linear,
        products: ExpertProducts,
        *,
        chosen: int,
        is_normalised: bool,
        shared: FeedForward | None = None,
    ) -> None:
        self._operators = operators
        self._router = router
        self._products = products
        self._chosen = chosen
        self._is_normalised = is_normalised
        self._shared = shared

    def __call__(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        numbers, weights = self._operators.route(
            self._router(x), self._chosen, is_normalised=self._is_normalised, is_shared=self._shared is not None
        )
        rows, places = self._products(x, numbers)
        if self._shared is not None:
            own = torch.arange(len(rows), len(rows) + len(x), dtype=places.dtype, device=places.device)
            places = torch.cat((places, own[:, None]), 1)
            rows = torch.cat((rows, self._shared(x)))
        return self._operators.combine(rows, places, weights, residual)


def route(
    logits: torch.Tensor, chosen: int, *, is_normalised: bool, is_shared: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the experts int32 [T, chosen] and the weights float32 [T, chosen (+ 1)] of tokens (`MixtureOfExperts`).

    `logits` is [T, experts], with a last column of the shared network with `is_shared`.
    """
    plain = logits.float()
    best, numbers = torch.softmax(plain[:, : plain.shape[1] - is_shared], -1).topk(chosen, -1)
    if is_normalised:
        best = best / best.sum(-1, keepdim=True)
    if is_shared:
        best = torch.cat((best, torch.sigmoid(plain[:, -1:])), 1)
    return numbers.int(), best


def combine(
    rows: torch.Tensor, places: torch.Tensor, weights: torch.Tensor, residual: torch.Tensor | None
) -> torch.Tensor:
    """Return Σ weights[t, k] · rows[places[t, k]] (+ residual[t]) [T, width], added up in float32 in the order of k."""
    total = torch.zeros(len(places), rows.shape[1], dtype=torch.float32, device=rows.device)
    for k in range(places.shape[1]):
        total += rows[places[:, k].long()] * weights[:, k, None]
    return (total if residual is None else total + residual).to(rows.dtype)


def separate_products(
    linear: Callable[[Weight], Linear],
    experts: Iterable[tuple[Weight, Weight]],
    activation: Activation,
) -> SeparateProducts:
    """Return the products of `experts`, each a joint projection of gate and up and one down."""
    return SeparateProducts([GatedFeedForward(linear(both), linear(down), activation) for both, down in experts])
