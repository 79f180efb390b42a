"""How checks are gone through, noted by the periodic work, shown by gateways and told by `doctor`."""

from __future__ import annotations

import json
import os
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command

from base import clock
from base.checks import Check, Finding, Severity, results
from base.ids import uuid7
from gateway.runtime import readiness
from gateway.runtime.metrics import Metrics
from gateway.runtime.models import Observation, TaskState
from gateway.runtime.observed import Presence, noted_results, seen_gateways
from gateway.runtime.readiness import DECISIVE, LIMITS, State, Telling
from operation.checks import checks
from operation.checks.checks import CHECKS, Round
from tests.operation.checks.well import installation

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "monitoring.md").read_text()


def check(name, *findings, needs=()):
    return Check(name, "proof", Severity.CRITICAL, lambda _: findings, needs=needs)


def state(**changed):
    given = {"is_draining": False, "has_lock": True, "writer_age": 0.0, "is_epoch_fresh": True, "has_ready": True}
    return State(**{**given, "unread": "", "share": "", "looked": {"triggers": [], "disk": []}, **changed})


@pytest.fixture
def well(tmp_path, settings, monkeypatch, redis_server, transactional_db):
    with installation(tmp_path / "home", settings, monkeypatch, redis_server) as found:
        yield found


def test_what_stands_on_a_failing_check_is_not_looked_at():
    broken = check("ground", Finding("gone", "`mend it`"))
    found = list(
        results([broken, check("floor", needs=("ground",)), check("roof", needs=("floor",)), check("yard")], None)
    )
    assert [(one.check.name, one.lacks, one.is_fine) for one in found] == [
        ("ground", "", False),
        ("floor", "ground", False),
        ("roof", "floor", False),
        ("yard", "", True),
    ]


def test_a_proof_that_breaks_off_is_a_finding_of_its_check_alone():
    def broken(_):
        raise ValueError("odd")

    [first, second] = results([Check("odd", "proof", Severity.WARNING, broken), check("other")], None)
    assert "odd" in first.findings[0].text
    assert not first.is_fine
    assert second.is_fine


def test_every_check_has_a_name_of_its_own_needs_an_earlier_one_and_is_described():
    names = [one.name for one in CHECKS]
    assert len(set(names)) == len(names)
    for number, one in enumerate(CHECKS):
        assert set(one.needs) <= set(names[:number]), one.name
    severities = {one.name: one.severity for one in (*CHECKS, *DECISIVE, LIMITS)}
    rows = re.findall(r"^\| ((?:`[\w ]+`(?:, )?)+) \| (critical|warning) \|", PAGE, re.MULTILINE)
    described = {name: severity for listed, severity in rows for name in re.findall(r"`([^`]+)`", listed)}
    assert {name: described.get(name) for name in severities} == severities


def test_a_gateway_tells_of_a_failing_check_once_when_it_has_failed_for_a_while_and_when_it_is_fine(monkeypatch):
    told, now = [], [100.0]
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(
        readiness.log, "warning", lambda event, **said: told.append((event, said["check"], said["mend"]))
    )
    monkeypatch.setattr(readiness.log, "info", lambda event, **said: told.append((event, said["check"])))
    telling, broken = Telling(), state(looked={"triggers": [], "disk": [Finding("nearly full", "make room")]})
    for at in (100.0, 104.9, 105.0, 110.0):
        now[0] = at
        telling.look(broken)
        assert told == ([] if at < 105 else [("check_fails", "disk", "make room")])
    telling.look(state())
    assert told[1:] == [("check_fine", "disk")]


@pytest.mark.django_db
def test_the_periodic_work_notes_each_check_and_gateways_show_it_beside_their_own(monkeypatch):
    ill = [Finding("gone", "`mend it`")]
    monkeypatch.setattr(checks, "CHECKS", (Check("mail", "proof", Severity.WARNING, lambda _: ill), check("limits")))
    turns = Round()
    while turns.turn():
        pass
    assert not turns.turn(), "the next round is a minute away"
    assert [(one.name, one.is_fine) for one in noted_results()] == [("limits", True), ("mail", False)]
    metrics, presence = Metrics(), Presence(uuid7())
    shown = metrics.registry.get_sample_value

    def look(now):
        metrics.checks.seen(presence.look(now, {"sound": "ready", "big": "loading"}))

    look(state(share="counted in shares"))
    assert shown("sluice_check", {"name": "mail", "severity": "warning"}) == 0
    assert shown("sluice_check", {"name": "limits", "severity": "warning"}) == 0
    assert shown("sluice_check", {"name": "disk", "severity": "critical"}) == 1
    [seen] = seen_gateways()
    assert list(seen.failing) == ["limits"]
    assert (seen.ready, dict(seen.unready)) == ({"sound"}, {"big": "loading"})
    Observation.objects.filter(kind="check").update(at=clock.now() - timedelta(hours=1))
    look(state())
    assert shown("sluice_check", {"name": "mail", "severity": "warning"}) is None, "nobody knows any more"
    assert shown("sluice_check", {"name": "limits", "severity": "warning"}) == 1
    TaskState.objects.create(name="gateway.mail", succeeded_at=clock.now() - timedelta(hours=1))
    look(state())
    assert shown("sluice_check", {"name": "periodic work", "severity": "critical"}) == 0, "though no work tells of it"
    presence.forget()
    assert seen_gateways() == []


def test_doctor_tells_checks_one_by_one_and_as_json(well, capsys):
    well.model.rmdir()
    with pytest.raises(SystemExit):
        call_command("doctor", "--base-url", well.address)
    told = capsys.readouterr().out
    assert f"ok    gateway: {well.address} is ready" in told
    assert re.search(r"^MEND  models sound: .*\n      → the folder is gone: ", told, re.MULTILINE)
    well.model.mkdir()
    call_command("doctor", "--base-url", well.address, "--json")
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [one["check"] for one in found] == [one.name for one in CHECKS]
    assert {one["state"] for one in found} == {"ok"}


def test_a_gateway_whose_probes_have_a_port_that_doctor_does_not_know_is_well(well):
    del well.http.answers["/readyz"]
    assert well.failing() == {}
    well.http.answers["/health"] = (503, b"")
    assert list(well.failing()) == ["gateway"]


def test_a_gateway_whose_probes_have_a_port_is_asked_there(well, settings):
    probes, settings.SLUICE_METRICS_PORT = well.http.port, well.http.port
    well.address = "http://127.0.0.1:1"
    assert probes
    assert well.failing() == {}


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["worker", "serve"])
def test_a_node_that_is_not_there_is_refused_with_those_that_are(name, monkeypatch):
    monkeypatch.setattr("operation.management.commands.serve.configure_logs", lambda: None)
    monkeypatch.setattr("operation.management.commands.serve.need_database", lambda: None)
    with pytest.raises(CommandError, match=r"no node 'gup1' \(nodes: .*nodes add gup1 --address") as refused:
        call_command(name, "--node", "gup1")
    assert refused.value.returncode == os.EX_CONFIG
