"""uuid7: what is read from an id, also from one that a client made up."""

from __future__ import annotations

from datetime import UTC, date, datetime
from uuid import UUID

import pytest

from base.ids import day_of, request_id_in, uuid7


def test_day_is_the_utc_day_of_the_id():
    moment = datetime(2026, 11, 21, 23, 59, 59, tzinfo=UTC)
    assert day_of(uuid7(int(moment.timestamp() * 1000))) == moment.date()


def test_an_id_from_beyond_the_calendar_has_its_last_day():
    """48 bits of milliseconds reach the year 10889; such an id names nothing, and must not end in a 500."""
    assert day_of(UUID("ffffffff-ffff-7fff-bfff-ffffffffffff")) == date.max


def test_ids_of_one_millisecond_keep_their_order(monkeypatch):
    moments = iter([1_700_000_000_000_000_000, 1_700_000_000_000_000_300, 1_700_000_000_000_999_999])
    monkeypatch.setattr("base.ids.time.time_ns", lambda: next(moments))
    made = [uuid7() for _ in range(3)]
    assert made == sorted(made)
    assert len({identifier.int >> 80 for identifier in made}) == 1
    assert all(identifier.version == 7 for identifier in made)


REQUEST = UUID("0199c1f0-7a31-7cde-8f01-23456789abcd")


@pytest.mark.parametrize(
    "text",
    [
        *(str(REQUEST), REQUEST.hex, REQUEST.hex.upper(), f"  {REQUEST}\n"),
        *(f"chatcmpl-{REQUEST.hex}", f"cmpl-{REQUEST.hex}", f"resp_{REQUEST.hex}", f"msg_{REQUEST.hex}"),
        *(f"msg_{REQUEST.hex}_i3", f"rs_{REQUEST.hex}", f"fc_{REQUEST.hex}_1", f"fco_{REQUEST.hex}_i12"),
    ],
)
def test_a_request_is_known_by_any_form_of_its_id(text):
    assert request_id_in(text) == REQUEST


@pytest.mark.parametrize(
    "text",
    ["", "nobody", REQUEST.hex[:-1], f"batch_{REQUEST.hex}", "bdde4ce2-f59e-4f58-a1ef-25acdf54f63c", f"{REQUEST}-1"],
)
def test_other_texts_are_no_request(text):
    assert request_id_in(text) is None
