"""Our own decoder for the Llama, Qwen2, Qwen3 and Mistral families: packed tokens, paged K/V, fused projections."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import embedding, linear, rms_norm, silu

from inference.architectures.rope import frequencies, half_split_to_pairs, rotate
from inference.architectures.weights import Weights
from inference.attention.paged import attend
from inference.execution.backend import KVSpec, LayerShape
from inference.execution.inputs import StepBatch
from inference.execution.kv_cache import KVCache

FAMILIES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "mistral": "MistralForCausalLM",
}


def unsupported(config: Any) -> str | None:
    """Why this decoder can't run a transformers config, or None when it can."""
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
    """One block's weights: `qkv` and `gate_up` are several projections in one; q and k come out in rope pairs."""

    attention_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None
    out: torch.Tensor
    out_bias: torch.Tensor | None
    mlp_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None
    window: int


class Decoder:
    """The model behind `CausalBackend`. `unsupported(config)` must be None."""

    def __init__(self, config: Any, folder: Path, dtype: torch.dtype) -> None:
        self.heads: int = config.num_attention_heads
        self.kv_heads: int = config.num_key_value_heads or self.heads
        self.head_dim: int = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.eps: float = config.rms_norm_eps
        self.vocab_size: int = config.vocab_size
        self.inverse_frequencies, self.rope_scale, _ = frequencies(config)
        with Weights(folder) as weights:
            self.embedding = weights.take("model.embed_tokens.weight", dtype)
            self.norm = weights.take("model.norm.weight", dtype)
            tied = config.tie_word_embeddings
            self.head = self.embedding if tied else weights.take("lm_head.weight", dtype)
            self.layers = [self._layer(weights, number, config, dtype) for number in range(config.num_hidden_layers)]
        shape = LayerShape(self.kv_heads, self.head_dim, self.head_dim)
        self.spec = KVSpec((shape,) * len(self.layers), dtype)

    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        hidden = embedding(batch.ids, self.embedding)
        angles = torch.outer(batch.positions.float(), self.inverse_frequencies)
        turns = torch.polar(torch.full_like(angles, self.rope_scale), angles)[:, None]
        for number, layer in enumerate(self.layers):
            normed = rms_norm(hidden, hidden.shape[-1:], layer.attention_norm, self.eps)
            hidden = hidden + self._attention(normed, number, turns, batch, cache)
            normed = rms_norm(hidden, hidden.shape[-1:], layer.mlp_norm, self.eps)
            gate, up = linear(normed, layer.gate_up, layer.gate_up_bias).chunk(2, -1)
            hidden = hidden + linear(silu(gate) * up, layer.down, layer.down_bias)
        wanted = rms_norm(hidden[batch.sampled], hidden.shape[-1:], self.norm, self.eps)
        return linear(wanted, self.head)

    def _attention(
        self, hidden: torch.Tensor, number: int, turns: torch.Tensor, batch: StepBatch, cache: KVCache
    ) -> torch.Tensor:
        layer = self.layers[number]
        tokens = hidden.shape[0]
        joint = linear(hidden, layer.qkv, layer.qkv_bias).view(tokens, self.heads + 2 * self.kv_heads, self.head_dim)
        turned = self.heads + self.kv_heads
        if layer.query_norm is not None and layer.key_norm is not None:
            query = rms_norm(joint[:, : self.heads], (self.head_dim,), layer.query_norm, self.eps)
            key = rms_norm(joint[:, self.heads : turned], (self.head_dim,), layer.key_norm, self.eps)
            query, key = rotate(query, turns), rotate(key, turns)
        else:
            both = rotate(joint[:, :turned], turns)
            query, key = both[:, : self.heads], both[:, self.heads :]
        held = cache.layers[number]
        held.store(batch.attention.slots, key, joint[:, turned:])
        mixed = attend(query, held, batch.attention, scale=self.head_dim**-0.5, window=layer.window)
        return linear(mixed.reshape(tokens, -1), layer.out, layer.out_bias)

    def _layer(self, weights: Weights, number: int, config: Any, dtype: torch.dtype) -> Layer:
        base = f"model.layers.{number}."

        def take(name: str) -> torch.Tensor | None:
            return weights.take(base + name, dtype) if base + name in weights else None

        def must(name: str) -> torch.Tensor:
            return weights.take(base + name, dtype)

        def joined(names: tuple[str, ...], kind: str) -> torch.Tensor | None:
            parts = [take(f"{name}.{kind}") for name in names]
            found = [part for part in parts if part is not None]
            if not found:
                return None
            if len(found) < len(parts):
                parts = [must(f"{name}.{kind}") for name in names]  # raises, naming the one that lacks
            return torch.cat(found)

        def paired(name: str) -> torch.Tensor | None:
            tensor = take(name)
            return None if tensor is None else half_split_to_pairs(tensor, self.head_dim)

        def qkv(kind: str) -> torch.Tensor | None:
            parts = [paired(f"self_attn.{name}_proj.{kind}") for name in "qk"] + [take(f"self_attn.v_proj.{kind}")]
            found = [part for part in parts if part is not None]
            return torch.cat(found) if len(found) == len(parts) else None

        weight = qkv("weight")
        gate_up = joined(("mlp.gate_proj", "mlp.up_proj"), "weight")
        return Layer(
            attention_norm=must("input_layernorm.weight"),
            qkv=weight if weight is not None else must("self_attn.q_proj.weight"),
            qkv_bias=qkv("bias"),
            query_norm=paired("self_attn.q_norm.weight"),
            key_norm=paired("self_attn.k_norm.weight"),
            out=must("self_attn.o_proj.weight"),
            out_bias=take("self_attn.o_proj.bias"),
            mlp_norm=must("post_attention_layernorm.weight"),
            gate_up=gate_up if gate_up is not None else must("mlp.gate_proj.weight"),
            gate_up_bias=joined(("mlp.gate_proj", "mlp.up_proj"), "bias"),
            down=must("mlp.down_proj.weight"),
            down_bias=take("mlp.down_proj.bias"),
            window=_window(config, number),
        )


def _window(config: Any, number: int) -> int:
    """The layer's sliding window, 0 for none."""
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        return int(config.sliding_window or 0) if kinds[number] == "sliding_attention" else 0
    return int(config.sliding_window or 0) if config.model_type == "mistral" else 0
