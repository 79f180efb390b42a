"""Incremental text is whole characters, and together it is the whole text."""

from __future__ import annotations

from hypothesis import given
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
    assert pieces[-2] == REPLACEMENT * MAX_HELD


def test_the_prompt_is_not_repeated() -> None:
    assert "".join(pieces_of(list(b" world"), list(b"hello"))) == " world"


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
