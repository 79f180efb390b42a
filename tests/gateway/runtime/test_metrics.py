"""What `/metrics` says beside the charges: who wasn't let in, who waited, periodic work, the books, the pool."""

from __future__ import annotations

import asyncio
import logging
import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.signals import user_login_failed
from django.db import DatabaseError, connection
from django.test import RequestFactory
from django.utils import timezone

from billing.models import Reconciliation
from gateway.concurrency import ConcurrencyLimiter
from gateway.runtime import metrics as module
from gateway.runtime.metrics import Metrics, pool_sources, read_installation
from gateway.runtime.models import TaskState
from inference.types import BOUNDS, Finished, FinishReason, Health, Histogram, Usage, Work
from operation.jobs import states as task_states
from operation.jobs import tasks
from operation.jobs.states import noted
from tenancy.models import OutgoingMail
from tests.gateway.doubles import StandingEpoch, make_principal, make_stand

ROOT = Path(__file__).resolve().parents[3]


def value(metrics, name, **labels):
    return metrics.registry.get_sample_value(name, labels)


def test_a_refusal_counts_under_its_code_and_a_401_as_somebody_who_was_not_let_in():
    metrics = Metrics()
    metrics.refused("/v1/models", 401, "invalid_api_key")
    metrics.refused("/v1/models", 429, "rate_limited")
    assert value(metrics, "sluice_refusals_total", endpoint="/v1/models", code="rate_limited") == 1
    assert value(metrics, "sluice_authentication_failures_total", kind="invalid_api_key") == 1
    assert value(metrics, "sluice_authentication_failures_total", kind="rate_limited") is None


def test_what_alerts_look_at_is_shown_before_it_is_counted_first():
    metrics = Metrics()
    assert value(metrics, "sluice_swept_holds_total", how="estimated") == 0
    metrics.holds_swept({"estimated": 2, "waived": 1})
    assert value(metrics, "sluice_swept_holds_total", how="estimated") == 2
    assert value(metrics, "sluice_authentication_failures_total", kind="password") == 0
    metrics.answered("/v1/models", 200)
    assert value(metrics, "sluice_requests_total", endpoint="/v1/models", status="503") == 0
    metrics.answered("/v1/models", 503)
    metrics.answered("/v1/models", 200)
    assert value(metrics, "sluice_requests_total", endpoint="/v1/models", status="503") == 1
    assert value(metrics, "sluice_requests_total", endpoint="/v1/models", status="200") == 2


def test_everybody_who_is_not_let_in_is_of_a_kind_that_is_shown():
    documented = re.findall(r"^\| 401 \| ([^|]+) \|", (ROOT / "docs/errors.md").read_text(), re.MULTILINE)
    codes = {code for cell in documented for code in re.findall(r"`(\w+)`", cell)}
    assert codes == set(module.NOT_LET_IN) - {"password"}


def test_codes_that_a_foreign_server_makes_up_end_in_one_series(monkeypatch):
    monkeypatch.setattr(module, "MOST_CHILDREN", 3)
    metrics = Metrics()
    for number in range(10):
        metrics.refused("/v1/models", 500, f"code-{number}")
    metrics.refused("/v1/models", 500, "code-0")
    assert value(metrics, "sluice_refusals_total", endpoint="/v1/models", code="code-0") == 2
    assert value(metrics, "sluice_refusals_total", endpoint="/v1/models", code="other") == 7


@pytest.mark.django_db
def test_a_failed_sign_in_counts_at_the_gateway_that_refused_it():
    metrics = Metrics()
    request = RequestFactory().post("/accounts/login/")
    request.scope = {"state": {"metrics": metrics}}
    user_login_failed.send(sender=__name__, credentials={}, request=request)
    user_login_failed.send(sender=__name__, credentials={}, request=None)  # in a command
    assert value(metrics, "sluice_authentication_failures_total", kind="password") == 1


