"""What `serve` watches while all runs."""

from __future__ import annotations

import json
from datetime import timedelta
from types import SimpleNamespace

import pytest

from base import clock
from billing.services import cards
from fleet import worker_specs
from operation.serve.following import Following
from routing.services.catalogue import add_model

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    return tmp_path


def test_a_price_reaches_the_worker_when_its_day_comes(monkeypatch, home):
    """Nothing is written on that day, so no epoch tells of it."""
    moment = clock.now() + timedelta(hours=1)
    for at, output in ((None, 40), (moment, 80)):
        cards.publish("card", {0: {"input": 10_000_000, "output": output * 1_000_000}}, at)
    add_model(name="m", kinds=["chat"], context_length=512, rate_card="card", source="org/m", backend="worker")
    saved = []
    monkeypatch.setattr(
        "operation.serve.following.save_spec",
        lambda spec, node: saved.append(json.loads(worker_specs.save_spec(spec, node).read_text())),
    )
    monkeypatch.setattr("operation.serve.following.connection", SimpleNamespace(vendor="", close=lambda: None))
    supervisor = SimpleNamespace(enable=saved.count, restart=saved.count)
    following = Following("local", saved.append)
    following.look(None)
    for _ in range(2):
        following.look(supervisor)
    assert saved == []
    monkeypatch.setattr(clock, "now", lambda: moment)
    for _ in range(2):
        following.look(supervisor)
    [spec] = saved
    assert spec["engines"][0]["rates"]["output"] == 80_000_000
