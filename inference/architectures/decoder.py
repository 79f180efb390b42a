"""Our own decoder for the families of `families.py`: packed tokens, paged K/V, fused projections."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.functional import embedding

from inference.architectures.adapters import AdapterReader
from inference.architectures.families import ExpertNames, form_of, rope_kinds
from inference.architectures.layers import Layer, LayerReader
from inference.architectures.proof import Proof, causal_config, proved
from inference.architectures.quantised import Quantised
from inference.architectures.rope import Rotations, frequencies, original_length, set_original_length
from inference.architectures.small_model import shapes_of
from inference.architectures.weights import FolderWeights, ModelWeights, Weights
from inference.errors import ModelRefusedError
from inference.execution.adapters import TYPICAL_RANK, Adapters
from inference.execution.attention.base import Attention
from inference.execution.inputs import StepBatch
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.execution.low_rank import LowRank
from inference.execution.operators import Operators

# Where a checkpoint keeps the language model: alone, or beside others in one of two orders.
ROOTS = ("model.", "language_model.model.", "model.language_model.")
HEADS = ("lm_head.weight", "language_model.lm_head.weight")


class Decoder:
    """A `CausalBackend` for a config that isn't `unsupported`, computed with `operators`.

    With `is_long` a longrope has its factors of long sequences at every length, else those of short ones.
    """

    def __init__(
        self, config: Any, weights: Weights, dtype: torch.dtype, operators: Operators, *, is_long: bool = False
    ) -> None:
        self.operators = operators
        self.device = operators.device
        self.proof = Proof(0, "not proved")
        self.form = form = form_of(config)
        self.vocab_size: int = form.vocab_size
        text = config.get_text_config()
        self.rotations: dict[str | None, Rotations] = {}
        rotated = form.head_dim
        for kind in rope_kinds(text):
            inverse, scale = frequencies(text, kind, is_partial=form.family.rotates_in_part, is_long=is_long)
            rotated = 2 * len(inverse)
            self.rotations[kind] = Rotations(inverse, scale, form.head_dim)
            self.rotations[kind].place(operators.device, form.positions if operators.device.type != "cpu" else 0)
        root = _root(weights)
        self.embedding = weights.take(f"{root}embed_tokens.weight", dtype).to(operators.device)
        exact = form.embedding_scale
        # Gemma rounds it as the embedding is rounded.
        self.embedding_scale = float(torch.tensor(exact).to(dtype)) if form.family.scales_embedding else exact
        norm = weights.take(f"{root}norm.weight", torch.float32).to(operators.device)
        self.norm = (norm + form.family.norm_offset) * form.logits_scale
        head = next((name for name in HEADS if name in weights), HEADS[0])
        matrix = self.embedding if form.is_tied else weights.matrix(head, dtype).to(operators.device)
        self.head = operators.linear(matrix, is_head=True)
        self.low_rank: LowRank | None = (low_rank := operators.low_rank())
        reader = LayerReader(
            weights,
            f"{root}layers.",
            dtype,
            form=form,
            rotated=rotated,
            operators=operators,
            low_rank=low_rank,
        )
        self.layers = [reader.read(number) for number in range(len(form.layers))]
        adapters = AdapterReader(reader.modules, dtype, low_rank)
        self.adapters: Adapters | None = Adapters(adapters.read, adapters.bytes_of(TYPICAL_RANK))
        shape = LayerShape(form.kv_heads, form.head_dim, form.head_dim)
        self.spec = KVSpec((shape,) * len(self.layers), dtype)

    @classmethod
    def load(
        cls,
        config: Any,
        folder: Path,
        dtype: torch.dtype,
        operators: Operators,
        *,
        proving: Operators,
        block_size: int,
        proofs: Path,
        wanted: int = 0,
        quantised: Quantised | None = None,
    ) -> Self:
        """Prove this decoder for `config` and load the folder's weights, which are `quantised` if that is given.

        Raise UnservableError when the proof fails, ModelRefusedError for a checkpoint that can't be read.
        `proving` are the operators of the proof, in float32; `proofs` is the folder of earlier proofs. `wanted` is the
        context that a deployment asks for: longrope turns positions otherwise for sequences past its original length,
        and K/V that are kept can't change, so a deployment that asks for more has the factors of long sequences always.
        """
        text = config.get_text_config()
        is_long = 0 < original_length(text) < wanted
        to_prove = config
        if is_long:  # every sequence of the proof is then a long one
            to_prove = copy.deepcopy(config)
            set_original_length(to_prove.get_text_config(), 2)

        def candidate(small: Any) -> Decoder:
            return cls(small.config, ModelWeights(small), torch.float32, proving, is_long=is_long)

        proof = proved(to_prove, f"decoder, {proving.tier}", candidate, block_size, proofs)
        with FolderWeights(folder, quantised=quantised) as weights:
            _check(weights, config, dtype)
            loaded = cls(config, weights, dtype, operators, is_long=is_long)
        loaded.proof = proof
        return loaded

    @property
    def exact(self) -> bool:
        """Whether everything but attention gives a token the same bits in every batch."""
        return self.operators.exact

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        return self.operators.attention(cache, max_rows=max_rows, max_blocks=max_blocks)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        operators = self.operators
        hidden = embedding(batch.ids, self.embedding)
        if self.embedding_scale != 1.0:
            hidden = hidden * self.embedding_scale
        rotations = [rotations.of(batch.positions) for rotations in self.rotations.values()]
        compute = partial(self._run_layers, batch.attention)
        if batch.adapted and self.adapters is not None and self.low_rank is not None:
            with self.low_rank.step(self.adapters.spans(batch.adapted), len(batch.ids)) as key:
                hidden = operators.repeated(batch.attention, compute, hidden, *rotations, key=key)
        else:
            hidden = operators.repeated(batch.attention, compute, hidden, *rotations)
        return operators.rms_norm(hidden[batch.sampled], self.norm, self.form.eps)

    def _run_layers(self, attention: Attention, hidden: torch.Tensor, *turns: torch.Tensor) -> torch.Tensor:
        """Return the hidden states behind the last layer; `turns` are the rotations of each kind."""
        operators, eps = self.operators, self.form.eps
        rotations = dict(zip(self.rotations, turns, strict=True))
        for number, layer in enumerate(self.layers):
            mixed = self._attend(number, layer, hidden, attention, rotations[layer.form.rope])
            if layer.attention_out_norm is None:
                hidden = layer.out(mixed, hidden)
            else:
                hidden = hidden + operators.rms_norm(layer.out(mixed), layer.attention_out_norm, eps)
            x = hidden
            if layer.feed_forward_norm is not None:
                x = operators.rms_norm(hidden, layer.feed_forward_norm, eps)
            if layer.feed_forward_out_norm is None:
                hidden = layer.feed_forward(x, hidden)
            else:
                hidden = hidden + operators.rms_norm(layer.feed_forward(x), layer.feed_forward_out_norm, eps)
        return hidden

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.head(hidden)
        return self.operators.softcap(logits, self.form.logits_softcap) if self.form.logits_softcap else logits

    def _attend(
        self, number: int, layer: Layer, hidden: torch.Tensor, attention: Attention, rotations: torch.Tensor
    ) -> torch.Tensor:
        """Store the layer's K/V and return what it attends to [T, heads · head_dim]."""
        operators, form = self.operators, self.form
        if layer.attention_norm is not None:
            hidden = operators.rms_norm(hidden, layer.attention_norm, form.eps)
        joint = layer.qkv(hidden)
        if layer.wide_norms is not None:
            widths = [form.heads * form.head_dim, form.kv_heads * form.head_dim, form.kv_heads * form.head_dim]
            query, key, value = torch.split(joint, widths, 1)
            normed = (
                operators.rms_norm(part.contiguous(), norm, form.head_eps)
                for part, norm in zip((query, key), layer.wide_norms, strict=True)
            )
            joint = torch.cat((*normed, value), 1)
        norms = layer.query_norm, layer.key_norm
        query = operators.rope_store(attention, number, joint, rotations, form.heads, *norms, form.head_eps)
        mixed = attention.attend(
            number,
            query,
            scale=form.attention_scale,
            window=layer.form.window,
            softcap=form.attention_softcap,
        )
        return mixed.view(len(hidden), -1)