async def test_only_those_who_waited_for_a_place_count_as_waiting():
    gate, waited = ConcurrencyLimiter(), []
    gate.on_waited = waited.append
    principal = make_principal(concurrency=1)
    await gate.enter(principal)
    assert not waited
    second = asyncio.create_task(gate.enter(principal))
    await asyncio.sleep(0)
    gate.leave(principal)
    await second
    assert len(waited) == 1


async def test_a_runtime_shows_its_epochs_age_and_its_queues():
    stand = await make_stand()
    metrics = stand.runtime.metrics
    assert 0 <= value(metrics, "sluice_epoch_age_seconds") < 60
    assert value(metrics, "sluice_writer_queued_operations") == 0
    assert value(metrics, "sluice_unsettled_requests") == 0
    assert value(metrics, "process_resident_memory_bytes") > 0
    assert isinstance(stand.runtime.catalogue.epoch, StandingEpoch)


@pytest.mark.django_db
def test_the_installation_is_read_from_its_rows(settings):
    settings.SLUICE_RECONCILE_HOURS = 72
    now = timezone.now()
    TaskState.objects.create(name="gateway.mail", succeeded_at=now, seconds=0.5, failures=2)
    TaskState.objects.create(name="gateway.purge", failures=1)
    Reconciliation.objects.create(is_running=None, finished_at=now, found=3)
    for state, ended in (("waiting", None), ("failed", now), ("failed", now - timedelta(days=2)), ("sent", now)):
        OutgoingMail.objects.create(to="a@b.example", subject="s", sealed_text=b"", state=state, ended_at=ended)
    metrics = Metrics()
    metrics.installation.seen(read_installation())
    assert value(metrics, "sluice_task_last_success_timestamp_seconds", task="gateway.mail") == now.timestamp()
    assert value(metrics, "sluice_task_duration_seconds", task="gateway.mail") == 0.5
    assert value(metrics, "sluice_task_consecutive_failures", task="gateway.mail") == 2
    assert value(metrics, "sluice_task_last_success_timestamp_seconds", task="gateway.purge") is None
    assert value(metrics, "sluice_reconciliation_timestamp_seconds") == now.timestamp()
    assert value(metrics, "sluice_reconciliation_findings") == 3
    assert value(metrics, "sluice_reconciliation_interval_seconds") == 72 * 3600
    assert (value(metrics, "sluice_mail_waiting"), value(metrics, "sluice_mail_failed")) == (1, 1)
    assert value(metrics, "sluice_overdue_holds") == 0


@pytest.mark.django_db
def test_a_task_that_is_no_more_is_forgotten_and_shown_no_more():
    for name, succeeded_at in (
        ("gateway.mail", timezone.now()),
        ("gateway.old", timezone.now()),
        ("gateway.odd", None),
    ):
        TaskState.objects.create(name=name, succeeded_at=succeeded_at, failures=1)
    metrics = Metrics()
    metrics.installation.seen(read_installation())
    assert value(metrics, "sluice_task_consecutive_failures", task="gateway.old") == 1
    [purge] = [job for job in tasks.JOBS if job.name == "gateway.purge"]
    purge.run()
    assert [*TaskState.objects.values_list("name", flat=True)] == ["gateway.mail"]
    metrics.installation.seen(read_installation())
    for name in ("gateway.old", "gateway.odd"):
        assert value(metrics, "sluice_task_consecutive_failures", task=name) is None
        assert value(metrics, "sluice_task_last_success_timestamp_seconds", task=name) is None
    assert value(metrics, "sluice_task_consecutive_failures", task="gateway.mail") == 1


