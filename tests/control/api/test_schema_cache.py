"""The schema and its page are made once, whoever asks how often, and never while somebody else is making them."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.test import RequestFactory

from control.api import docs

pytestmark = pytest.mark.django_db


@pytest.fixture
def generators(monkeypatch):
    """How often the schema was made; nothing is made yet."""
    made = []
    generate = docs.SchemaGenerator.get_schema

    def counting(self, *args, **kwargs):
        made.append(threading.get_ident())
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(docs.SchemaGenerator, "get_schema", counting)
    monkeypatch.setattr(docs, "_made", [])
    return made


def test_a_cold_crowd_has_the_schema_made_once(generators):
    together = threading.Barrier(6)

    def ask(accept):
        together.wait()
        return docs.api_schema(RequestFactory().get("/api/schema/", headers={"accept": accept}))

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, ["*/*", "application/json"] * 3))
    assert {answer.status_code for answer in answers} == {200}
    assert len(generators) == 1
    assert len({answer.content for answer in answers}) == 2


def test_page_and_schema_share_what_was_made(generators, client):
    for path in ("/api/docs/", "/api/schema/", "/api/docs/", "/api/schema/?format=json"):
        assert client.get(path).status_code == 200
    assert len(generators) == 1
