"""Our own decoder for the Llama, Qwen2, Qwen3 and Mistral families: packed tokens, paged K/V, fused projections."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.functional import embedding

from inference.architectures.proof import Proof, UnservableError, proved
from inference.architectures.rope import Rotations, frequencies, half_split_to_pairs
from inference.architectures.weights import FolderWeights, ModelWeights, Weights
from inference.errors import ModelRefusedError
from inference.execution.attention.base import Attention
from inference.execution.inputs import StepBatch
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.execution.linear import Linear
from inference.execution.operators import Operators

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}


def unsupported(config: Any) -> str | None:
    """Return why this decoder can't run a transformers config, or None when it can."""
    expected = FAMILIES.get(config.model_type)
    if expected is None:
        return f"model type {config.model_type} is not one of {', '.join(FAMILIES)}"
    if expected not in (config.architectures or [expected]):
        return f"architecture {config.architectures} is not {expected}"
    if config.hidden_act != "silu":
        return f"activation {config.hidden_act} is not silu"
    if getattr(config, "quantization_config", None) is not None:
        return "quantised checkpoints are not supported"
    kinds = set(getattr(config, "layer_types", None) or ())
    if kinds - {"full_attention", "sliding_attention"}:
        return f"layer types {sorted(kinds)} are not all attention"
    return frequencies(config)[2]


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer's weights. `qkv` and `gate_up` are fused projections; q and k are in rope pairs; `window` 0: none."""

    attention_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear
    down: Linear
    window: int


class Decoder:
    """A `CausalBackend` for a config that isn't `unsupported`, computed with `operators`."""

    def __init__(self, config: Any, weights: Weights, dtype: torch.dtype, operators: Operators) -> None:
        self.operators = operators
        self.device = operators.device
        self.proof = Proof(0, "not proved")
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.vocab_size: int = config.vocab_size
        inverse_frequencies, rope_scale, _ = frequencies(config)
        self.rotations = Rotations(inverse_frequencies, rope_scale)
        self.rotations.place(operators.device, config.max_position_embeddings if operators.device.type != "cpu" else 0)
        self.embedding = operators.place(weights.take("model.embed_tokens.weight", dtype))
        self.norm = operators.place(weights.take("model.norm.weight", dtype))
        tied = config.tie_word_embeddings
        head = self.embedding if tied else operators.place(weights.take("lm_head.weight", dtype))
        self.head = operators.linear(head, is_head=True)
        self.layers = [self._layer(weights, number, config, dtype) for number in range(config.num_hidden_layers)]
        shape = LayerShape(self.kv_heads, self.head_dim, self.head_dim)
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
    ) -> Self:
        """Prove this decoder for `config` and load the folder's weights; raise ModelRefusedError with the reason.

        `proving` are the operators of the proof, in float32; `proofs` is the folder of earlier proofs.
        """

        def candidate(small: Any) -> Decoder:
            return cls(small.config, ModelWeights(small), torch.float32, proving)

        try:
            proof = proved(config, f"decoder, {proving.tier}", candidate, block_size, proofs)
        except UnservableError as error:
            raise ModelRefusedError(f"the own decoder can't run {folder.name}: {error}") from error
        with FolderWeights(folder) as weights:
            loaded = cls(config, weights, dtype, operators)
        loaded.proof = proof
        return loaded

    @property
    def exact(self) -> bool:
        """Whether everything but attention gives a token the same bits in every batch."""
        return self.operators.exact

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        return self.operators.attention(cache, max_rows=max_rows, max_blocks=max_blocks)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        operators, attention, eps = self.operators, batch.attention, self.eps
        hidden = embedding(batch.ids, self.embedding)
        rotations = self.rotations.of(batch.positions)
        tokens, scale = len(hidden), self.head_dim**-0.5
        for number, layer in enumerate(self.layers):
            joint = layer.qkv(operators.rms_norm(hidden, layer.attention_norm, eps))
            norms = layer.query_norm, layer.key_norm
            query = operators.rope_store(attention, number, joint, rotations, self.heads, *norms, eps)
            mixed = attention.attend(number, query, scale=scale, window=layer.window)
            hidden = layer.out(mixed.view(tokens, -1), hidden)
            both = layer.gate_up(operators.rms_norm(hidden, layer.mlp_norm, eps))
            hidden = layer.down(operators.silu_mul(both), hidden)
        return operators.rms_norm(hidden[batch.sampled], self.norm, eps)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head(hidden)

    def _layer(self, weights: Weights, number: int, config: Any, dtype: torch.dtype) -> Layer:
        part = _Part(weights, f"model.layers.{number}.", dtype, self.head_dim, self.operators)
        return Layer(
            attention_norm=part.required("input_layernorm.weight"),
            qkv=part.linear("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            query_norm=part.optional("self_attn.q_norm.weight"),
            key_norm=part.optional("self_attn.k_norm.weight"),
            out=part.linear("self_attn.o_proj"),
            mlp_norm=part.required("post_attention_layernorm.weight"),
            gate_up=part.linear("mlp.gate_proj", "mlp.up_proj"),
            down=part.linear("mlp.down_proj"),
            window=_window(config, number),
        )


class _Part:
    """The tensors of one layer, by their names within it; those of queries and keys are permuted to rope pairs."""

    PAIRED = re.compile(r"self_attn\.[qk]_(proj|norm)\.")

    def __init__(self, weights: Weights, base: str, dtype: torch.dtype, head_dim: int, operators: Operators) -> None:
        self._weights = weights
        self._base = base
        self._dtype = dtype
        self._head_dim = head_dim
        self._operators = operators

    def required(self, name: str) -> torch.Tensor:
        tensor = self._operators.place(self._weights.take(self._base + name, self._dtype))
        return half_split_to_pairs(tensor, self._head_dim) if self.PAIRED.match(name) else tensor

    def optional(self, name: str) -> torch.Tensor | None:
        return self.required(name) if self._base + name in self._weights else None

    def linear(self, *names: str) -> Linear:
        """Return the projections `names` fused, their outputs in that order; either all of them have a bias or none."""
        weight = torch.cat([self.required(f"{name}.weight") for name in names])
        biased = any(f"{self._base}{name}.bias" in self._weights for name in names)
        bias = torch.cat([self.required(f"{name}.bias") for name in names]) if biased else None
        return self._operators.linear(weight, bias)


def _window(config: Any, number: int) -> int:
    """The layer's sliding window, 0 for none."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return int(config.sliding_window or 0) if kinds[number] == "sliding_attention" else 0
    return int(config.sliding_window or 0) if config.model_type == "mistral" else 0