@pytest.mark.contract
@pytest.mark.django_db(transaction=True)
def test_the_pools_connections_are_shown_as_they_are():
    """By real queries on PostgreSQL: one connection of the pool is used while this thread has it."""
    sources = pool_sources()
    if settings.SLUICE_EMBEDDED:
        assert sources == {}, "SQLite has no pool"
        return
    metrics = Metrics()
    metrics.gauges.follow(sources)
    connection.close()
    assert value(metrics, "sluice_database_connections_used") == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT 1")
        assert value(metrics, "sluice_database_connections_used") == 1
        assert value(metrics, "sluice_database_connections") >= 1
        most = connection.settings_dict["OPTIONS"]["pool"]["max_size"]
        assert value(metrics, "sluice_database_connections_limit") == most
        assert value(metrics, "sluice_database_requests_waiting") == 0
    connection.close()
    assert value(metrics, "sluice_database_connections_used") == 0


@pytest.fixture
def unnoted(monkeypatch):
    """No task has run in this process yet."""
    monkeypatch.setattr(task_states, "_noted", {})


@pytest.mark.django_db
@pytest.mark.usefixtures("unnoted")
def test_a_tasks_failures_are_counted_until_it_succeeds():
    def broken():
        raise ValueError("no such row")

    for _ in range(2):
        with pytest.raises(ValueError, match="no such row"):
            noted("t", broken)
    state = TaskState.objects.get()
    assert (state.failures, state.error, state.succeeded_at) == (2, "ValueError: no such row", None)
    noted("t", lambda: True)
    state = TaskState.objects.get()
    assert (state.failures, state.error) == (0, "")
    assert state.succeeded_at is not None


@pytest.mark.django_db
@pytest.mark.usefixtures("unnoted")
def test_a_task_that_another_thread_runs_is_no_success_and_many_successes_are_one_write(django_assert_num_queries):
    with django_assert_num_queries(0):
        noted("t", lambda: False)
    noted("t", lambda: True)
    with django_assert_num_queries(0):
        noted("t", lambda: True)


@pytest.mark.usefixtures("unnoted")
def test_a_note_that_cannot_be_written_fails_no_task(monkeypatch, caplog):
    def gone(*args, **kwargs):
        raise DatabaseError("gone")

    monkeypatch.setattr(TaskState.objects, "bulk_create", gone)
    monkeypatch.setattr(task_states.clock, "now", timezone.now)
    ran = []
    with caplog.at_level(logging.WARNING, logger="sluice.jobs"):
        noted("t", lambda: ran.append(None) or True)
    assert len(ran) == 1
    assert [(record.message, record.job) for record in caplog.records] == [("no note of a task: gone", "t")]


def test_the_work_of_an_engine_is_counted_on_also_when_it_is_loaded_anew():
    metrics = Metrics()
    place = {"deployment": "one", "node": "local"}

    def seen(work):
        metrics.replicas.seen("one", "local", Health(ready=True, kv_cached=0.5, work=work), is_circuit_open=False)

    seen(Work(steps=10, rows=40, seconds=5.0, prefill_seconds=2.0, prompt_tokens=100, preemptions={"blocks": 1}))
    more = {"prompt_tokens": 130, "cached_tokens": 8, "preemptions": {"blocks": 1}}
    seen(Work(steps=12, rows=50, seconds=6.0, prefill_seconds=2.5, **more))
    seen(Work(steps=3, rows=9, seconds=1.0, prefill_seconds=0.0, output_tokens=7, preemptions={"fairness": 2}))
    seen(None)
    expected = {
        ("steps", ()): 15,
        ("rows", ()): 59,
        ("seconds", (("phase", "prefill"),)): 2.5,
        ("seconds", (("phase", "decode"),)): 4.5,
        ("tokens", (("kind", "computed"),)): 130,
        ("tokens", (("kind", "cached"),)): 8,
        ("tokens", (("kind", "output"),)): 7,
        ("preemptions", (("cause", "blocks"),)): 1,
        ("preemptions", (("cause", "fairness"),)): 2,
    }
    for (name, labels), number in expected.items():
        assert value(metrics, f"sluice_engine_{name}_total", **place, **dict(labels)) == number
    assert value(metrics, "sluice_deployment_kv_cached", **place) == 0.5
    metrics.replicas.gone("one", "local")
    assert value(metrics, "sluice_deployment_kv_cached", **place) is None


