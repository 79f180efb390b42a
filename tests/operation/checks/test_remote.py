"""What the check of remote engines finds, asked without a gateway and without generating anything."""

from __future__ import annotations

import pytest

from base.sealing import seal
from billing.services import cards
from operation.checks import database, services
from routing.models import Deployment
from routing.services.catalogue import add_model
from tests.upstream import MODEL, Upstream, serving_in_thread

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _loopback(settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def upstream():
    with serving_in_thread(Upstream("vllm")) as server:
        server.key = "sk-right"
        yield server


def add(address, name="big", key="sk-right"):
    cards.ensure_card("c", "chat")
    return add_model(
        name=name,
        kinds=["chat"],
        context_length=8192,
        rate_card="c",
        source=address,
        backend="openai",
        options={"model": MODEL, "dialect": "vllm", "kinds": ["chat"]},
        credential=seal(key),
    )


def findings():
    return {finding.subject: finding for finding in services._remote_engines(None)}


def test_one_that_answers_and_counts_is_fine_and_generates_nothing(upstream):
    add(upstream.address)
    found = findings()["big"]
    assert found.is_fine
    assert "context 8192; dialect vllm" in found.text
    assert not [path for path, _ in upstream.seen if "completions" in path]


def test_a_key_that_it_refuses_is_said(upstream):
    add(upstream.address, key="sk-wrong")
    found = findings()["big"]
    assert "401" in found.text
    assert "API key" in found.mend


def test_one_that_is_gone_keeps_none_of_the_others_from_being_told(upstream, monkeypatch):
    monkeypatch.setattr(services, "PROBE_SECONDS", 0.5)
    add("http://127.0.0.1:1", name="gone")
    add(upstream.address)
    found = findings()
    assert "start it" in found["gone"].mend
    assert found["big"].is_fine


def test_a_tokenizer_that_does_not_count_is_said(upstream):
    add(upstream.address)
    upstream.tokenizes = False
    found = findings()["big"]
    assert "prompts are estimated: " in found.text
    assert "tokenizer endpoint" in found.mend


def test_a_credential_of_a_lost_secret_is_said(upstream):
    Deployment.objects.filter(pk=add(upstream.address).pk).update(credential="gibberish")
    assert "enter its API key anew" in findings()["big"].mend


def test_inactive_ones_are_left_alone(upstream):
    Deployment.objects.filter(pk=add(upstream.address).pk).update(is_active=False)
    assert findings() == {}
    assert upstream.seen == []


def test_a_clock_that_is_apart_from_the_databases_is_said(monkeypatch):
    later = database.timezone.now() + 2 * database.APART
    monkeypatch.setattr(database.clock, "now", lambda: later)
    [found] = database._clock(None)
    assert "NTP" in found.mend
