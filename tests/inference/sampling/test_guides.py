"""Masks of guided rows: what they rule out, what they leave alone, and what fails with them."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch

from inference.core.grammar import GrammarError, Matcher
from inference.core.step import Row
from inference.guidance.thinking import ThinkingGrammar, Thought
from inference.sampling.passes import Passes
from inference.sampling.sampler import Sampler
from inference.types import SamplingParams

VOCABULARY = 70
END = 69


class Listed:
    """Permits in each place what is listed for it, and behind the last place only the end."""

    is_thought = False

    def __init__(self, *places: Sequence[int], size: int = 12) -> None:
        self.places = places
        self.size = size  # of its masks, in bytes
        self.begun = 0
        self.filled = 0

    def begin(self) -> Matcher:
        self.begun += 1
        return ListedMatcher(self)


class ListedMatcher:
    def __init__(self, grammar: Listed) -> None:
        self.grammar = grammar
        self.place = 0

    def mask(self) -> bytes:
        self.grammar.filled += 1
        permitted = self.grammar.places[self.place] if self.place < len(self.grammar.places) else [END]
        return sum(1 << token for token in permitted).to_bytes(self.grammar.size, "little")

    def accept(self, token: int) -> None:
        if self.place < len(self.grammar.places) and token not in self.grammar.places[self.place]:
            raise GrammarError(f"token {token} isn't permitted")
        self.place += 1


def row(grammar: Listed | None, history: list[int], output: int = 0, slot: int = 0, **params: object) -> Row:
    sampling = SamplingParams(**{"temperature": 0.0, **params})  # type: ignore[arg-type]
    banned = (END,) if sampling.min_tokens else ()
    return Row(
        slot, "r", (history[-1],), len(history) - 1, (), True, output, sampling, 1, history, banned, grammar=grammar
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [7, 32, 33, 1000])
def test_what_a_mask_leaves_is_untouched(passes: Passes, dtype: torch.dtype, width: int) -> None:
    logits = passes.read(torch.randn(6, width).to(dtype))
    before = logits.clone()
    chance = random.Random(width)
    permitted = [[chance.random() < 0.5 for _ in range(width)] for _ in range(3)]
    words = -(-width // 32)
    masks = [
        [sum(1 << i for i, bit in enumerate(line[32 * word : 32 * word + 32]) if bit) for word in range(words)]
        for line in permitted
    ]
    signed = [[word - (1 << 32) if word >> 31 else word for word in line] for line in masks]
    passes.rule_out(logits, torch.tensor([4, 0, 5]), torch.tensor(signed, dtype=torch.int32))
    for number, line in zip((4, 0, 5), permitted, strict=True):
        before[number][~torch.tensor(line)] = float("-inf")
    assert torch.equal(logits, before)


def test_tokens_behind_the_last_word_are_ruled_out(passes: Passes) -> None:
    logits = passes.read(torch.zeros(1, 80))
    passes.rule_out(logits, torch.tensor([0]), torch.full((1, 2), -1, dtype=torch.int32))
    assert torch.isfinite(logits[0]).tolist() == [True] * 64 + [False] * 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_only_guided_rows_are_held(passes: Passes, dtype: torch.dtype) -> None:
    logits = (torch.randn(4, VOCABULARY) * 3).to(dtype)
    grammar = Listed([3, 5, 40])
    rows = [row(None, [1], slot=0), row(grammar, [1], slot=1), row(None, [1], slot=2), row(grammar, [1], slot=3)]
    rows[2] = rows[2]._replace(sampling=SamplingParams(temperature=1.0, top_k=9))
    plain = [each._replace(grammar=None) for each in rows]
    guided = Sampler(torch.device("cpu"), passes).sample(logits.clone(), rows)
    freely = Sampler(torch.device("cpu"), passes).sample(logits.clone(), plain)
    assert not guided.failures
    assert guided.tokens[[0, 2]].tolist() == freely.tokens[[0, 2]].tolist()
    for number in (1, 3):
        assert int(guided.tokens[number]) == max((3, 5, 40), key=lambda token: float(logits[number][token]))


def test_a_row_follows_its_tokens_and_is_begun_anew_when_some_were_lost(passes: Passes) -> None:
    grammar = Listed([3], [4], [5], [6])
    sampler = Sampler(torch.device("cpu"), passes)
    history = [1, 2]
    for _ in range(2):
        each = row(grammar, history, len(history) - 2)
        sampler.fill_masks([each])
        history.append(int(sampler.sample(torch.randn(1, VOCABULARY), [each]).tokens))
    assert (history, grammar.begun, grammar.filled) == ([1, 2, 3, 4], 1, 2)
    del history[3:]  # the step failed behind the sampler
    (token,) = sampler.sample(torch.randn(1, VOCABULARY), [row(grammar, history, 1)]).tokens.tolist()
    assert (token, grammar.begun) == (4, 2)
    # In another slot, or after the slot was another row's.
    assert sampler.sample(torch.randn(1, VOCABULARY), [row(grammar, [*history, 4], 2, slot=5)]).tokens.tolist() == [5]
    sampler.sample(torch.randn(1, VOCABULARY), [row(None, [9])])
    assert set(sampler._guides._guides) == {5}  # what isn't needed any more is dropped
    assert sampler.sample(torch.randn(1, VOCABULARY), [row(grammar, [*history, 4], 2)]).tokens.tolist() == [5]
    assert grammar.begun == 4


def test_rows_of_one_step_may_have_masks_of_several_lengths(passes: Passes) -> None:
    rows = [row(Listed([40], size=size), [1, 2, 3], slot=slot) for slot, size in enumerate((12, 16, 8))]
    sampled = Sampler(torch.device("cpu"), passes).sample(torch.randn(3, VOCABULARY), rows)
    assert sampled.tokens.tolist() == [40, 40, 40]
    assert not sampled.failures


def test_a_row_that_cannot_go_on_fails_alone(passes: Passes) -> None:
    rows = [row(Listed([3], [4]), [1, 7], 1, slot=0), row(Listed([3]), [1], slot=1), row(None, [1], slot=2)]
    logits = torch.randn(3, VOCABULARY)
    sampled = Sampler(torch.device("cpu"), passes).sample(logits.clone(), rows)
    assert set(sampled.failures) == {0}
    assert sampled.failures[0].code == "guidance_failed"
    assert "token 7" in sampled.failures[0].message
    assert sampled.failures[0].param is None  # the tokens so far are another engine's
    assert sampled.tokens[1:].tolist() == [3, int(logits[2].argmax())]


def test_a_bound_of_the_thought_that_leaves_no_token_is_named_as_the_client_calls_it(passes: Passes) -> None:
    thought = Thought((50,), (51,), is_open=True, budget=0, ends=frozenset({END}), vocabulary=VOCABULARY)
    only_thought, with_tools = ThinkingGrammar(thought, None), ThinkingGrammar(thought, Listed([3]))
    bound = {"allowed_token_ids": (9,), "thinking_tokens": 0, "thinking_param": "reasoning_effort"}
    rows = [row(only_thought, [1], slot=0, **bound), row(with_tools, [1], slot=1, **bound)]
    failures = Sampler(torch.device("cpu"), passes).sample(torch.randn(2, VOCABULARY), rows).failures
    assert [failures[number].code for number in range(2)] == ["no_token_left"] * 2
    assert "'reasoning_effort'" in failures[0].message
    assert "'tools'" not in failures[0].message
    assert "'tools'" in failures[1].message


def test_logits_that_are_no_numbers_are_the_models_fault(passes: Passes) -> None:
    logits = torch.randn(2, VOCABULARY)
    logits[0, 60] = float("nan")
    logits[1] = float("-inf")
    rows = [row(Listed([3]), [1], slot=slot) for slot in range(2)]
    failures = Sampler(torch.device("cpu"), passes).sample(logits, rows).failures
    assert [failures[number].code for number in range(2)] == ["non_finite_logits"] * 2


def test_ends_wait_for_min_tokens_unless_nothing_else_is_permitted(passes: Passes) -> None:
    logits = torch.zeros(1, VOCABULARY)
    logits[0, END] = 9.0
    sampler = Sampler(torch.device("cpu"), passes)
    choose = lambda each: sampler.sample(logits.clone(), [each]).tokens.tolist()
    assert choose(row(Listed([8, END]), [1])) == [END]
    assert choose(row(Listed([8, END]), [1], min_tokens=2)) == [8]
    assert choose(row(Listed([END]), [1], min_tokens=2)) == [END]


def test_bias_penalties_and_allowed_tokens_stay_within_the_guidance(passes: Passes) -> None:
    logits = torch.zeros(3, VOCABULARY)
    rows = [
        row(Listed([8, 9]), [1], slot=0, logit_bias=((9, 1.0), (30, 50.0))),
        row(Listed([1, 9]), [1, 1], slot=1, repetition_penalty=2.0, frequency_penalty=1.0),
        row(Listed([8, 9]), [1], slot=2, allowed_token_ids=(9, 30)),
    ]
    logits[1] = 1.0
    assert Sampler(torch.device("cpu"), passes).sample(logits, rows).tokens.tolist() == [9, 9, 9]
