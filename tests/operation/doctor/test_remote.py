"""What doctor says of remote engines, asked without a gateway and without generating anything."""

from __future__ import annotations

import pytest

from base.sealing import seal
from billing.services import cards
from operation.doctor import doctor
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


def symptoms():
    return {symptom.subject: symptom for symptom in doctor.remote_engines()}


def test_one_that_answers_and_counts_is_fine_and_generates_nothing(upstream):
    add(upstream.address)
    found = symptoms()["remote engine big"]
    assert found.is_fine
    assert "context 8192; dialect vllm" in found.finding
    assert not [path for path, _ in upstream.seen if "completions" in path]


def test_a_key_that_it_refuses_is_said(upstream):
    add(upstream.address, key="sk-wrong")
    found = symptoms()["remote engine big"]
    assert "401" in found.finding
    assert "API key" in found.mend


def test_one_that_is_gone_keeps_none_of_the_others_from_being_told(upstream, monkeypatch):
    monkeypatch.setattr(doctor, "PROBE_SECONDS", 0.5)
    add("http://127.0.0.1:1", name="gone")
    add(upstream.address)
    found = symptoms()
    assert "start it" in found["remote engine gone"].mend
    assert found["remote engine big"].is_fine


def test_a_tokenizer_that_does_not_count_is_said(upstream):
    add(upstream.address)
    upstream.tokenizes = False
    found = symptoms()["remote engine big"]
    assert "prompts are estimated: " in found.finding
    assert "tokenizer endpoint" in found.mend


def test_a_credential_of_a_lost_secret_is_said(upstream):
    Deployment.objects.filter(pk=add(upstream.address).pk).update(credential="gibberish")
    assert "enter its API key anew" in symptoms()["remote engine big"].mend


def test_inactive_ones_are_left_alone(upstream):
    Deployment.objects.filter(pk=add(upstream.address).pk).update(is_active=False)
    assert symptoms() == {}
    assert upstream.seen == []


def test_doctor_tells_of_them_and_misses_no_model_of_our_own(upstream, monkeypatch):
    monkeypatch.setattr(doctor, "_database", lambda: iter(()))  # it ends the test's transaction
    add(upstream.address)
    found = {symptom.subject: symptom for symptom in doctor.examine("http://127.0.0.1:1")}
    assert found["remote engine big"].is_fine
    assert "models" not in found
    assert found["clock"].is_fine


def test_a_clock_that_is_apart_from_the_databases_is_said(monkeypatch):
    later = doctor.timezone.now() + 2 * doctor.APART
    monkeypatch.setattr(doctor.clock, "now", lambda: later)
    assert "NTP" in doctor._clock().mend
