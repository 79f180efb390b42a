"""Stop strings end the text at the same place however the tokens cut it."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from inference.text.stops import StopMatcher


def feed(pieces: list[str], stops: list[str]) -> tuple[str, str | None, list[str]]:
    matcher = StopMatcher(stops)
    sent = [matcher.push(piece) for piece in pieces]
    if matcher.matched is None:
        sent.append(matcher.finish())
    return "".join(sent), matcher.matched, sent


def expected(text: str, stops: list[str]) -> tuple[str, str | None]:
    """The definition: the shortest beginning of the text that ends in a stop, less the longest such stop."""
    for end in range(len(text) + 1):
        found = [stop for stop in stops if stop and text[:end].endswith(stop)]
        if found:
            longest = max(found, key=len)
            return text[: end - len(longest)], longest
    return text, None


alphabet = st.text("ab\n", max_size=8)


@given(text=st.text("ab\n", max_size=14), stops=st.lists(alphabet, max_size=4), cuts=st.sets(st.integers(1, 13)))
def test_every_split_gives_the_definition(text: str, stops: list[str], cuts: set[int]) -> None:
    places = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    pieces = [text[a:b] for a, b in pairwise(places)]
    sent, matched, _ = feed(pieces, stops)
    assert (sent, matched) == expected(text, stops)


def test_all_splits_of_one_text() -> None:
    text, stops = "the end. END", ["end", "END", "nd."]
    for mask in range(1 << (len(text) - 1)):
        pieces = [""]
        for index, character in enumerate(text):
            pieces[-1] += character
            if mask >> index & 1:
                pieces.append("")
        assert feed(pieces, stops)[:2] == ("the ", "end")


def test_only_what_may_become_a_stop_is_held() -> None:
    _, _, sent = feed(["abc", "ST", "x", "yS", "TO", "P"], ["STOP"])
    assert sent == ["abc", "", "STx", "y", "", ""]


def test_without_stops_text_passes() -> None:
    assert feed(["a", "b"], [])[2] == ["a", "b", ""]
    assert feed(["a", "b"], [""])[2] == ["a", "b", ""]
