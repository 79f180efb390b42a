"""docs/fields.md has the tables that the structs make."""

from __future__ import annotations

import pytest

from gateway.wire.fields import APIS, PAGE, honoured, neutral, written


def test_the_page_is_as_the_structs_are():
    page = PAGE.read_text()
    assert written(page) == page, "run python -m gateway.wire.fields"
    assert [name for name in APIS if f"<!-- fields: {name} -->" not in page] == []


@pytest.mark.parametrize("api", APIS)
def test_every_field_is_in_one_table(api):
    assert not honoured(api).keys() & neutral(api).keys()


def test_tables_say_what_a_field_takes():
    chat = honoured("Chat Completions")
    assert chat["temperature"] == "a number from 0 to 2"
    assert chat["stop"] == "text (at most 256 characters), or a list (at most 16): text (at most 256 characters)"
    assert chat["service_tier"] == "`auto`, `default`, `flex`, `priority`"
    assert neutral("Chat Completions")["modalities"] == ['["text"]']
    assert neutral("Responses over a websocket") == {"background": ["false"], "stream": ["true"]}
