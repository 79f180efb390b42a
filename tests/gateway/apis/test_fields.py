"""What is told of a request's fields, and that requests are looked at as that says."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from msgspec import UNSET

from gateway.apis.fields import DEMAND, REFUSED, REQUESTS, TRIED, UNREAD, WEBSOCKET, WISH, rows
from gateway.errors.refusal import Refusal
from gateway.wire.demands import Anything, Fields, Only, Tried, Unread, Wish


@pytest.mark.parametrize("title", REQUESTS)
def test_every_field_has_a_meaning(title: str):
    assert [name for name, row in rows(title).items() if not row.meaning] == []


def test_a_field_says_what_it_is_and_takes():
    chat, over_websocket = rows("Create a chat completion"), rows(WEBSOCKET)
    assert chat["temperature"][:2] == (DEMAND, "a number from 0 to 2")
    texts = "text (at most 256 characters), or a list (at most 16): text (at most 256 characters)"
    assert chat["stop"][:2] == (DEMAND, texts)
    assert chat["modalities"] == (REFUSED, 'only `["text"]`', "Not supported: leave it out.")
    assert chat["messages[].name"][:2] == (WISH, "text (at most 512 characters)")
    assert chat["messages[].parsed"][:2] == (UNREAD, "any value")
    assert rows("Create a response")["reasoning.effort"].is_what == TRIED
    only = {name: row.takes for name, row in over_websocket.items() if row.is_what == REFUSED}
    assert only == {"background": "only `false`", "stream": "only `true`"}
    assert list(chat).index("verbosity") < list(chat).index("messages[].name"), "a request's own fields come first"


class _Inner(msgspec.Struct):
    hint: Annotated[Anything, Wish({})] = UNSET


class _Asked(msgspec.Struct):
    demand: int = 0
    refused: Annotated[Anything, Only(1, why="of age", instead="send another")] = UNSET
    wish: Annotated[bool | None, Wish(False)] = None
    tried: Annotated[str | None, Tried()] = None
    unread: Annotated[Anything, Unread()] = UNSET
    inner: _Inner | None = None


@pytest.mark.parametrize(
    ("asked", "not_enforced"),
    [
        ({}, ()),
        ({"demand": 7, "tried": "x", "unread": "x"}, ()),
        ({"refused": 1, "wish": False, "inner": {"hint": {}}}, ()),
        ({"refused": None, "wish": None, "inner": {"hint": None}}, ()),
        ({"wish": True, "inner": {"hint": 0}}, ("at[].wish", "at[].inner.hint")),
    ],
)
def test_wishes_are_told_unless_they_ask_for_nothing(asked: dict[str, Any], not_enforced: tuple[str, ...]):
    fields = Fields()
    for place in range(2):  # as often as it stands there, a wish is told once
        fields.check(msgspec.convert(asked, _Asked), f"at[{place}].")
    assert fields.not_enforced == not_enforced


@pytest.mark.parametrize("value", [0, True, "1"])
def test_demands_that_cannot_be_held_are_refused(value: object):
    with pytest.raises(Refusal) as caught:
        Fields().check(_Asked(refused=value), "at.")
    assert caught.value.param == "at.refused"
    assert caught.value.message == "'at.refused' is not supported (of age): send another."
