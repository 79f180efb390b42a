"""Tiny random models of every causal language model that transformers registers, made by machine from its config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

MAX_PARAMETERS = 60_000_000
BOUND = 24  # tokens: what windows and chunks are lowered to
SIZES = {  # the settings that are lowered, by a pattern of their names; the first that matches counts
    r"vocab_size": 211,
    r"^(max_position_embeddings|n_positions|max_target_positions|max_sequence_length|n_ctx|max_seq_len)$": 512,
    r"window|chunk|local_attention|index_topk": BOUND,
    r"^(num_|n_|total_)?(hidden_|decoder_|encoder_|transformer_)?(layers?|n_layers)$|^num_blocks$": 4,
    r"(key_value|kv)_heads$|^num_kv|^multi_query_group_num$": 2,
    r"heads?$|^(encoder|decoder)_attention_heads$": 4,
    r"rope_head_dim$": 8,
    r"head_dim$|head_size$|^d_kv$|^rotary_dim$": 16,
    r"lora_rank$|lora_dim$": 16,
    r"^(n_group|topk_group|num_expert_groups?|num_limited_groups|n_mtp|num_nextn_predict_layers)$": 1,
    r"per_tok|topk|top_k$|^moe_k$": 2,
    r"^num_dense_layers$|first_k_dense|^moe_layer_start": 1,
    r"experts$|num_local_experts": 4,
    r"intermediate|ffn|inner|mlp_(dim|size)|feedforward": 96,
    r"^(hidden_size|n_embd|d_model|dim|model_dim|embed_dim|embedding_size|d_embed|word_embed_proj_dim|hidden_dim)$": 64,
    r"state_size|d_state|ssm_state": 8,
    r"conv_kernel|d_conv|conv_L_cache": 4,
}
KEPT = re.compile(r"_ids?$|use_|_prob|dropout|pattern|_type|mask")


def types() -> list[str]:
    """Return every model type that transformers maps to a causal language model."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_model(kind: str, changes: Mapping[str, Any] = {}) -> Any:
    """Return a float32 model of a tiny config of `kind`, which has taken three tokens.

    Its weights have a wide spread, so that logits differ clearly. Raise RuntimeError with the first reason when no
    config that was tried builds.
    """
    from transformers import AutoModelForCausalLM

    reason = ""
    for config in _configs(kind, changes):
        try:
            if isinstance(config, Exception):
                raise config  # noqa: TRY301
            with torch.device("meta"):
                shape = AutoModelForCausalLM.from_config(config)
            if (size := sum(parameter.numel() for parameter in shape.parameters())) > MAX_PARAMETERS:
                raise MemoryError(f"{size / 1e6:.0f} million parameters")  # noqa: TRY301
            torch.manual_seed(7)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
            _draw(model)
            with torch.no_grad():
                model(input_ids=torch.tensor([[5, 6, 7]]), use_cache=False)
        except Exception as error:  # noqa: BLE001  a foreign model can raise anything
            lines = str(error).strip().splitlines()
            reason = reason or f"{type(error).__name__}: {lines[0] if lines else ''}"
        else:
            model.generation_config.eos_token_id = None
            return model
    raise RuntimeError(reason)


def save_tiny_model(kind: str, folder: Path, changes: Mapping[str, Any] = {}) -> Path:
    """Write a tiny model to `folder` and return it; raise RuntimeError as `tiny_model` does."""
    tiny_model(kind, changes).save_pretrained(folder)
    return folder


def _configs(kind: str, changes: Mapping[str, Any]) -> Iterator[Any]:
    """Yield configs to try, or the errors of making them; the plainest first."""
    from transformers import CONFIG_MAPPING

    cls = CONFIG_MAPPING[kind]
    every = {**OVERRIDES.get(kind, {}), **changes}
    kept = ("", r"head_dim|head_size", r"(key_value|kv)_heads$", r"layers?$", r"heads?$|head_dim", r"window|chunk")
    for keep in kept:
        for lists in (False, True):
            try:
                yield _config(cls, every, re.compile(keep) if keep else None, cut_lists=lists)
            except Exception as error:  # noqa: BLE001  a foreign config can raise anything
                yield error


