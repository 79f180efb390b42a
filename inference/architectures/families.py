"""The families that our own decoder computes: what each does otherwise than Llama, as data.

`form_of` reads a transformers config into a `Form`, in the decoder's own terms. A setting that no entry of the table
knows must have its default, or the config isn't read at all: what we don't know is left to transformers.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

from inference.architectures.rope import UnknownRopeError, frequencies

Activation = Literal["silu", "gelu_tanh"]
ACTIVATIONS: dict[str, Activation] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
KINDS = {"full_attention", "sliding_attention"}

# What every family may set: read below, told by the weights' shapes, or without effect on a forward pass.
SHARED = {
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
    "head_dim", "hidden_act", "hidden_activation", "max_position_embeddings", "rms_norm_eps", "rope_parameters",
    "tie_word_embeddings", "attention_bias", "mlp_bias", "qkv_bias",
    "architectures", "dtype", "id2label", "label2id", "problem_type", "transformers_version", "return_dict",
    "initializer_range", "use_cache", "pretraining_tp", "bos_token_id", "eos_token_id", "pad_token_id",
    "attention_dropout", "resid_pdrop", "embd_pdrop",
}  # fmt: skip
WINDOWS = {"sliding_window", "use_sliding_window", "max_window_layers", "layer_types"}
MULTIPLIERS = {"attention_multiplier", "embedding_multiplier", "logits_scaling", "residual_multiplier"}
EXPERTS = {
    "num_local_experts", "num_experts", "num_experts_per_tok", "norm_topk_prob", "moe_intermediate_size",
    "router_aux_loss_coef", "router_jitter_noise", "output_router_logits",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Where a layer keeps its experts; of several names the first is the one that transformers has in memory.

    `both` and `down` hold all experts in one tensor; `single` are gate, up and down of the expert "{}".
    """

    router: tuple[str, ...] = ("mlp.gate.weight",)
    both: tuple[str, ...] = ("mlp.experts.gate_up_proj",)
    down: tuple[str, ...] = ("mlp.experts.down_proj",)
    single: tuple[str, str, str] | None = (
        "mlp.experts.{}.gate_proj.weight",
        "mlp.experts.{}.up_proj.weight",
        "mlp.experts.{}.down_proj.weight",
    )
    shared: str = ""  # a network for every token, weighed by a column of the router of its own
    always_normalised: bool = False


MIXTRAL = ExpertNames(
    router=("mlp.gate.weight", "block_sparse_moe.gate.weight"),
    single=tuple(f"block_sparse_moe.experts.{{}}.{name}.weight" for name in ("w1", "w3", "w2")),  # type: ignore[arg-type]
    always_normalised=True,
)


@dataclass(frozen=True, slots=True)
class Family:
    """One `model_type`. `classes` are the architectures that have it; the names are those of a layer's tensors."""

    classes: tuple[str, ...]
    attention_norm: str = "input_layernorm"  # "": the layer's input isn't normed
    attention_out_norm: str = ""  # what is normed before it is added to the residual
    feed_forward_norm: str = "post_attention_layernorm"
    feed_forward_out_norm: str = ""
    norm_offset: float = 0.0  # added to a norm's weights
    query_key_norm: Literal["", "head", "width"] = ""  # each head alone, or all heads' width at once
    is_fused: bool = False  # q, k and v are one tensor, and so are gate and up
    scales_embedding: bool = False  # by the root of the width
    window: Literal["", "layers", "all"] = ""  # by `layer_types`, or every layer
    attention_scalar: str = ""  # the setting whose root divides the scores, instead of the head's width
    attention_softcap: str = ""
    logits_softcap: str = ""
    has_multipliers: bool = False
    rotates_in_part: bool = False
    experts: ExpertNames | None = None
    settings: frozenset[str] = frozenset()  # what else it reads


def _family(*classes: str, reads: set[str] | None = None, **differences: Any) -> Family:
    return Family(classes, settings=frozenset(reads or ()), **differences)


