"""A real model in a `LocalEngine`, and what its greedy answers are compared with."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import FinishReason, GenerationRequest, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
MARGIN = 1e-4  # a different greedy token passes only where the reference's top two are closer than this


class Drive:
    """One loaded model in a `LocalEngine`, driven by ids; `changes` are fields of `EngineConfig`, or `kv_blocks`."""

    def __init__(self, loaded: LoadedModel, changes: dict[str, Any] | None = None) -> None:
        settings = dict(changes or {})
        loaded = replace(loaded, kv_blocks=settings.pop("kv_blocks", loaded.kv_blocks))
        config = EngineConfig("test", "-", block_size=loaded.block_size, **settings)
        self.engine = LocalEngine(config, loaded, secret=b"secret", clock=lambda: 0.0)
        (self.scheduler,) = self.engine.schedulers
        self.ids = itertools.count()
        self.cached: dict[str, int] = {}

    def run(
        self,
        prompts: Many[Many[int]],
        tokens: int,
        sampling: SamplingParams = GREEDY,
        seeds: Many[int] | None = None,
        adapters: Many[str] | None = None,
    ) -> list[list[int]]:
        """Generate up to `tokens` for each prompt, all submitted at once, and return what each got.

        `adapters` names each prompt's adapter, "" for none.
        """
        names = [f"r{next(self.ids)}" for _ in prompts]
        for i, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            seeded = replace(sampling, seed=seeds[i] if seeds else 0)
            named = adapters[i] if adapters else ""
            loaded = self.engine.model.adapters
            key = loaded.load(named) if named and loaded is not None else ""
            request = GenerationRequest(name, "t", "d", sampling=seeded, adapter=named)
            self.engine.submit(Prompt(request, tokens, ids=tuple(prompt), adapter=key))
        generated: dict[str, list[int]] = {name: [] for name in names}
        while self.engine.unfinished:
            for output in self.engine.step():
                generated[output.request_id].extend(output.tokens)
                if output.started is not None:
                    self.cached[output.request_id] = output.started.cached_tokens
                if output.finished is not None:
                    assert output.finished.reason in {FinishReason.STOP, FinishReason.LENGTH}, output.finished
            assert isinstance(self.scheduler, Scheduler)
            self.scheduler.check()
        return [generated[name] for name in names]


@dataclass(frozen=True)
class Reference:
    """What `transformers.generate` gives, with the margin between its two best tokens at each step."""

    tokens: list[int]
    margins: list[float]

    @classmethod
    def of(cls, model: Any, prompt: Many[int], tokens: int) -> Reference:
        with torch.no_grad():
            answer = model.generate(
                torch.tensor([list(prompt)]),
                attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
                do_sample=False,
                max_new_tokens=tokens,
                output_logits=True,
                return_dict_in_generate=True,
            )
        best = torch.stack(answer.logits)[:, 0].float().topk(2).values
        return cls(answer.sequences[0, len(prompt) :].tolist(), (best[:, 0] - best[:, 1]).tolist())


def reference_model(folder: Path) -> Any:
    """The folder's model as transformers runs it, in float32 and with its eager attention."""
    from transformers import AutoModelForCausalLM

    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()


def assert_greedy(model: Any, prompt: Many[int], row: list[int], tokens: int, eos: frozenset[int]) -> None:
    """Fail unless `row` is the model's greedy continuation of `prompt`: `tokens` tokens, or fewer before an end token.

    One forward of prompt and answer shows at each position whether the next token is the reference's best, or within
    MARGIN of it; so it costs a fraction of what the reference's own generation would.
    """
    with torch.no_grad():
        logits = model(torch.tensor([[*prompt, *row]])).logits[0, len(prompt) - 1 :].float()
    best = logits.max(-1).values
    for place, token in enumerate(row):
        lead = float(best[place] - logits[place, token])
        assert lead < MARGIN, f"token {place}: the reference prefers another by {lead:.2g}"
    if len(row) < tokens:
        assert int(logits[len(row)].argmax()) in eos, "the answer ended before the reference's"


def assert_same(got: Many[list[int]], expected: Many[Reference], eos: frozenset[int] = frozenset()) -> None:
    """Fail unless each row equals its reference, up to the first place where the reference itself was undecided."""
    for number, (row, reference) in enumerate(zip(got, expected, strict=True)):
        wanted = reference.tokens[:-1] if reference.tokens[-1] in eos else reference.tokens
        if row == wanted:
            continue
        pairs = itertools.zip_longest(row, wanted)
        place = next(i for i, (ours, theirs) in enumerate(pairs) if ours != theirs)
        margin = reference.margins[place]
        print(f"row {number} differs at token {place}: the reference's margin is {margin:.2g}")
        assert margin < MARGIN, f"row {number} differs at token {place} with a margin of {margin:.2g}"
