"""What of the documents is the reader's own: address, key and model in examples, and figures beside concepts."""

from __future__ import annotations

import uuid

import pytest
from django.test import Client

from control.docs.figures import panels_of
from control.docs.site import PAGES
from gateway.runtime.data_plane import DeploymentState, Live
from inference.types import Work
from routing.services.catalogue import add_model
from tests.control.console.conftest import people, used
from tests.control.console.test_models import subscribe

__all__ = ["people", "used"]
PANELS = [(slug, page.panel) for slug, (_, page) in PAGES.items()]
pytestmark = pytest.mark.django_db


@pytest.fixture
def models(acme):
    """A model of each kind, in acme's plan."""
    subscribe(acme, allowed_models=[])
    for name, kind in (("writer", "chat"), ("vectors", "embedding")):
        add_model(
            name=name, kinds=[kind], context_length=4096, rate_card="default", source="", backend="fake", options={}
        )


def test_strangers_see_their_own_address(settings):
    settings.ALLOWED_HOSTS = ["sluice.example.com"]
    reader = Client(headers={"host": "sluice.example.com"})
    for address in ("/docs/api/chat_completions/", "/docs/quickstart/developer/"):
        page = reader.get(address).content.decode()
        assert "curl http://sluice.example.com/v1/chat/completions" in page
        assert "sluice.invalid" not in page
        assert "127.0.0.1" not in page
    assert "model-for" not in reader.get("/docs/api/embeddings/").content.decode()
    settings_page = reader.get("/docs/settings/").content.decode()
    assert "http://127.0.0.1:8000" in settings_page, "what operators read isn't the reader's own"


def test_members_see_their_key_and_their_models(acme, models):
    page = acme.client().get("/docs/api/embeddings/").content.decode()
    assert acme.key.prefix in page
    assert acme.secret not in page
    assert "&quot;vectors&quot;" in page
    assert "&quot;writer&quot;" in acme.client().get("/docs/api/chat_completions/").content.decode()
    assert acme.key.prefix not in Client().get("/docs/api/embeddings/").content.decode()


def test_nobody_elses_key_is_shown(acme, people):
    page = people("member").get("/docs/api/embeddings/").content.decode()
    assert acme.key.prefix not in page


def test_no_tenant_but_ones_own_is_shown(acme, other):
    for address in ("/docs/", "/docs/limits/", "/docs/api/chat_completions/", "/docs/search/"):
        assert acme.client().get(address, {"tenant": other.tenant.slug}).status_code == 404
        assert acme.client().get(address, {"tenant": acme.tenant.slug}).status_code == 200


def test_figures_are_those_of_the_readers_tenant(acme, other, people, used):
    page = "/docs/concepts/prefix-caching/"
    assert "Sign in" in Client().get(page).content.decode()
    assert "Send a first request" in acme.client().get(page).content.decode()
    used(other)
    assert "Send a first request" in acme.client().get(page).content.decode()
    used(acme, ttft_ms=100, duration_ms=200)
    assert "75%" in acme.client().get(page).content.decode(), "30 of 40 tokens of the prompt"
    speed = acme.client().get("/docs/concepts/prefill-and-decode/").content.decode()
    assert "100 ms" in speed
    assert "40 tokens/s" in speed, "4 tokens behind the first in 100 ms"
    assert "All tenants" not in speed


@pytest.mark.parametrize("name", ["metering", "speed", "memory", "caching", "batching", "models", "limits"])
def test_each_panel_is_filled(acme, models, used, name):
    used(acme, ttft_ms=100, duration_ms=200)
    page = next(f"/docs/{slug}/" for slug, panel in PANELS if panel == name)
    assert "<dt>" in acme.client().get(page).content.decode()


def test_operators_see_the_engines(acme, rf, monkeypatch):
    work = Work(
        steps=10, rows=25, seconds=4.0, prefill_seconds=1.0, prompt_tokens=500, cached_tokens=1500, output_tokens=90
    )
    state = DeploymentState(True, "", 3, 2, 0.5, False, kv_cached=0.25, work=work, details={"quantization": "w8a8"})
    monkeypatch.setattr(Live, "deployment_states", lambda _: {uuid.uuid4(): state})
    request = rf.get("/")
    request.user = acme.owner
    assert panels_of(request, None, "batching") == []
    request.user.is_staff = True
    assert panels_of(request, None, "batching") == [], "a role that sees no engines"
    request.user.is_superuser = True

    def told(name):
        [panel] = panels_of(request, None, name)
        return [(figure.name, figure.value) for figure in panel.figures]

    assert told("batching") == [("Now", "3 running"), ("In a step", "2.5 rows")]
    assert told("speed") == [("Prefill", "500 tokens/s"), ("Decode", "30 tokens/s")]
    assert told("memory") == [("In use", "50%"), ("Kept prefixes", "25%")]
    assert told("caching") == [("Cached", "75%")]
    assert told("models") == [("Weights", "w8a8")]


def test_a_page_takes_few_queries(acme, models, django_assert_max_num_queries):
    client = acme.client()
    client.get("/docs/limits/")
    for address in ("/docs/limits/", "/docs/api/chat_completions/", "/docs/search/?q=auto"):
        with django_assert_max_num_queries(15):
            client.get(address)