SANDWICHED: dict[str, Any] = {
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "pre_feedforward_layernorm",
    "feed_forward_out_norm": "post_feedforward_layernorm",
    "norm_offset": 1.0,
    "scales_embedding": True,
    "window": "layers",
    "attention_scalar": "query_pre_attn_scalar",
    "logits_softcap": "final_logit_softcapping",
}
NORMED_BEHIND: dict[str, Any] = {
    "attention_norm": "",
    "attention_out_norm": "post_attention_layernorm",
    "feed_forward_norm": "",
    "feed_forward_out_norm": "post_feedforward_layernorm",
    "query_key_norm": "width",
}
SPARSE = EXPERTS | {"decoder_sparse_step", "mlp_only_layers"}
GEMMA = WINDOWS | {"query_pre_attn_scalar", "final_logit_softcapping"}

FAMILIES: dict[str, Family] = {
    "llama": _family("LlamaForCausalLM"),
    "mistral": _family("MistralForCausalLM", window="all", reads=WINDOWS),
    "qwen2": _family("Qwen2ForCausalLM", window="layers", reads=WINDOWS),
    "qwen3": _family("Qwen3ForCausalLM", window="layers", query_key_norm="head", reads=WINDOWS),
    "gemma": _family("GemmaForCausalLM", norm_offset=1.0, scales_embedding=True),
    "gemma2": _family(
        "Gemma2ForCausalLM",
        **SANDWICHED,
        attention_softcap="attn_logit_softcapping",
        reads=GEMMA | {"attn_logit_softcapping"},
    ),
    "gemma3_text": _family(
        "Gemma3ForCausalLM", "Gemma3ForConditionalGeneration", **SANDWICHED, query_key_norm="head", reads=GEMMA
    ),
    "phi3": _family(
        "Phi3ForCausalLM",
        is_fused=True,
        window="all",
        rotates_in_part=True,
        reads={"sliding_window", "original_max_position_embeddings"},
    ),
    "olmo2": _family("Olmo2ForCausalLM", **NORMED_BEHIND),
    "olmo3": _family("Olmo3ForCausalLM", **NORMED_BEHIND, window="layers", reads=WINDOWS),
    "granite": _family("GraniteForCausalLM", has_multipliers=True, reads=MULTIPLIERS),
    "mixtral": _family("MixtralForCausalLM", window="all", experts=MIXTRAL, reads=EXPERTS | {"sliding_window"}),
    "qwen2_moe": _family(
        "Qwen2MoeForCausalLM",
        window="layers",
        experts=ExpertNames(shared="mlp.shared_expert"),
        reads=SPARSE | WINDOWS | {"shared_expert_intermediate_size"},
    ),
    "qwen3_moe": _family(
        "Qwen3MoeForCausalLM", window="all", query_key_norm="head", experts=ExpertNames(), reads=SPARSE | WINDOWS
    ),
    "olmoe": _family("OlmoeForCausalLM", query_key_norm="width", experts=ExpertNames(), reads=EXPERTS),
}


class UnknownFormError(Exception):
    """A config that the own decoder doesn't compute; the message is the reason."""


@dataclass(frozen=True, slots=True)
class LayerForm:
    """One layer: its window (0: none), the kind of layers whose rope it has (None: all alike), and its experts."""

    window: int
    rope: str | None
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class Form:
    """A model as the decoder computes it.

    The residual is kept divided by the factor that some families put on what a layer adds to it: `embedding_scale` and
    `eps` are changed accordingly, and every norm gives the same as before.
    """

    family: Family
    heads: int
    kv_heads: int
    head_dim: int
    eps: float  # of norms over the residual
    head_eps: float  # of all others
    activation: Activation
    embedding_scale: float
    attention_scale: float
    attention_softcap: float
    logits_scale: float
    logits_softcap: float
    is_tied: bool
    vocab_size: int
    positions: int
    layers: tuple[LayerForm, ...]
    experts: int = 0
    chosen: int = 0
    is_normalised: bool = False


def unsupported(config: Any) -> str | None:
    """Return why the own decoder can't run a transformers config, or None when it can."""
    try:
        form_of(config)
    except UnknownFormError as error:
        return str(error)
    return None


