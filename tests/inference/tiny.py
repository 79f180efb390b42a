"""Tiny random models, initialised wide so that their logits differ clearly."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

COMMON: dict[str, Any] = {
    "vocab_size": 211,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
# fmt: off
SPECIAL: dict[str, dict[str, Any]] = {
    "llama": {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}, "tie_word_embeddings": True},
    "qwen2": {},
    "qwen3": {"head_dim": 32},
    "mistral": {"sliding_window": 24, "head_dim": 16},
    "gpt2": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512},
    "gemma": {"head_dim": 32},
    "gemma2": {
        "head_dim": 16, "sliding_window": 24, "query_pre_attn_scalar": 24, "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 5.0,
    },
    "gemma3_text": {"head_dim": 32, "sliding_window": 24, "query_pre_attn_scalar": 24, "sliding_window_pattern": 3},
    "phi3": {"original_max_position_embeddings": 512},
    "olmo2": {},
    "olmo3": {"sliding_window": 24, "layer_types": ["sliding_attention", "sliding_attention", "full_attention"]},
    "granite": {
        "attention_multiplier": 0.2, "embedding_multiplier": 12.0, "residual_multiplier": 0.22, "logits_scaling": 4.0,
        "rms_norm_eps": 0.05,
    },
    "mixtral": {"num_local_experts": 4, "num_experts_per_tok": 2},
    "qwen2_moe": {
        "num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "shared_expert_intermediate_size": 80,
        "decoder_sparse_step": 2,
    },
    "qwen3_moe": {
        "num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 32, "norm_topk_prob": True, "head_dim": 32,
        "mlp_only_layers": [1],
    },
    "olmoe": {"num_experts": 8, "num_experts_per_tok": 3, "intermediate_size": 48},
    "stablelm": {},
    "cohere": {},
    "gpt_oss": {"num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 24, "head_dim": 16},
    "gptj": {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "rotary_dim": 8},
    "bloom": {"n_layer": 3, "n_head": 4},
    "mamba": {"state_size": 4},
}
# fmt: on


def save_tiny(kind: str, folder: Path, **changes: Any) -> Path:
    """Write a random model of `kind` to `folder` and return it."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(kind, **{**COMMON, **SPECIAL.get(kind, {}), **changes})
    torch.manual_seed(7)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.normal_(0, 1.6 / parameter.shape[-1] ** 0.5)
            elif "bias" in name or "sinks" in name:
                parameter.normal_(0, 0.3)
            else:
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model.generation_config.eos_token_id = None
    model.save_pretrained(folder)
    return folder
