"""Proof that our way of running an architecture gives what its plain forward gives, before a model is served with it.

Many architectures keep a state elsewhere, look back only so far, or turn positions otherwise past some length; run over
paged K/V they would give wrong tokens without any error. So a small random model of the same config is run both ways in
float32, with sequences longer than every bound on locality that the config names (windows, chunks, thresholds of scaled
positions), which the small config lowers so that this takes a moment. Its weights are drawn wide: errors show.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from inference.core.step import Row
from inference.errors import ModelRefusedError
from inference.execution.backend import CausalBackend
from inference.execution.inputs import pack
from inference.execution.kv_cache import KVCache
from inference.types import SamplingParams

EXACT = 1e-3  # of the logits' spread, at every position
LARGEST = 500_000_000  # parameters of a small model: more would not be small
SMALL_VOCABULARY = 256
SMALL = {  # what else is made smaller, by its name in a config
    r"intermediate|ffn|inner": 512,
    r"^(num_local_experts|num_experts|n_routed_experts)$": 8,
    r"^(num_experts_per_tok|moe_topk)$": 4,
}
UNREACHED = 1 << 20  # a bound that no sequence of a proof comes to

BOUND = re.compile(r"window|chunk|local|floor|context|segment|span|stride|recent|index_topk|block_size|original_max")
NO_BOUND = re.compile(r"^num_|^use_|expert|layer|pattern|_ids?$|prob|dropout|feed_forward|conv")

Candidate = Callable[[Any], CausalBackend]
"""From a transformers model in float32 to our way of running it; raises UnservableError with the reason."""


class UnservableError(Exception):
    """Our way of running it can't give this architecture's results."""


@dataclass(frozen=True, slots=True)
class Proof:
    """What was proved: up to `max_context` tokens (0: as far as the model goes), in a `text` for operators."""

    max_context: int
    text: str


@dataclass(frozen=True, slots=True)
class Bound:
    """A number of tokens at which a config changes what a model does, and where it stands in the config."""

    name: str
    value: int
    paths: tuple[tuple[str | int, ...], ...]


def prove(config: Any, candidate: Candidate, block_size: int) -> Proof:
    """Return how far `candidate` computes what a model of `config` computes by itself.

    Raise UnservableError where it doesn't even within every bound, ModelRefusedError where no small model can be made.
    """
    text = _causal_config(config)
    bounds = bounds_of(text)
    small = {bound: min(bound.value, 21 + 17 * rank) for rank, bound in enumerate(bounds)}
    longest = max([3 * block_size, *(2 * value for value in small.values())]) + 5

    def difference(reached: Sequence[Bound], length: int = longest) -> float:
        """How far both ways are apart where only `reached` are low, at sequences of up to `length` tokens."""
        values = {bound: small[bound] if bound in reached else max(bound.value, UNREACHED) for bound in bounds}
        model = _small_model(text, values, longest)
        ids = random_sequences(model.config.get_text_config().vocab_size, (length, block_size + 3))
        plain = plain_logits(model, ids)
        return float(distances(paged_logits(candidate(model), ids, block_size), plain).max())

    worst = difference(bounds)
    if worst <= EXACT:
        names = ", ".join(bound.name for bound in bounds)
        past = f" past {names}" if names else ""
        return Proof(0, f"a small float32 model's paged logits{past} within {worst:.1g} of their spread")
    wrong = [bound for bound in bounds if not difference([bound]) <= EXACT]
    sound = [bound for bound in bounds if bound not in wrong]
    if not wrong or not (rest := difference(sound)) <= EXACT:
        raise UnservableError(f"its paged logits differ from its plain forward by {worst:.2g} of their spread")
    limits = [bound.value - (not difference([bound], small[bound]) <= EXACT) for bound in wrong]
    names = ", ".join(f"{bound.name} {bound.value}" for bound in wrong)
    return Proof(
        min(limits),
        f"a small float32 model's paged logits within {rest:.1g} of their spread, but wrong past {names}: "
        f"at most {min(limits)} tokens are served",
    )


def proved(config: Any, path: str, candidate: Candidate, block_size: int, folder: Path) -> Proof:
    """Return what `prove` does, from `folder` where it stands there already, and keep it there.

    `path` names what `candidate` does. A proof holds for one config, one state of our code, one torch and transformers.
    """
    import transformers

    digest = blake2b(digest_size=16)
    settings = {name: value for name, value in config.to_dict().items() if name not in {"_name_or_path", "dtype"}}
    facts = (settings, path, block_size, torch.__version__, transformers.__version__)
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for source in sorted((Path(__file__).parents[1]).glob("[ae]*/**/*.py")):  # architectures and execution
        digest.update(source.read_bytes())
    kept = folder / f"{digest.hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError):
        return Proof(**json.loads(kept.read_text()))
    proof = prove(config, candidate, block_size)
    with suppress(OSError):  # a folder that can't be written costs the next load a second, not this one its model
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = kept.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(proof)))
        part.replace(kept)
    return proof


def bounds_of(config: Any) -> list[Bound]:
    """Every bound on locality that a text config names, lowest first."""
    found: dict[tuple[str, int], list[tuple[str | int, ...]]] = {}

    def look(name: str, value: Any, path: tuple[str | int, ...]) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                look(str(key), item, (*path, key))
        elif isinstance(value, list):
            for number, item in enumerate(value):
                look(name, item, (*path, number))
        elif type(value) is int and value > 1 and BOUND.search(name) and not NO_BOUND.search(name):
            found.setdefault((name, value), []).append(path)

    for name, value in vars(config).items():
        look(name, value, (name,))
    return sorted((Bound(*key, tuple(paths)) for key, paths in found.items()), key=lambda bound: bound.value)


def random_sequences(vocabulary: int, lengths: Sequence[int]) -> list[list[int]]:
    """Random ids, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def plain_logits(model: Any, sequences: Sequence[list[int]]) -> list[torch.Tensor]:
    """A transformers model's own logits at every position of each sequence, float32 [tokens, vocabulary]."""
    return [model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float() for ids in sequences]


