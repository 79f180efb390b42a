"""Incremental text is whole characters, and together it is the whole text."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import example, given
from hypothesis import strategies as st

from inference.text.byte_tokenizer import END_OF_TURN, ByteTokenizer
from inference.text.detokenizer import MAX_HELD, REPLACEMENT, Detokenizer
from inference.text.stream import TextStream

decode = ByteTokenizer().decode


def pieces_of(ids: list[int], prompt: list[int] | None = None) -> list[str]:
    detokenizer = Detokenizer(decode, prompt or [])
    return [*(detokenizer.push(token) for token in ids), detokenizer.finish()]


@given(st.text(max_size=40))
def test_valid_text_comes_through_whole(text: str) -> None:
    assert "".join(pieces_of(list(text.encode()))) == text


@given(st.text(max_size=12))
def test_no_piece_holds_half_a_character(text: str) -> None:
    pieces = pieces_of(list(text.encode()))
    assert all(piece.count(REPLACEMENT) <= text.count(REPLACEMENT) for piece in pieces)


@given(st.lists(st.integers(0, END_OF_TURN), max_size=40))
def test_any_bytes_come_to_an_end(ids: list[int]) -> None:
    pieces = pieces_of(ids)
    assert bool("".join(pieces)) == any(token < END_OF_TURN for token in ids)


def test_a_cut_character_is_flushed_at_the_end() -> None:
    assert pieces_of(list("é".encode())[:1]) == ["", REPLACEMENT]


def test_a_run_of_replacement_characters_is_held_no_longer_than_needed() -> None:
    pieces = pieces_of([0xFF] * MAX_HELD)
    assert pieces[-2:] == [REPLACEMENT * (MAX_HELD - 1), REPLACEMENT]


@given(st.lists(st.integers(0, 255), max_size=40))
@example([*[0xFF] * 6, *"😀".encode()])
@example([*[0xE2] * 7, *"€".encode(), 0x82, 0x80])
def test_any_bytes_have_the_text_of_all_of_them(ids: list[int]) -> None:
    """A character behind such as are none was lost where the limit of what is held fell into it."""
    assert "".join(pieces_of(ids)) == decode(ids)


def each_byte_alone(ids: Sequence[int]) -> str:
    """Decode as sentencepiece's vocabularies do: bytes that aren't characters together are none, each of them."""
    data = bytes(ids)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return REPLACEMENT * len(data)


@given(st.lists(st.integers(0, 255), max_size=40))
@example([*"€€".encode(), 0xFF])
def test_bytes_that_change_the_text_before_them(ids: list[int]) -> None:
    detokenizer = Detokenizer(each_byte_alone)
    text = "".join((*map(detokenizer.push, ids), detokenizer.finish()))
    assert len(decode(ids)) <= len(text) <= len(ids)


def test_tokens_that_write_nothing_cost_no_more_however_many_they_are() -> None:
    """They are decoded in the thread that steps for all tenants."""
    decoded = 0

    def counting(ids: Sequence[int]) -> str:
        nonlocal decoded
        decoded += len(ids)
        return decode(ids)

    detokenizer = Detokenizer(counting)
    text = [detokenizer.push(token) for token in b"a"]
    costs = []
    for token in [END_OF_TURN] * 4000 + [*"€".encode()]:
        before = decoded
        text.append(detokenizer.push(token))
        costs.append(decoded - before)
    assert "".join(text) == "a€"
    assert max(costs) <= 3 * MAX_HELD


def test_the_prompt_is_not_repeated() -> None:
    assert "".join(pieces_of(list(b" world"), list(b"hello"))) == " world"


def test_a_character_that_the_prompt_began_is_whole_in_the_answer() -> None:
    begun, rest = list("a€".encode()[:2]), list("€b".encode()[1:])
    assert "".join(pieces_of(rest, begun)) == "€b"


def test_long_answers_keep_few_ids() -> None:
    detokenizer = Detokenizer(decode)
    text = "".join(detokenizer.push(token) for token in b"x" * 5000)
    assert text == "x" * 5000
    assert len(detokenizer._ids) < 2000


@given(st.text("aé€😀", max_size=10), st.text("aé€😀", min_size=1, max_size=3))
def test_stops_and_split_characters_together(text: str, stop: str) -> None:
    stream = TextStream(decode, (), (stop,))
    sent = ""
    for token in text.encode():
        sent += stream.push((token,))
        if stream.matched:
            break
    else:
        sent += stream.finish()
    assert sent == text.split(stop, maxsplit=1)[0]
    assert (stream.matched == stop) is (stop in text)