def _config(cls: Any, changes: Mapping[str, Any], keep: re.Pattern[str] | None, *, cut_lists: bool) -> Any:
    default = cls()
    subs = {name: type(getattr(default, name)) for name in cls.sub_configs if getattr(default, name, None) is not None}
    given: dict[str, Any] = {name: _config(sub, {}, keep, cut_lists=cut_lists) for name, sub in subs.items()}
    values = {name: value for name, value in default.to_dict().items() if name not in subs}
    layers = next((value for name, value in values.items() if _size(name) == 4 and "layer" in name), 0)
    for name, value in values.items():
        if KEPT.search(name) or (keep and keep.search(name)):
            continue
        if (size := _size(name)) is not None and type(value) is int and value > size:
            given[name] = size
        elif cut_lists and isinstance(value, list) and len(value) == layers > 4:
            given[name] = [*value[:3], next((item for item in value if item not in value[:3]), value[3])]
    given |= {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0}
    for name, value in changes.items():
        if isinstance(value, Mapping) and name in given and name in subs:
            given[name] = subs[name](**{**given[name].to_dict(), **value})
        else:
            given[name] = value
    return cls(**given)


def _size(name: str) -> int | None:
    return next((size for pattern, size in SIZES.items() if re.search(pattern, name)), None)


def _draw(model: Any) -> None:
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if not parameter.is_floating_point():
                continue
            if parameter.dim() > 1:
                parameter.normal_(0, 1.6 / parameter.shape[-1] ** 0.5, generator=generator)
            elif "bias" in name or "sinks" in name:
                parameter.normal_(0, 0.3, generator=generator)
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)


_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_MIXED = ["sliding_attention", "sliding_attention", "sliding_attention", "full_attention"]
OVERRIDES: dict[str, dict[str, Any]] = {  # where the machine's config doesn't build, or is no model that anybody has
    "cohere_compass_text": {"layer_types": _MIXED, "rope_parameters": dict.fromkeys(_MIXED, _ROPE)},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10_000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_num_experts": 4, "moe_top_k": 2},
        "rope_parameters": _ROPE,
    },
    "deepseek_v2": {"num_key_value_heads": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots3_note_text": {"num_key_value_heads": 4, "head_dim": 24, "per_layer_config": None},
    "hunyuan_v1_dense": {"head_dim": 16},
    "hunyuan_v1_moe": {"head_dim": 16, "num_experts": 4, "moe_topk": 2},
    "lfm2": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 1},
    "minicpm3": {"num_key_value_heads": 4},
    "ministral": {"head_dim": 16, "layer_types": _MIXED},
    "reformer": {"is_decoder": True, "axial_pos_shape": [16, 32], "axial_pos_embds_dim": [16, 48]},
    "xmod": {"default_language": "en_XX", "num_attention_heads": 4},
    "xlm": {"emb_dim": 64, "n_words": 211, "causal": True},
    "nemotron": {"head_dim": 16, "num_key_value_heads": 2},
}

_LONG = {"rope_theta": 10_000.0, "original_max_position_embeddings": 64}
FORMS: dict[str, dict[str, Any]] = {  # settings that a family's default config leaves off, by "type form"
    "llama linear": {"rope_parameters": {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 4.0}},
    "llama dynamic": {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 4.0}},
    "llama yarn": {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, **_LONG}},
    "llama llama3": {
        "rope_parameters": {
            "rope_type": "llama3",
            "factor": 4.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            **_LONG,
        }
    },
    "llama biased": {"attention_bias": True, "mlp_bias": True},
    "qwen2 windowed": {"use_sliding_window": True, "sliding_window": BOUND, "max_window_layers": 2},
    "qwen3 windowed": {"use_sliding_window": True, "sliding_window": BOUND, "max_window_layers": 2},
    "mistral unwindowed": {"sliding_window": None},
    "phi3 windowed": {"sliding_window": BOUND},
    "phi3 longrope": {
        "rope_parameters": {
            "rope_type": "longrope",
            "short_factor": [1.0] * 8,
            "long_factor": [4.0] * 8,
            **_LONG,
        },
        "original_max_position_embeddings": 64,
    },
    "falcon alibi": {"alibi": True},
    "falcon new": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gpt_neox serial": {"use_parallel_residual": False},
    "gpt_bigcode many heads": {"multi_query": False},
    "gpt2 scaled": {"scale_attn_by_inverse_layer_idx": True, "reorder_and_upcast_attn": True},
    "opt post-norm": {"do_layer_norm_before": False},
    "stablelm normed": {"qk_layernorm": True, "use_parallel_residual": True},
    "phi normed": {"qk_layernorm": True},
    "mpt plain": {"attn_config": {"alibi": False}},
    "cohere normed": {"use_qk_norm": True},
}