def form_of(config: Any) -> Form:
    """Return the form of a config, of its language model where it has others; raise UnknownFormError."""
    text = config.get_text_config()
    family = FAMILIES.get(text.model_type)
    if family is None:
        raise UnknownFormError(f"model type {text.model_type} is not one of {', '.join(FAMILIES)}")
    if not set(config.architectures or text.architectures or family.classes[:1]) <= set(family.classes):
        raise UnknownFormError(f"architecture {config.architectures} is not {' or '.join(family.classes)}")
    _refuse_unknown(text, family)
    heads = text.num_attention_heads
    head_dim = _head_dim(text)
    added, scale, logits_scale = 1.0, head_dim**-0.5, 1.0
    embedding_scale = text.hidden_size**0.5 if family.scales_embedding else 1.0
    if family.attention_scalar:
        scale = getattr(text, family.attention_scalar) ** -0.5
    if family.has_multipliers:
        added, scale = text.residual_multiplier, text.attention_multiplier
        embedding_scale, logits_scale = text.embedding_multiplier / added, 1 / text.logits_scaling
    return Form(
        family=family,
        heads=heads,
        kv_heads=text.num_key_value_heads or heads,
        head_dim=head_dim,
        eps=text.rms_norm_eps / added**2,
        head_eps=text.rms_norm_eps,
        activation=ACTIVATIONS[_activation(text)],
        embedding_scale=embedding_scale,
        attention_scale=scale,
        attention_softcap=getattr(text, family.attention_softcap, None) or 0.0 if family.attention_softcap else 0.0,
        logits_scale=logits_scale,
        logits_softcap=getattr(text, family.logits_softcap, None) or 0.0 if family.logits_softcap else 0.0,
        is_tied=text.tie_word_embeddings,
        vocab_size=text.vocab_size,
        positions=text.max_position_embeddings,
        layers=_layers(text, family),
        experts=text.num_experts if family.experts else 0,
        chosen=text.num_experts_per_tok if family.experts else 0,
        is_normalised=family.experts is not None and (family.experts.always_normalised or text.norm_topk_prob),
    )


def _refuse_unknown(text: Any, family: Family) -> None:
    """Raise UnknownFormError for a setting that changes what is computed and isn't part of the form."""
    if getattr(text, "is_causal", True) is False:
        raise UnknownFormError("its attention is not causal")
    if _activation(text) not in ACTIVATIONS:
        raise UnknownFormError(f"activation {_activation(text)} is not one of {', '.join(ACTIVATIONS)}")
    for field in dataclasses.fields(text):
        value = getattr(text, field.name, field.default)
        if field.name not in SHARED | family.settings and value != field.default and (value or field.default):
            raise UnknownFormError(f"{field.name} is {value}, which the decoder doesn't know")
    if kinds := set(getattr(text, "layer_types", None) or ()) - KINDS:
        raise UnknownFormError(f"layer types {sorted(kinds)} are not attention")
    _refuse_values(text, family)
    try:
        for kind in rope_kinds(text):
            frequencies(text, kind, is_partial=family.rotates_in_part)
    except UnknownRopeError as error:
        raise UnknownFormError(str(error)) from error


def _refuse_values(text: Any, family: Family) -> None:
    """Raise UnknownFormError for a value by which nothing that has a meaning would be computed."""
    if _head_dim(text) % 2:
        raise UnknownFormError(f"a head has {_head_dim(text)} dimensions, which are no pairs")
    if family.has_multipliers and not (text.residual_multiplier > 0 and text.logits_scaling > 0):
        raise UnknownFormError("residual_multiplier or logits_scaling is not positive")


def rope_kinds(text: Any) -> tuple[str | None, ...]:
    """Return the kinds of layers that have rope parameters of their own; None alone: all layers have the same."""
    parameters = getattr(text, "rope_parameters", None) or {}
    return tuple(sorted(set(text.layer_types))) if KINDS & set(parameters) else (None,)


def _head_dim(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)


def _activation(text: Any) -> str:
    return str(getattr(text, "hidden_activation", None) or getattr(text, "hidden_act", None))


def _layers(text: Any, family: Family) -> tuple[LayerForm, ...]:
    kinds = getattr(text, "layer_types", None) or ["full_attention"] * text.num_hidden_layers
    window = int(getattr(text, "sliding_window", None) or 0)
    has_ropes = rope_kinds(text) != (None,)
    dense = set(getattr(text, "mlp_only_layers", None) or ())
    step = getattr(text, "decoder_sparse_step", 1)
    return tuple(
        LayerForm(
            window if family.window == "all" or (family.window and kinds[i] == "sliding_attention") else 0,
            kinds[i] if has_ropes else None,
            family.experts is not None and text.num_experts > 0 and i not in dense and (i + 1) % step == 0,
        )
        for i in range(text.num_hidden_layers)
    )
