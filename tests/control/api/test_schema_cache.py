"""The OpenAPI document is made once, for itself and the reference, by whoever asks first while others wait."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.test import RequestFactory

from control.api import openapi
from control.docs import reference

pytestmark = pytest.mark.django_db


@pytest.fixture
def generators(monkeypatch):
    """How often the schema was made; nothing is made yet."""
    made = []
    generate = openapi.SchemaGenerator.get_schema

    def counting(self, *args, **kwargs):
        made.append(threading.get_ident())
        return generate(self, *args, **kwargs)

    monkeypatch.setattr(openapi.SchemaGenerator, "get_schema", counting)
    monkeypatch.setattr(openapi, "_made", [])
    return made


def test_a_cold_crowd_has_the_schema_made_once(generators):
    together = threading.Barrier(6)

    def ask(accept):
        together.wait()
        return openapi.api_schema(RequestFactory().get("/api/schema/", headers={"accept": accept}))

    with ThreadPoolExecutor(6) as threads:
        answers = list(threads.map(ask, ["*/*", "application/json"] * 3))
    assert {answer.status_code for answer in answers} == {200}
    assert len(generators) == 1
    assert len({answer.content for answer in answers}) == 2


def test_reference_and_schema_share_what_was_made(generators, client):
    reference.operations.cache_clear()
    for path in ("/docs/api/", "/api/schema/", "/docs/api/chat_completions/", "/api/schema/?format=json"):
        assert client.get(path).status_code == 200
    assert len(generators) == 1
