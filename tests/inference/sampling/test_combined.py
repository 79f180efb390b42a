"""Every combination of parameters in one batch, over several steps, against a slow sampler that is obviously right."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from inference.core.step import Row
from inference.sampling import sampler, torch_passes
from inference.sampling.passes import Lines, Passes
from inference.sampling.rng import exponentials, noise_keys, seed_key
from inference.sampling.sampler import Sampler
from inference.sampling.state import Gathered
from inference.sampling.torch_passes import TorchPasses
from inference.types import SamplingParams
from tests.inference.sampling.reference import Known, expected

VOCABULARY = 60
ENDS = (3, 17)


class Sequence(Known):
    """A row's sequence: `tokens` is the list that its rows share."""

    def row(self, slot: int) -> Row:
        start = len(self.tokens) - 1
        return Row(
            slot, "r", (self.tokens[-1],), start, (), True, len(self.output), self.params, self.seed,
            history=self.tokens, banned=ENDS if self.params.min_tokens else (),
        )  # fmt: skip


def random_params(chance: random.Random) -> SamplingParams:
    def maybe(value: Any, neutral: Any) -> Any:
        return value if chance.random() < 0.4 else neutral

    return SamplingParams(
        temperature=chance.choice([0.0, 0.4, 1.0, 1.0, 2.5]),
        top_k=maybe(chance.choice([1, 2, 7, 30, 500]), 0),
        top_p=maybe(chance.choice([0.1, 0.5, 0.95]), 1.0),
        min_p=maybe(chance.choice([0.01, 0.2]), 0.0),
        repetition_penalty=maybe(chance.choice([0.7, 1.3, 2.0]), 1.0),
        presence_penalty=maybe(chance.uniform(-2, 2), 0.0),
        frequency_penalty=maybe(chance.uniform(-1, 2), 0.0),
        logit_bias=maybe(tuple((i, chance.uniform(-5, 5)) for i in chance.sample(range(VOCABULARY), 3)), ()),
        min_tokens=maybe(chance.randrange(1, 6), 0),
        allowed_token_ids=maybe(tuple(chance.sample(range(VOCABULARY), 12)), ()),
        logprobs=maybe(chance.randrange(4), None),
    )


@pytest.mark.parametrize("candidates", [5, 1024])
@pytest.mark.parametrize("seed", range(12))
def test_any_combination_equals_the_reference(
    seed: int, candidates: int, passes: Passes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_passes, "CANDIDATES", candidates)
    chance = random.Random(seed)
    noise = torch.Generator().manual_seed(seed)
    subject = Sampler(torch.device("cpu"), passes)
    slots: dict[int, Sequence] = {}
    checked = 0
    for _ in range(25):
        for slot in range(6):  # rows come, go, and are preempted to another slot
            event = chance.random()
            if slot not in slots and event < 0.6:
                prompt = [chance.randrange(VOCABULARY) for _ in range(chance.choice([1, 4, 300]))]
                slots[slot] = Sequence(random_params(chance), chance.getrandbits(64), prompt)
            elif slot in slots and event < 0.06:
                del slots[slot]
            elif slot in slots and event < 0.15 and (free := set(range(6)) - set(slots)):
                slots[min(free)] = slots.pop(slot)
        running = [slot for slot in slots if chance.random() < 0.8]
        chance.shuffle(running)
        if not running:
            continue
        logits = torch.randn(len(running), VOCABULARY, generator=noise) * 3
        sampled = subject.sample(logits.clone(), [slots[slot].row(slot) for slot in running])
        for number, (slot, token) in enumerate(zip(running, sampled.tokens.tolist(), strict=True)):
            sequence = slots[slot]
            line = logits[number].double()
            assert number not in sampled.failures
            wanted = expected(line.tolist(), sequence, ENDS)
            assert not wanted or token in wanted, sequence.params
            checked += len(wanted) == 1
            told = sampled.logprobs.get(number)
            assert (told is None) is (sequence.params.logprobs is None)
            if told is not None:
                truth = line.log_softmax(0)
                assert told.chosen.token == token
                assert told.chosen.logprob == pytest.approx(truth[token].item(), abs=1e-5)
                assert told.rank == int((line > line[token]).sum()) + 1
                best = line.topk(sequence.params.logprobs or 0) if sequence.params.logprobs else None
                assert [entry.token for entry in told.top] == ([] if best is None else best.indices.tolist())
                assert all(entry.logprob == pytest.approx(truth[entry.token].item(), abs=1e-5) for entry in told.top)
            sequence.tokens.append(token)
    assert checked > 40


def test_a_failed_step_is_repeated_with_the_same_penalties() -> None:
    """The history had the step's token already; the row comes again with the number of the same output token."""
    subject = Sampler(torch.device("cpu"))
    sequence = Sequence(SamplingParams(temperature=0.0, presence_penalty=2.0), 0, [1, 2])
    logits = torch.tensor([[0.0, 5.0, 4.0, 1.0]])
    for _ in range(3):
        assert subject.sample(logits.clone(), [sequence.row(0)]).tokens.tolist() == [1]
    sequence.tokens.append(1)
    assert subject.sample(logits.clone(), [sequence.row(0)]).tokens.tolist() == [2]


def test_no_permitted_token_fails_the_row_alone() -> None:
    logits = torch.zeros(2, 8)
    logits[0, 4] = float("-inf")
    rows = [
        Sequence(SamplingParams(allowed_token_ids=(4,)), 1, [1]).row(0),
        Sequence(SamplingParams(allowed_token_ids=(5,)), 1, [1]).row(1),
    ]
    sampled = Sampler(torch.device("cpu")).sample(logits, rows)
    assert list(sampled.failures) == [0]
    assert sampled.failures[0].code == "no_token_left"
    assert sampled.tokens[1] == 5


def test_parts_that_no_row_uses_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object) -> None:
        raise AssertionError("called for greedy rows")

    for owner, names in ((sampler, ("process", "noise_keys")), (TorchPasses, ("draw", "draw_filtered"))):
        for name in names:
            monkeypatch.setattr(owner, name, fail)
    rows = [Sequence(SamplingParams(temperature=0.0), slot, [1]).row(slot) for slot in range(4)]
    assert Sampler(torch.device("cpu")).sample(torch.eye(4, 9), rows).tokens.tolist() == [0, 1, 2, 3]


def test_the_draw_is_decided_as_all_tokens_scores_would(passes: Passes) -> None:
    """Bit for bit: what the bound leaves out could not have won, and the first of equals wins."""
    torch.manual_seed(1)
    for spread in (0.0, 0.3, 3.0, 40.0):
        logits = (torch.randn(40, 3000) * spread).round(decimals=1)
        peak = logits.amax(1)
        temperature = 2.0 ** torch.randint(-2, 2, (40,)).float()  # so that its reciprocal is exact
        params = Gathered(temperature, *[torch.zeros(40)] * 2, *[torch.zeros(40, dtype=torch.long)] * 2)
        keys = noise_keys(torch.tensor([seed_key(7)]), torch.arange(40))
        race = (logits - peak[:, None]) / temperature[:, None]
        race -= exponentials(keys[:, None], torch.arange(3000)[None]).log_()
        chosen = race.gather(1, passes.draw(Lines(logits, peak, params, keys))[:, None])[:, 0]
        if isinstance(passes, TorchPasses):
            assert torch.equal(chosen, race.amax(1))
        else:  # C's logarithms differ from torch's in the last bit
            torch.testing.assert_close(chosen, race.amax(1), atol=1e-5, rtol=1e-5)
