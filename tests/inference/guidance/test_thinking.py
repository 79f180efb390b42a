"""A thought whose markers are several tokens: it begins, is bounded and is ruled out like one between single tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from inference.core.grammar import Grammar, GrammarError, Matcher
from inference.guidance.thinking import ThinkingGrammar, Thought

SIZE = 32
EOS = 1
BEGIN, END = (5, 6, 7), (8, 9)
EVERY = list(range(SIZE))


class Answers:
    """Permits these answers, and behind each the end."""

    is_thought = False

    def __init__(self, *answers: Sequence[int]) -> None:
        self.answers = [[*answer, EOS] for answer in answers]

    def begin(self) -> Matcher:
        return Answering(self.answers)


class Answering:
    def __init__(self, left: list[list[int]]) -> None:
        self.left = left

    def mask(self) -> bytes:
        return sum(1 << token for token in {answer[0] for answer in self.left if answer}).to_bytes(SIZE // 8, "little")

    def accept(self, token: int) -> None:
        self.left = [answer[1:] for answer in self.left if answer and answer[0] == token]
        if not self.left:
            raise GrammarError(f"token {token} isn't permitted")


def begun(
    budget: int | None,
    inner: Grammar | None = None,
    begin: tuple[int, ...] = BEGIN,
    end: tuple[int, ...] = END,
    *,
    merged: Sequence[int] = (),
    blank: Sequence[int] = (),
) -> Matcher:
    thought = Thought(begin, end, False, budget, frozenset({EOS}), SIZE, frozenset(merged), frozenset(blank))
    return ThinkingGrammar(thought, inner).begin()


def permitted(matcher: Matcher) -> list[int]:
    mask = int.from_bytes(matcher.mask(), "little")
    return [token for token in EVERY if mask >> token & 1]


def follow(matcher: Matcher, tokens: Sequence[int]) -> None:
    """Go through `tokens`, each of which is to be permitted."""
    for place, token in enumerate(tokens):
        assert token in permitted(matcher), tokens[: place + 1]
        matcher.accept(token)


def without(*tokens: int) -> list[int]:
    return [token for token in EVERY if token not in tokens]


def test_a_thought_that_the_model_opens_with_several_tokens_ends_with_its_budget() -> None:
    matcher = begun(2)
    follow(matcher, [*BEGIN, 20, 21])
    for token in END:
        assert permitted(matcher) == [token]
        matcher.accept(token)
    assert permitted(matcher) == EVERY
    follow(matcher, [*BEGIN, 20, 21, 22, EOS])  # no second thought


def test_only_the_whole_marker_begins_a_thought() -> None:
    for written in ([20], [5, 20], [5, 6, 20], [5, 5, 6, 7]):
        matcher = begun(1)
        follow(matcher, [*written, *BEGIN, 20, 21, 22, 23])
        assert permitted(matcher) == EVERY


def test_without_a_thought_the_marker_is_not_completed() -> None:
    matcher = begun(0)
    follow(matcher, BEGIN[:-1])
    assert permitted(matcher) == without(BEGIN[-1])
    follow(matcher, [20, *BEGIN])  # not at the beginning it is text
    matcher = begun(0)
    follow(matcher, [5, 20])
    assert permitted(matcher) == EVERY


def test_a_guided_answer_stands_behind_a_thought_of_several_tokens() -> None:
    for answers in (Answers([9, 10]), Answers([9, 10], [5, 11]), Answers([9, 10], [5, 6, 7, 12])):
        matcher = begun(2, answers)
        follow(matcher, BEGIN)
        assert permitted(matcher) == without(EOS)
        follow(matcher, [20, 21])
        assert permitted(matcher) == [END[0]]
        follow(matcher, [*END, 9, 10])
        assert permitted(matcher) == [EOS]


def test_a_guided_answer_may_begin_like_the_marker() -> None:
    matcher = begun(None, Answers([5, 6, 11], [9]))
    assert permitted(matcher) == [5, 9]
    follow(matcher, [5])
    assert permitted(matcher) == [6]
    follow(matcher, [6])
    assert permitted(matcher) == [7, 11]
    follow(matcher, [11])
    assert permitted(matcher) == [EOS]


def test_behind_what_only_the_marker_begins_with_comes_the_marker() -> None:
    matcher = begun(None, Answers([9], [5, 11]))
    follow(matcher, [5, 6])
    assert permitted(matcher) == [7]
    for _ in range(2):
        with pytest.raises(GrammarError):  # as tokens of another engine may be
            matcher.accept(11)


@pytest.mark.parametrize("begin", [BEGIN, (7,)])
def test_a_guided_answer_without_a_thought_does_not_complete_the_marker(begin: tuple[int, ...]) -> None:
    matcher = begun(0, Answers([*begin, 20], [*begin[:-1], 11]), begin)
    follow(matcher, begin[:-1])
    assert permitted(matcher) == [11]
    matcher = begun(0, Answers([*begin, 20]), begin)  # which has no other answer
    follow(matcher, [*begin, 20])
    assert permitted(matcher) == [EOS]


def test_a_marker_is_not_completed_by_a_token_that_writes_more_than_its_last() -> None:
    """As `>` and a line break are one token of many vocabularies."""
    merged = (30, 31)
    for inner in (None, Answers([10], [5, 6, 30])):
        matcher = begun(9, inner, merged=merged)
        follow(matcher, BEGIN[:-1])
        assert permitted(matcher) == (without(*merged) if inner is None else [BEGIN[-1]])
        follow(matcher, [BEGIN[-1], *merged, END[0]])  # elsewhere they are as good as others
        assert set(permitted(matcher)) == set(without(*merged)) - ({EOS} if inner else set())
        follow(matcher, [END[-1], 10])
    matcher = begun(0, merged=merged)
    follow(matcher, BEGIN[:-1])
    assert permitted(matcher) == without(BEGIN[-1], *merged)


def test_only_markers_of_several_tokens_have_tokens_that_write_more() -> None:
    merged = (30, 31)
    assert permitted(begun(9, begin=(7,), merged=merged)) == EVERY
    assert permitted(begun(0, begin=(7,), merged=merged)) == without(7)
    matcher = begun(9, end=(8,), merged=merged)
    follow(matcher, BEGIN)
    assert permitted(matcher) == EVERY


@pytest.mark.parametrize("begin", [BEGIN, (7,)])
def test_a_thought_behind_white_space_is_bounded(begin: tuple[int, ...]) -> None:
    """As a reader of the answer takes it for a thought."""
    blank = (10, 11)
    matcher = begun(2, begin=begin, blank=blank)
    follow(matcher, [10, 11, 10, *begin, 20, 10])
    assert permitted(matcher) == [END[0]]
    matcher = begun(0, begin=begin, blank=blank)
    follow(matcher, [10, *begin[:-1]])
    assert permitted(matcher) == without(begin[-1])
    for written in ([20], [10, 20], *([[10, begin[0], 10]] if len(begin) > 1 else [])):
        matcher = begun(1, begin=begin, blank=blank)
        follow(matcher, [*written, 10, *begin, 20, 21, 22])  # behind anything else it is text
        assert permitted(matcher) == EVERY


def test_a_guided_answer_may_begin_with_white_space_or_have_it_before_its_thought() -> None:
    answers = Answers([10, 10, 9], [10, 12])
    matcher = begun(1, answers, blank=(10,))
    assert permitted(matcher) == [BEGIN[0], 10]
    follow(matcher, [10])
    assert permitted(matcher) == [BEGIN[0], 10, 12]
    follow(matcher, [10])
    assert permitted(matcher) == [BEGIN[0], 9]
    follow(matcher, [*BEGIN, 20, *END, 10, 12])  # all of the answer stands behind the thought
    assert permitted(matcher) == [EOS]
    matcher = begun(1, answers, blank=(10,))
    follow(matcher, [10, 10, 9])
    assert permitted(matcher) == [EOS]
    matcher = begun(0, Answers([10, *BEGIN], [10, 12]), blank=(10,))
    follow(matcher, [10])
    assert permitted(matcher) == [BEGIN[0], 12]