def distances(ours: Sequence[torch.Tensor], plain: Sequence[torch.Tensor]) -> torch.Tensor:
    """How far logits are apart at each position, as a part of their spread there; NaN where they aren't finite."""
    return torch.cat([(a - b).abs().amax(1) / b.std(1) for a, b in zip(ours, plain, strict=True)])


def paged_logits(model: CausalBackend, sequences: Sequence[list[int]], block_size: int) -> list[torch.Tensor]:
    """Logits at every position of each sequence, computed together, chunk by chunk and token by token, over blocks."""
    needed = [-(-len(ids) // block_size) for ids in sequences]
    cache = KVCache(model.spec, sum(needed) + 1, block_size)
    free = list(range(1, sum(needed) + 1))
    tables = [tuple(free.pop() if i % 2 else free.pop(0) for i in range(n)) for n in needed]
    done = [0 for _ in sequences]
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    sizes = itertools.cycle(((block_size + 1, 2), (1, block_size - 1 or 1), (7, 1), (1, 1)))
    while any(n < len(ids) for n, ids in zip(done, sequences, strict=True)):
        turn = [
            (i, ids[done[i] : done[i] + size])
            for (i, ids), size in zip(enumerate(sequences), next(sizes), strict=True)
            if done[i] < len(ids)
        ]
        batch = pack([_row(i, ids, done[i], tables[i]) for i, ids in turn], block_size)
        every = range(batch.ids.shape[0])
        batch = replace(batch, sampled=torch.tensor(every), order=tuple(every))
        # Packing puts single tokens first.
        packed = sorted(turn, key=lambda item: (len(item[1]) > 1, done[item[0]] if len(item[1]) == 1 else 0))
        parts = torch.split(model.forward(batch, cache).float(), [len(ids) for _, ids in packed])
        for (i, ids), part in zip(packed, parts, strict=True):
            logits[i].append(part)
            done[i] += len(ids)
    return [torch.cat(parts) for parts in logits]


def _row(number: int, ids: list[int], start: int, blocks: tuple[int, ...]) -> Row:
    return Row(number, str(number), tuple(ids), start, blocks, True, 0, SamplingParams(), 0)


def _causal_config(config: Any) -> Any:
    """The config of the language model alone, where transformers has a class for it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    return text if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING else config


def _small_model(config: Any, values: dict[Bound, int], longest: int) -> Any:
    """A random model of `config` with few layers, narrow where it can be, and `values` for its bounds."""
    from transformers import AutoModelForCausalLM

    reason = ""
    # Some architectures tie their layers or their widths together.
    for short, narrow in ((True, True), (False, True), (True, False)):
        small = copy.deepcopy(config)
        text = small.get_text_config()
        for bound, value in values.items():
            for path in bound.paths:
                _set(text, path, value)
        if short:
            _shorten(text)
        _bound_tables(text, longest)
        if narrow:
            _narrow(text)
        try:
            with torch.device("meta"):
                shape = AutoModelForCausalLM.from_config(small, trust_remote_code=False)
            if sum(parameter.numel() for parameter in shape.parameters()) > LARGEST:
                raise MemoryError("the smallest model that keeps its form is too large")  # noqa: TRY301
            model = AutoModelForCausalLM.from_config(
                small, dtype=torch.float32, attn_implementation="eager", trust_remote_code=False
            ).eval()
            _draw_wide(model)
            model(input_ids=torch.tensor([[1, 2, 3]]), use_cache=False)
        except Exception as error:  # noqa: BLE001  a foreign model can raise anything
            reason = reason or first_line(error)
        else:
            return model
    name = (config.architectures or [config.model_type])[0]
    raise ModelRefusedError(f"{name} can't be proved on a small model: {reason}")


def _set(config: Any, path: tuple[str | int, ...], value: int) -> None:
    place: Any = vars(config)
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value


def _shorten(config: Any) -> None:
    """Keep the first layers, so many that there is one of each kind at least."""
    layers = int(config.num_hidden_layers)
    lists = {name: value for name, value in vars(config).items() if isinstance(value, list) and len(value) == layers}
    # A list without a repetition numbers the layers; it says nothing of their kind.
    telling = [value for value in lists.values() if len({str(item) for item in value}) < layers]
    kinds = [tuple(str(value[i]) for value in telling) for i in range(layers)]
    kept = min(layers, max([2, *(kinds.index(kind) + 1 for kind in set(kinds))]))
    config.num_hidden_layers = kept
    for name, value in lists.items():
        setattr(config, name, value[:kept])


def _bound_tables(config: Any, longest: int) -> None:
    """Keep few words, and no more positions than are used."""
    for name, value in list(vars(config).items()):
        if type(value) is int and "vocab_size" in name:
            setattr(config, name, min(value, SMALL_VOCABULARY))
        elif type(value) is int and name.endswith("token_id") and value >= SMALL_VOCABULARY:
            setattr(config, name, None)
    positions = getattr(config, "max_position_embeddings", None)
    if isinstance(positions, int) and positions > longest:
        config.max_position_embeddings = longest


def _narrow(config: Any) -> None:
    """Make the model a few heads wide. A head's own width stays: rope's parameters may depend on it."""
    heads = int(config.num_attention_heads)
    width = int(getattr(config, "head_dim", None) or config.hidden_size // heads)
    groups = int(getattr(config, "num_key_value_heads", None) or heads)
    few = min(groups, 2)
    config.num_attention_heads = few * min(heads // groups, 2)
    if getattr(config, "num_key_value_heads", None):
        config.num_key_value_heads = few
    config.hidden_size = config.num_attention_heads * width
    for name, value in list(vars(config).items()):
        most = next((most for pattern, most in SMALL.items() if re.search(pattern, name)), None)
        if most is not None and type(value) is int:
            setattr(config, name, min(value, most))
        elif most is not None and isinstance(value, list) and all(type(item) is int for item in value):
            setattr(config, name, [min(item, most) for item in value])


def _draw_wide(model: Any) -> None:
    """Fill every parameter with values wide enough that logits differ clearly from token to token."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        if parameter.dim() > 1:
            parameter.normal_(0, 1.6 / parameter.shape[-1] ** 0.5, generator=generator)
        elif "bias" in name or "sinks" in name:
            parameter.normal_(0, 0.3, generator=generator)
        else:
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)


def first_line(error: Exception) -> str:
    """The error's class and first line."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