def _root(weights: Weights) -> str:
    return next((root for root in ROOTS if f"{root}embed_tokens.weight" in weights), ROOTS[0])


def _check(weights: FolderWeights, config: Any, dtype: torch.dtype) -> None:
    """Raise ModelRefusedError unless the tensors are those of transformers' model of `config`, each of its shape.

    Many of another shape would compute something: a head of more rows, or a single row that is added to all. And what
    isn't read, a further layer or a scale, makes another model of it, which would answer as if it were right.
    """
    root, form, shapes = _root(weights), form_of(config), shapes_of(causal_config(config))
    if (names := form.family.experts) is not None:
        for number, layer in enumerate(form.layers):
            if layer.is_sparse:
                shapes |= _shapes_of_experts(f"{ROOTS[0]}layers.{number}.", names, form.experts, shapes)
    named = {f"{root}{name.removeprefix(ROOTS[0])}": shape for name, shape in shapes.items() if name not in HEADS}
    routers = {f"{root}layers.{number}.{name}" for number in range(len(form.layers)) for name in _routers(names)}
    weights.check(
        named | {name: shapes[HEADS[0]] for name in HEADS if HEADS[0] in shapes},
        unquantised={f"{root}embed_tokens.weight", *HEADS, *routers},
    )
    head = next((name for name in HEADS if form.is_tied and name in weights), None)
    if head and not torch.equal(*(weights.take(name, dtype) for name in (head, f"{root}embed_tokens.weight"))):
        raise ModelRefusedError(
            f"the checkpoint's tensor {head} isn't its embedding, as the config's tie_word_embeddings says: correct it"
        )


def _routers(names: ExpertNames | None) -> tuple[str, ...]:
    """Return the names that a layer's routers may have."""
    if names is None:
        return ()
    return (*names.router, f"{names.shared}_gate.weight")


def _shapes_of_experts(
    base: str, names: ExpertNames, experts: int, shapes: Mapping[str, tuple[int, ...]]
) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a layer's tensors by their other names in `names`: of the router, and of each expert."""
    found = {base + name: shapes[base + names.router[0]] for name in names.router}
    (_, both, width), down = shapes[base + names.both[0]], shapes[base + names.down[0]][1:]
    for name, shape in zip(names.single or (), ((both // 2, width), (both // 2, width), down), strict=False):
        found |= {base + name.format(number): shape for number in range(experts)}
    return found
