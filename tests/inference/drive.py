"""The real scheduler over a real runner, in process: what a worker's loop does, without text and transport."""

from __future__ import annotations

import itertools
from collections.abc import Sequence as Many
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from inference.config import EngineConfig
from inference.core.config import SchedulerConfig
from inference.core.prefix import PrefixKeys
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.execution.backend import LoadedModel
from inference.types import FinishReason, SamplingParams

GREEDY = SamplingParams(temperature=0.0)
MARGIN = 1e-4  # a different greedy token passes only where the reference's top two are closer than this


@dataclass
class Drive:
    """One loaded model under one scheduler."""

    loaded: LoadedModel
    changes: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        loaded = self.loaded
        config = SchedulerConfig.of(
            EngineConfig("test", "-", block_size=loaded.block_size),
            blocks=loaded.kv_blocks,
            max_context=loaded.max_context,
            vocab_size=loaded.vocab_size,
            eos_ids=loaded.eos_ids,
        )
        self.scheduler = Scheduler(
            replace(config, **self.changes),
            PrefixKeys(b"secret", model="m", dtype="float32", block_size=loaded.block_size),
            lambda: 0.0,
        )
        self.ids = itertools.count()
        self.cached: dict[str, int] = {}

    def run(
        self,
        prompts: Many[Many[int]],
        tokens: int,
        sampling: SamplingParams = GREEDY,
        seeds: Many[int] | None = None,
    ) -> list[list[int]]:
        """Generate up to `tokens` for each prompt, all submitted at once, and return what each got."""
        names = [f"r{next(self.ids)}" for _ in prompts]
        for i, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
            seed = seeds[i] if seeds else 0
            self.scheduler.submit(
                Sequence(name, "t", "d", tuple(prompt), tokens, tokens, last=True, sampling=sampling, seed=seed)
            )
        generated: dict[str, list[int]] = {name: [] for name in names}
        while self.scheduler.unfinished:
            plan = self.scheduler.plan()
            assert plan is not None
            for output in self.scheduler.commit(plan, self.loaded.runner.launch(plan).wait()):
                generated[output.request_id].extend(output.tokens)
                if output.started is not None:
                    self.cached[output.request_id] = output.started.cached_tokens
                if output.finished is not None:
                    assert output.finished.reason in {FinishReason.STOP, FinishReason.LENGTH}, output.finished
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
