"""Bounds of a model's settings: the sizes of every model, and all settings of a family that the own decoder computes.

Settings are checked before anything is computed with them, since transformers' own configs and the operators divide by
them, and count and allocate up to them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from inference.architectures.families import FAMILIES
from inference.errors import ModelRefusedError

MOST_LAYERS = 1000
MOST_HEADS = 2**14
MOST_EXPERTS = 2**14
WIDEST = 2**24  # of a layer, and of a vocabulary
MOST_POSITIONS = 2**31 - 1
LONGEST = 2**27  # tokens; the tables of blocks are as long

SIZES: dict[str, tuple[int, int]] = {
    "num_hidden_layers": (1, MOST_LAYERS),
    "num_attention_heads": (1, MOST_HEADS),
    "num_key_value_heads": (1, MOST_HEADS),
    "head_dim": (1, MOST_HEADS),
    "hidden_size": (1, WIDEST),
    "intermediate_size": (1, WIDEST),
    "vocab_size": (1, WIDEST),
    "max_position_embeddings": (1, LONGEST),
    "num_experts_per_tok": (1, MOST_EXPERTS),
}
COUNTS: dict[str, tuple[int, int]] = {
    **SIZES,
    "original_max_position_embeddings": (1, MOST_POSITIONS),
    "sliding_window": (0, MOST_POSITIONS),
    "max_window_layers": (0, MOST_POSITIONS),
    "num_experts": (0, MOST_EXPERTS),
    "num_local_experts": (1, MOST_EXPERTS),
    "moe_intermediate_size": (1, WIDEST),
    "shared_expert_intermediate_size": (1, WIDEST),
    "decoder_sparse_step": (1, MOST_POSITIONS),
}
POSITIVE = {  # numbers
    "rms_norm_eps", "query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping",
    "attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier",
    "rope_theta", "rope_local_base_freq",
    "factor", "low_freq_factor", "high_freq_factor", "attention_factor", "beta_fast", "beta_slow",
    "partial_rotary_factor",
}  # fmt: skip
FACTORS = {"short_factor", "long_factor"}
ROPES = {"rope_parameters", "rope_scaling"}


def check_settings(stated: Mapping[str, Any]) -> None:
    """Raise ModelRefusedError for the first setting of a config.json that can't be meant.

    Of other models than the own decoder's only whole numbers are looked at: their sizes may have other forms.
    """
    for part in (stated, stated.get("text_config")):
        if isinstance(part, Mapping) and str(part.get("model_type")) in FAMILIES:
            _check(part)
        elif isinstance(part, Mapping):
            for name, (least, most) in SIZES.items():
                if type(value := part.get(name)) is int:
                    _require(name, value, least <= value <= most, f"a whole number from {least} to {most}")


def _check(stated: Mapping[str, Any]) -> None:
    for name, value in stated.items():
        if value is None:
            continue
        if name in COUNTS:
            least, most = COUNTS[name]
            _require(
                name, value, type(value) is int and least <= value <= most, f"a whole number from {least} to {most}"
            )
        elif name in POSITIVE:
            _require(name, value, _is_positive(value), "a number above 0")
        elif name in ROPES:
            _check_rope(name, value)
    kinds, layers = stated.get("layer_types"), stated.get("num_hidden_layers")
    if kinds is not None:
        are_texts = isinstance(kinds, list) and all(isinstance(kind, str) for kind in kinds)
        _require("layer_types", kinds, are_texts, "a list of texts")
        if layers is not None and len(kinds) != layers:
            raise ModelRefusedError(
                f"the config's layer_types has {len(kinds)} entries, and num_hidden_layers is {layers}"
            )
    dense = stated.get("mlp_only_layers")
    are_numbers = isinstance(dense, list) and all(type(layer) is int for layer in dense)
    _require("mlp_only_layers", dense, dense is None or are_numbers, "a list of whole numbers")
    _check_parts(stated)


def _check_parts(stated: Mapping[str, Any]) -> None:
    """Hold heads and experts to what they are a part of."""
    heads, groups = stated.get("num_attention_heads"), stated.get("num_key_value_heads")
    if heads and groups and heads % groups:
        raise ModelRefusedError(f"the config's num_key_value_heads is {groups}, and doesn't divide its {heads} heads")
    experts = stated.get("num_experts") or stated.get("num_local_experts")
    chosen = stated.get("num_experts_per_tok")
    if experts and chosen and chosen > experts:
        raise ModelRefusedError(f"the config's num_experts_per_tok is {chosen}, and it has {experts} experts")


def _check_rope(name: str, value: Any) -> None:
    """Check the parameters of rotary positions: one set for all layers, or one for each kind of them."""
    _require(name, value, isinstance(value, Mapping), "an object")
    for key, item in value.items():
        where = f"{name}.{key}"
        if isinstance(item, Mapping):
            _check_rope(where, item)
        elif key == "original_max_position_embeddings":
            fits = _is_positive(item) and item == int(item) and item <= MOST_POSITIONS
            _require(where, item, item is None or fits, f"a whole number from 1 to {MOST_POSITIONS}")
        elif key in POSITIVE:
            _require(where, item, item is None or _is_positive(item), "a number above 0")
        elif key in FACTORS:
            fits = isinstance(item, list) and all(map(_is_positive, item))
            _require(where, item, item is None or fits, "a list of numbers above 0")


def _is_positive(value: Any) -> bool:
    """Whether it is a finite number above 0; NaN and true are not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf


def _require(name: str, value: Any, fits: bool, what: str) -> None:
    if not fits:
        text = repr(value)
        raise ModelRefusedError(
            f"the config's {name} is {text if len(text) <= 80 else text[:77] + '...'}, and not {what}"
        )
