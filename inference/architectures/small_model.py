"""A small random model of a transformers config, and the bounds on locality that the config has."""

from __future__ import annotations

import copy
import logging
import re
from dataclasses import dataclass
from typing import Any

import torch

from inference.errors import ModelRefusedError

MAX_PARAMETERS = 500_000_000
SPARE_POSITIONS = 8  # some tables of positions begin with those of padding
SMALL_VOCABULARY = 256
MAX_VALUES = {  # other settings that are lowered, by a pattern of their names
    r"intermediate|ffn|inner": 512,
    r"^(num_local_experts|num_experts|n_routed_experts)$": 8,
    r"^(num_experts_per_tok|moe_topk)$": 4,
}

BOUND = re.compile(r"window|chunk|local|floor|context|segment|span|stride|recent|index_topk|block_size|original_max")
NO_BOUND = re.compile(r"^num_|^use_|expert|layer|pattern|_ids?$|prob|dropout|feed_forward|conv")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of tokens beyond which a model attends or positions differently, and its paths in the config."""

    name: str
    value: int
    paths: tuple[tuple[str | int, ...], ...]


def bounds_of(config: Any) -> list[Bound]:
    """Return every bound on locality in a text config, lowest first."""
    found: dict[tuple[str, int], list[tuple[str | int, ...]]] = {}

    def search(name: str, value: Any, path: tuple[str | int, ...]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                search(str(key), item, (*path, key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                search(name, item, (*path, number))
        elif type(value) is int and value > 1 and BOUND.search(name) and not NO_BOUND.search(name):
            found.setdefault((name, value), []).append(path)

    for name, value in vars(config).items():
        search(name, value, (name,))
    return sorted((Bound(*key, tuple(paths)) for key, paths in found.items()), key=lambda bound: bound.value)


def small_model(config: Any, values: dict[Bound, int], longest: int) -> Any:
    """Return a random float32 model of `config` with few layers, narrow if possible, and `values` for its bounds.

    `longest` is the longest sequence that it has to take. Raise ModelRefusedError when none can be made.
    """
    from transformers import AutoModelForCausalLM

    reason = ""
    # The settings of some architectures have to agree in their number of layers, or in their widths.
    for short, narrow in ((True, True), (False, True), (True, False)):
        try:
            small = copy.deepcopy(config)
            _reduce(small.get_text_config(), values, longest, short=short, narrow=narrow)
            with torch.device("meta"):
                shape = AutoModelForCausalLM.from_config(small, trust_remote_code=False)
            if sum(parameter.numel() for parameter in shape.parameters()) > MAX_PARAMETERS:
                raise MemoryError("the smallest model that keeps its form is too large")  # noqa: TRY301
            model = AutoModelForCausalLM.from_config(
                small, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            ).eval()
            _draw_parameters(model)
            model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
        except Exception as error:  # noqa: BLE001  a foreign model can raise anything
            reason = reason or first_line(error)
            log.info("no small model of %s (short: %s, narrow: %s): %s", config.model_type, short, narrow, error)
        else:
            return model
    name = (config.architectures or [config.model_type])[0]
    raise ModelRefusedError(f"{name} can't be proved on a small model: {reason}")


def shapes_of(config: Any) -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the causal language model that transformers makes for `config`, by name."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _reduce(config: Any, values: dict[Bound, int], longest: int, *, short: bool, narrow: bool) -> None:
    """Give a text config `values` for its bounds, and as few layers and as little width as is asked for."""
    for bound, value in values.items():
        for path in bound.paths:
            _set(config, path, value)
    apart: dict[str, dict[str, Any]] = {}
    if getattr(config, "is_heterogeneous", False):  # some settings differ by layer, and can't be read meanwhile
        apart = copy.deepcopy(config.to_dict()["per_layer_config"])
        config.per_layer_config = None
    if short:
        _shorten(config, {int(layer): str(sorted(settings.items())) for layer, settings in apart.items()})
    _bound_tables(config, longest)
    if narrow:
        _narrow(config)
    if apart:
        config.per_layer_config = {
            int(layer): {
                name: min(value, config.num_key_value_heads) if narrow and name == "num_key_value_heads" else value
                for name, value in settings.items()
            }
            for layer, settings in apart.items()
            if int(layer) < config.num_hidden_layers
        }


def _set(config: Any, path: tuple[str | int, ...], value: int) -> None:
    place: Any = vars(config)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value


def _shorten(config: Any, apart: dict[int, str]) -> None:
    """Keep as many of the first layers as have one of each kind, at least 2; `apart` tells how some differ."""
    layers = int(config.num_hidden_layers)
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == layers}
    # A list without a repetition numbers the layers, and doesn't give their kinds.
    kind_lists = [value for value in lists.values() if len({str(item) for item in value}) < layers]
    numbered = [(name, value) for name, value in vars(config).items() if name not in lists]
    kinds = [
        (
            apart.get(i, ""),
            *(str(value[i]) for value in kind_lists),
            *(_is_set_apart(name, value, i) for name, value in numbered),
        )
        for i in range(layers)
    ]
    kept = min(layers, max([2, *(kinds.index(kind) + 1 for kind in set(kinds))]))
    config.num_hidden_layers = kept
    for name, value in lists.items():
        setattr(config, name, value[:kept])


def _is_set_apart(name: str, value: Any, layer: int) -> bool:
    """Whether the setting makes `layer` of another kind: by its number, as one of the first, or in steps."""
    if isinstance(value, list):
        return name.endswith("_layers") and layer in value
    if name == "first_k_dense_replace":
        return isinstance(value, int) and layer < value
    return name == "decoder_sparse_step" and isinstance(value, int) and value > 0 and (layer + 1) % value == 0


def _bound_tables(config: Any, longest: int) -> None:
    """Reduce the vocabulary, and the positions to those in use."""
    for name, value in list(vars(config).items()):
        if type(value) is int and "vocab_size" in name:
            setattr(config, name, min(value, SMALL_VOCABULARY))
        elif type(value) is int and name.endswith("token_id") and value >= SMALL_VOCABULARY:
            try:
                setattr(config, name, None)
            except Exception:  # noqa: BLE001  a foreign config can raise anything where it has to have one
                setattr(config, name, SMALL_VOCABULARY - 1)
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > longest:
        config.max_position_embeddings = min(positions, longest + SPARE_POSITIONS)


def _narrow(config: Any) -> None:
    """Make the model a few heads wide. The width of a head stays, since rope's parameters may depend on it."""
    heads = getattr(config, "num_attention_heads", None)
    if not isinstance(heads, int):  # it has no attention
        return
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    few = min(groups, 2)
    config.num_attention_heads = few * min(heads // groups, 2)
    if getattr(config, "num_key_value_heads", None):
        config.num_key_value_heads = few
    config.hidden_size = config.num_attention_heads * width
    for name, value in list(vars(config).items()):
        most = next((most for pattern, most in MAX_VALUES.items() if re.search(pattern, name)), None)
        if most is not None and type(value) is int:
            setattr(config, name, min(value, most))
        elif most is not None and isinstance(value, list) and all(type(item) is int for item in value):
            setattr(config, name, [min(item, most) for item in value])


def _draw_parameters(model: Any) -> None:
    """Draw every parameter with a spread so wide that logits differ clearly from token to token."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 1.6 / parameter.shape[-1] ** 0.5, generator=generator)
        elif "bias" in name or "sinks" in name:
            parameter.normal_(0, 0.3, generator=generator)
        else:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def first_line(error: Exception) -> str:
    """Return the error's class and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
