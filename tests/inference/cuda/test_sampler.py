"""Sampling for a GPU: each row goes the way that it needs, whoever else is in its step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from inference.core.step import Row
from inference.cuda import sampler as module
from inference.cuda.sampler import DeviceSampler
from inference.sampling.state import SlotStates
from inference.types import SamplingParams
from tests.inference.sampling.test_guides import VOCABULARY, Listed

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy's, of the infinities that a mask makes

PLAIN: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 0.9},
    {"temperature": 1.3, "top_k": 7, "top_p": 0.8},
    {"temperature": 0.7, "min_p": 0.05},
]
OTHERS: list[dict[str, Any]] = [
    {"temperature": 0.0, "allowed_token_ids": (17, 30)},
    {"temperature": 1.0, "logit_bias": ((5, 3.0), (6, -3.0))},
    {"temperature": 0.8, "repetition_penalty": 1.4, "presence_penalty": 0.5},
    {"temperature": 0.0, "logprobs": 2},
    {"temperature": 1.0, "guided": True},
    {"temperature": 1.0, "top_k": 3, "logprobs": 0, "guided": True},
]
Count = Callable[[], tuple[list[int], list[int]]]


def row(slot: int, *, guided: bool = False, **params: Any) -> Row:
    history = [3, 4, 40 + slot, 3]
    grammar = Listed([17, 30, 42], [5, 18], [19]) if guided else None
    sampling = SamplingParams(seed=slot, **params)
    return Row(slot, f"r{slot}", (3,), 3, (), True, 0, sampling, slot, history, grammar=grammar)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Count:
    """Return a function that tells how many rows the kernel, and the general way, had in each call."""
    kernel, general = [], []
    sample, general_sample = module.sample, module.Sampler.sample

    def drawn(logits: torch.Tensor, tokens: torch.Tensor, **params: Any) -> None:
        kernel.append(len(tokens))
        sample(logits, tokens, **params)

    def chosen(self: Any, logits: torch.Tensor, rows: Sequence[Row]) -> Any:
        general.append(len(rows))
        return general_sample(self, logits, rows)

    monkeypatch.setattr(module, "sample", drawn)
    monkeypatch.setattr(module.Sampler, "sample", chosen)
    return lambda: (kernel, general)


def choose(logits: torch.Tensor, rows: Sequence[Row]) -> list[tuple[Any, ...]]:
    """Return each row's token, failure and log-probabilities."""
    choice = DeviceSampler(torch.device("cpu")).sample(logits.clone(), rows)
    failures, told = choice.failures, choice.logprobs
    return [
        (None if i in failures or token < 0 else token, failures.get(i), told.get(i))
        for i, token in enumerate(choice.tokens.tolist())
    ]


@pytest.mark.parametrize("is_interleaved", [False, True])
def test_rows_of_both_kinds_get_what_they_get_alone(counted: Count, is_interleaved: bool) -> None:
    params = [*PLAIN, *OTHERS]
    if is_interleaved:
        params = [params[i] for i in (8, 0, 4, 1, 5, 6, 2, 9, 7, 3)]
    rows = [row(slot, **one) for slot, one in enumerate(params)]
    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(1)) * 3
    together = choose(logits, rows)
    assert counted() == ([len(PLAIN)], [len(OTHERS)])
    rows = [row(slot, **one) for slot, one in enumerate(params)]  # a grammar's matchers, too, are new
    assert together == [choose(logits[i : i + 1], [each])[0] for i, each in enumerate(rows)]
    assert all(token is not None for token, _, _ in together)
    assert [told is not None for *_, told in together] == ["logprobs" in one for one in params]


def test_rows_of_one_kind_go_one_way_uncopied(counted: Count) -> None:
    logits = torch.randn(4, VOCABULARY)
    choose(logits, [row(slot, **one) for slot, one in enumerate(PLAIN)])
    choose(logits, [row(slot, **one) for slot, one in enumerate(OTHERS[:4])])
    assert counted() == ([4], [4])


def test_a_row_that_fails_is_named_by_its_own_number() -> None:
    rows = [row(0, **OTHERS[0]), row(1, **PLAIN[1]), row(2, **PLAIN[0]), row(3, **OTHERS[3]), row(4, **OTHERS[1])]
    logits = torch.randn(5, VOCABULARY)
    logits[2] = logits[3] = float("nan")
    given = choose(logits, rows)
    assert [token is None for token, _, _ in given] == [False, False, True, True, False]
    assert [failure and failure.code for _, failure, _ in given] == [None, None, None, "non_finite_logits", None]


def test_a_guided_row_follows_its_grammar_beside_plain_ones() -> None:
    sampler, guided, history = DeviceSampler(torch.device("cpu")), row(0, temperature=1.0, guided=True), [3]
    taken = []
    for place in range(3):
        held = guided._replace(history=history, ids=(history[-1],), start=place, output_index=place)
        beside = row(1, temperature=0.9)._replace(output_index=place)
        sampler.general.fill_masks([held, beside])
        token = int(sampler.sample(torch.randn(2, VOCABULARY), [held, beside]).tokens[0])
        history.append(token)
        taken.append(token)
    assert taken[0] in {17, 30, 42}
    assert taken[1] in {5, 18}
    assert taken[2] == 19


def test_the_host_waits_for_nothing_when_rows_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy from memory that isn't pinned waits until the device has done all that it was given."""
    pinned: list[torch.Tensor] = []
    copied = torch.Tensor.to

    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor)
        return tensor

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool = False) -> torch.Tensor:
        assert any(tensor is each for each in pinned)
        assert non_blocking
        return copied(tensor, device)

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    monkeypatch.setattr(torch.Tensor, "to", to)
    states = SlotStates(torch.device("meta"))
    rows = [row(0, temperature=0.5), row(20, logit_bias=((5, 3.0),), allowed_token_ids=(5, 6))]
    assert [state.is_masked for state in states.admit(rows)] == [False, True]
    assert len(pinned) == 6


def test_greedy_takes_the_first_of_equals_whatever_the_seed() -> None:
    """Of logits of 0 too, which no temperature makes larger than the noise of a draw."""
    sampler = DeviceSampler(torch.device("cpu"))
    rows = [row(slot, temperature=0.0, top_p=0.9) for slot in range(8)]
    assert sampler.sample(torch.zeros(8, VOCABULARY), rows).tokens.tolist() == [0] * 8
