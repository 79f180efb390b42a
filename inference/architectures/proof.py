"""Proof that an architecture gives the same logits over paged K/V as in its plain forward pass, before it is served.

Many architectures keep other state, attend only so far back, or scale positions past some length; over paged K/V they
could give wrong tokens without any error. So a small random model of the same config (`small_model`) is run both ways
in float32, with sequences longer than every bound on locality in the config (windows, chunks, thresholds of scaled
positions), which are lowered so that this takes a moment. Its weights have a wide spread, so that errors show.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

from inference.architectures.small_model import Bound, bounds_of, small_model
from inference.core.step import Row
from inference.errors import ModelRefusedError
from inference.execution.backend import CausalBackend
from inference.execution.inputs import Packer
from inference.execution.kv_cache import KVCache, KVSpec
from inference.types import SamplingParams

FLOAT32_TOLERANCE = 1e-3  # a part of the logits' spread, at every position
CACHED_TOKENS = 4  # computed one by one over a model's own cache

Candidate = Callable[[Any], CausalBackend]
"""From a transformers model in float32 to the backend to prove; raises UnservableError with the reason."""


class UnservableError(Exception):
    """The backend can't give this architecture's results."""


@dataclass(frozen=True, slots=True)
class Proof:
    """The extent of a proof: up to `max_context` tokens (0: as many as the model takes), and a `text` for operators."""

    max_context: int
    text: str


def prove(config: Any, candidate: Candidate, block_size: int) -> Proof:
    """Return up to which length `candidate` computes the same as a plain model of `config`.

    Raise UnservableError when it doesn't even within every bound, ModelRefusedError when no small model can be made.
    """
    text = causal_config(config)
    bounds = bounds_of(text)
    small = {bound: min(bound.value, 21 + 17 * rank) for rank, bound in enumerate(bounds)}
    longest = max([3 * block_size, *(2 * value for value in small.values())]) + 5

    def difference(reached: Sequence[Bound], length: int = longest) -> float:
        """Return the greatest difference at `length` tokens when only the bounds `reached` are below that."""
        values = {bound: small[bound] if bound in reached else max(bound.value, 2 * longest) for bound in bounds}
        try:
            model = small_model(text, values, longest)
        except ModelRefusedError:  # it can't be told which bound is to blame
            if len(reached) == len(bounds):
                raise
            return math.inf
        ids = random_sequences(model.config.get_text_config().vocab_size, (length, block_size + 3))
        plain = plain_logits(model, ids)
        cached = _cached_logits(model, ids[0]) if len(reached) == len(bounds) else None
        worst = float(distances(paged_logits(candidate(model), ids, block_size), plain).max())
        if worst <= FLOAT32_TOLERANCE and cached is not None:
            contradiction = float(distances([cached], [plain[0][-len(cached) :]]).max())
            if not contradiction <= FLOAT32_TOLERANCE:
                raise UnservableError("its own cache gives other logits than its plain forward pass")
        return worst

    worst = difference(bounds)
    if worst <= FLOAT32_TOLERANCE:
        names = ", ".join(bound.name for bound in bounds)
        past = f" past {names}" if names else ""
        return Proof(0, f"a small float32 model's paged logits{past} within {worst:.1g} of their spread")
    wrong = [bound for bound in bounds if not difference([bound]) <= FLOAT32_TOLERANCE]
    sound = [bound for bound in bounds if bound not in wrong]
    if not wrong or not (rest := difference(sound)) <= FLOAT32_TOLERANCE:
        raise UnservableError(f"its paged logits differ from its plain forward by {worst:.2g} of their spread")
    limits = [bound.value - (not difference([bound], small[bound]) <= FLOAT32_TOLERANCE) for bound in wrong]
    names = ", ".join(f"{bound.name} {bound.value}" for bound in wrong)
    return Proof(
        min(limits),
        f"a small float32 model's paged logits within {rest:.1g} of their spread, but wrong past {names}: "
        f"at most {min(limits)} tokens are served",
    )


def proved(config: Any, backend: str, candidate: Candidate, block_size: int, folder: Path) -> Proof:
    """Return an earlier proof from `folder`, or what `prove` returns, and keep it there.

    `backend` names the candidate. A proof holds for one config, one state of our code, one torch and transformers.
    """
    import transformers

    digest = blake2b(digest_size=16)
    settings = {name: value for name, value in config.to_dict().items() if name not in {"_name_or_path", "dtype"}}
    facts = (settings, backend, block_size, torch.__version__, transformers.__version__)
    digest.update(json.dumps(facts, sort_keys=True, default=str).encode())
    for pattern in ("architectures/**/*.py", "execution/**/*.py", "cuda/**/*.py", "kernels/*.py", "kernels/*.[ch]"):
        for source in sorted((Path(__file__).parents[1]).glob(pattern)):
            digest.update(source.read_bytes())
    file = folder / f"{digest.hexdigest()}.json"
    with suppress(OSError, ValueError, TypeError):
        return Proof(**json.loads(file.read_text()))
    proof = prove(config, candidate, block_size)
    with suppress(OSError):  # without the file, the next load proves it again
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = file.with_suffix(f".{os.getpid()}")
        part.write_text(json.dumps(asdict(proof)))
        part.replace(file)
    return proof


def random_sequences(vocabulary: int, lengths: Sequence[int]) -> list[list[int]]:
    """Return sequences of random ids, the same each time."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(vocabulary, (length,), generator=generator).tolist() for length in lengths]


