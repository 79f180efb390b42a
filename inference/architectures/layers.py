"""One layer of the own decoder, from a checkpoint's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from inference.architectures.adapters import Modules
from inference.architectures.families import ExpertNames, Form, LayerForm
from inference.architectures.rope import half_split_to_pairs
from inference.architectures.weights import Weights
from inference.errors import ModelRefusedError
from inference.execution.experts import Activation, FeedForward, GatedFeedForward, MixtureOfExperts
from inference.execution.linear import Linear, Weight, joined
from inference.execution.low_rank import LowRank
from inference.execution.operators import Operators
from inference.sources.adapters import MOST_RANK


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer. `qkv` is a fused projection, its queries and keys in rope pairs; norms are float32, None: not normed.

    `query_norm` and `key_norm` are for each head, or, as `wide_norms`, for all heads of queries and of keys.
    """

    form: LayerForm
    attention_norm: torch.Tensor | None
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    wide_norms: tuple[torch.Tensor, torch.Tensor] | None
    out: Linear
    attention_out_norm: torch.Tensor | None
    feed_forward_norm: torch.Tensor | None
    feed_forward: FeedForward
    feed_forward_out_norm: torch.Tensor | None


class LayerReader:
    """Reads the layers of a model of `form`, of which each head turns its first `rotated` numbers.

    `modules` are those that adapters may change, as far as layers were read.
    """

    def __init__(
        self,
        weights: Weights,
        base: str,
        dtype: torch.dtype,
        *,
        form: Form,
        rotated: int,
        operators: Operators,
        low_rank: LowRank,
    ) -> None:
        """`base` is the prefix of the tensors' names, to which a layer's number is added.

        `low_rank` has what adapters add to the linear layers.
        """
        self.modules = Modules()
        self._low_rank = low_rank
        self._weights = weights
        self._root = self._base = base
        self._dtype = dtype
        self._form = form
        self._rotated = rotated
        self._operators = operators

    def read(self, number: int) -> Layer:
        self._base = f"{self._root}{number}."
        form, family = self._form, self._form.family
        norms = (self._paired_norm("q_norm"), self._paired_norm("k_norm")) if family.query_key_norm else None
        heads = norms if family.query_key_norm == "head" else None
        return Layer(
            form=form.layers[number],
            attention_norm=self._norm(family.attention_norm),
            qkv=self._qkv(),
            query_norm=heads[0] if heads else None,
            key_norm=heads[1] if heads else None,
            wide_norms=norms if family.query_key_norm == "width" else None,
            out=self._linear("self_attn.o_proj"),
            attention_out_norm=self._norm(family.attention_out_norm),
            feed_forward_norm=self._norm(family.feed_forward_norm),
            feed_forward=self._experts(family.experts)
            if family.experts and form.layers[number].is_sparse
            else self._gated("mlp"),
            feed_forward_out_norm=self._norm(family.feed_forward_out_norm),
        )

    def _take(self, *names: str) -> torch.Tensor:
        """The first of `names` that there is."""
        found = next((name for name in names if self._base + name in self._weights), names[-1])
        return self._weights.take(self._base + found, self._dtype).to(self._operators.device)

    def _matrix(self, name: str) -> Weight:
        """A linear layer's weight, in eight bits where it is stored so."""
        return self._weights.matrix(self._base + name, self._dtype).to(self._operators.device)

    def _has(self, name: str) -> bool:
        return self._base + name in self._weights

    def _norm(self, name: str) -> torch.Tensor | None:
        return self._take(f"{name}.weight").float() + self._form.family.norm_offset if name else None

    def _paired_norm(self, name: str) -> torch.Tensor:
        norm = self._take(f"self_attn.{name}.weight").float() + self._form.family.norm_offset
        return self._pairs(norm)

    def _pairs(self, tensor: torch.Tensor) -> torch.Tensor:
        return half_split_to_pairs(tensor, self._form.head_dim, self._rotated)

    def _qkv(self) -> Linear:
        form = self._form
        sizes = [form.heads * form.head_dim, form.kv_heads * form.head_dim, form.kv_heads * form.head_dim]

        query, key, value = (torch.arange(size) for size in sizes)
        orders = {"q": self._pairs(query), "k": self._pairs(key), "v": value}
        starts = (0, sizes[0], sizes[0] + sizes[1])
        order = torch.cat([each + start for each, start in zip(orders.values(), starts, strict=True)])
        if form.family.is_fused:
            orders = {"qkv": order}
        orders = {f"self_attn.{name}_proj": own for name, own in orders.items()}
        weight = joined([self._matrix(f"{name}.weight") for name in orders])[order]
        biased = any(self._has(f"{name}.bias") for name in orders)
        bias = torch.cat([self._take(f"{name}.bias") for name in orders])[order] if biased else None
        return self._adapted(self._operators.linear(weight, bias), orders, weight.shape[1])

    def _gated(self, base: str) -> FeedForward:
        names = [f"{base}.gate_up_proj"] if self._form.family.is_fused else [f"{base}.gate_proj", f"{base}.up_proj"]
        return GatedFeedForward(self._linear(*names), self._linear(f"{base}.down_proj"), self._activation())

    def _linear(self, *names: str) -> Linear:
        """The projections `names` fused, their outputs in that order; either all of them have a bias or none."""
        weights = [self._matrix(f"{name}.weight") for name in names]
        weight = joined(weights)
        biased = any(self._has(f"{name}.bias") for name in names)
        bias = torch.cat([self._take(f"{name}.bias") for name in names]) if biased else None
        orders = {name: torch.arange(len(own)) for name, own in zip(names, weights, strict=True)}
        return self._adapted(self._operators.linear(weight, bias), orders, weight.shape[1])

    def _adapted(self, linear: Linear, orders: dict[str, torch.Tensor], inputs: int) -> Linear:
        """Return `linear` as adapters of the modules `orders` may change it, each with its outputs in that order."""
        number = self._base.removeprefix(self._root)
        adapted = self._low_rank.adapted(linear, len(orders) * MOST_RANK)
        self.modules.add(adapted.place, {number + name: order for name, order in orders.items()}, inputs)
        return adapted

    def _activation(self) -> Activation:
        return self._operators.silu_mul if self._form.activation == "silu" else self._operators.gelu_mul

    def _experts(self, names: ExpertNames) -> FeedForward:
        router = self._take(*names.router)
        if names.shared:
            router = torch.cat((router, self._take(f"{names.shared}_gate.weight")))
        return MixtureOfExperts(
            self._operators,
            self._operators.router(router),
            self._operators.products(self._each_expert(names), self._activation()),
            chosen=self._form.chosen,
            is_normalised=self._form.is_normalised,
            shared=self._gated(names.shared) if names.shared else None,
        )

    def _each_expert(self, names: ExpertNames) -> Iterator[tuple[Weight, Weight]]:
        """Each expert's joint projection of gate and up, and its projection down."""
        if names.single is None or not self._has(names.single[0].format(0)):
            stacked = self._take(*names.both), self._take(*names.down)
            if len(stacked[0]) != self._form.experts:
                raise ModelRefusedError(
                    f"the checkpoint has {len(stacked[0])} experts, its config {self._form.experts}"
                )
            yield from zip(*stacked, strict=True)
            return
        for number in range(self._form.experts):
            gate, up, down = (self._matrix(name.format(number)) for name in names.single)
            yield joined((gate, up)), down