SHORT = Histogram((3, *[0] * len(BOUNDS)), 0.1)
LONG = Histogram((0, 1, *[0] * (len(BOUNDS) - 1)), 0.1)


@pytest.mark.parametrize(
    ("before", "less"),
    [
        ({"prompt_tokens": 3000}, {"prompt_tokens": 20}),
        ({"cached_tokens": 30}, {}),
        ({"output_tokens": 30}, {"output_tokens": 29}),
        ({"seconds": 5.0}, {"seconds": 4.0}),
        ({"prefill_seconds": 5.0, "seconds": 5.0}, {"seconds": 6.0}),
        ({"preemptions": {"blocks": 2}}, {"preemptions": {"blocks": 1}}),
        ({"queued": SHORT}, {"queued": LONG}),
        ({"first_tokens": SHORT}, {"first_tokens": Histogram()}),
        ({"gaps": SHORT}, {"gaps": Histogram(SHORT.counts, 0.05)}),
    ],
    ids=" ".join,
)
def test_an_engine_that_was_loaded_anew_and_made_more_steps_since_is_counted_from_its_beginning(before, less):
    metrics = Metrics()
    place = {"deployment": "one", "node": "local"}
    for work in (Work(steps=12, rows=12, **before), Work(steps=64, rows=64, **less)):
        metrics.replicas.seen("one", "local", Health(ready=True, work=work), is_circuit_open=False)
    assert value(metrics, "sluice_engine_steps_total", **place) == 76


def test_the_durations_that_an_engine_counted_are_shown_and_counted_on():
    metrics = Metrics()
    place = {"deployment": "one", "node": "local"}

    def seen(node, steps, *counts):
        queued = Histogram((*counts, *[0] * (len(BOUNDS) + 1 - len(counts))), float(sum(counts))) if counts else None
        work = Work(steps=steps, queued=queued or Histogram())
        metrics.replicas.seen("one", node, Health(ready=True, work=work), is_circuit_open=False)

    seen("local", 1, 2, 1)
    seen("local", 2, 2, 4)
    seen("local", 1, 1)  # loaded anew
    seen("older", 1)
    name = "sluice_engine_queue_seconds"
    assert value(metrics, f"{name}_bucket", le="0.001", **place) == 3
    assert value(metrics, f"{name}_bucket", le="0.0015", **place) == 7
    assert value(metrics, f"{name}_bucket", le="+Inf", **place) == 7
    assert (value(metrics, f"{name}_count", **place), value(metrics, f"{name}_sum", **place)) == (7, 7.0)
    assert value(metrics, f"{name}_count", deployment="one", node="older") is None
    assert b"# TYPE sluice_engine_first_token_seconds histogram" in metrics.render()


def test_an_engines_own_times_are_counted_where_it_tells_them():
    metrics = Metrics()
    done = Finished(FinishReason.STOP, Usage(1, 0, 2), queued_ms=20.0, decode_ms=300.0, gap_ms=100.0, gap_p99_ms=200.0)
    metrics.engine_ended("m", "d", done)
    foreign = Finished(FinishReason.STOP, Usage(1, 0, 2), findings=("prompt_beyond_hold",))
    metrics.engine_ended("m", "d", foreign)
    assert value(metrics, "sluice_engine_findings_total", deployment="d", finding="prompt_beyond_hold") == 1
    metrics.engine_ended("m", "d", Finished(FinishReason.ERROR, Usage(), queued_ms=9000.0))
    for name, seconds in (("median", 0.1), ("p99", 0.2)):
        assert value(metrics, f"sluice_request_inter_token_{name}_seconds_count", model="m") == 1
        assert value(metrics, f"sluice_request_inter_token_{name}_seconds_sum", model="m") == pytest.approx(seconds)