def plain_logits(model: Any, sequences: Sequence[list[int]]) -> list[torch.Tensor]:
    """Return a transformers model's own logits at every position: for each sequence float32 [tokens, vocabulary]."""
    return [
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False).logits[0].float().cpu()
        for ids in sequences
    ]


def _cached_logits(model: Any, ids: list[int]) -> torch.Tensor | None:
    """Return a transformers model's logits at the last places with a cache of its own; None where it has none."""
    begun = len(ids) - CACHED_TOKENS
    try:
        answer = model(input_ids=torch.tensor([ids[:begun]]), use_cache=True)
        logits = []
        for token in ids[begun:]:
            answer = model(input_ids=torch.tensor([[token]]), past_key_values=answer.past_key_values, use_cache=True)
            logits.append(answer.logits[0].float())
    except Exception:  # noqa: BLE001  a foreign model can raise anything
        return None
    return torch.cat(logits)


def distances(ours: Sequence[torch.Tensor], plain: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the greatest difference of logits at each position, as a part of their spread; NaN if not finite."""
    return torch.cat([(a - b).abs().amax(1) / b.std(1) for a, b in zip(ours, plain, strict=True)])


def paged_logits(
    model: CausalBackend, sequences: Sequence[list[int]], block_size: int, spec: KVSpec | None = None
) -> list[torch.Tensor]:
    """Return logits as `plain_logits` does, computed over paged K/V in chunks and single tokens of all sequences.

    The K/V are those of `spec`, or of the model where there is none.
    """
    needed = [-(-len(ids) // block_size) for ids in sequences]
    cache = KVCache(spec or model.spec, sum(needed) + 1, block_size, model.device)
    free = list(range(1, sum(needed) + 1))
    tables = [tuple(free.pop() if i % 2 else free.pop(0) for i in range(n)) for n in needed]
    attention = model.attention(cache, max_rows=len(sequences), max_blocks=max(needed))
    packer = Packer(attention, max_tokens=block_size + 16)
    done = [0 for _ in sequences]
    logits: list[list[torch.Tensor]] = [[] for _ in sequences]
    sizes = itertools.cycle(((block_size + 1, 2), (1, block_size - 1 or 1), (7, 1), (1, 1)))
    while any(n < len(ids) for n, ids in zip(done, sequences, strict=True)):
        turn = [
            (i, ids[done[i] : done[i] + size])
            for (i, ids), size in zip(enumerate(sequences), next(sizes), strict=True)
            if done[i] < len(ids)
        ]
        batch = packer.pack([_row(i, ids, done[i], tables[i]) for i, ids in turn])
        batch = replace(batch, sampled=torch.arange(len(batch.ids), device=model.device))
        parts = torch.split(model.logits(model.forward(batch)).float().cpu(), [len(ids) for _, ids in turn])
        for (i, ids), part in zip(turn, parts, strict=True):
            logits[i].append(part)
            done[i] += len(ids)
    return [torch.cat(parts) for parts in logits]


def _row(number: int, ids: list[int], start: int, blocks: tuple[int, ...]) -> Row:
    return Row(number, str(number), tuple(ids), start, blocks, True, 0, SamplingParams(), 0)


def causal_config(config: Any) -> Any:
    """The config of the language model alone, where transformers has a class for it."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING

    text = config.get_text_config()
    return text if type(text) in MODEL_FOR_CAUSAL_LM_MAPPING else config
