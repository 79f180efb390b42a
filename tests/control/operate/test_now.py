"""Now: each state by word and colour, and each failing check with since when, what it hits and what to do."""

from __future__ import annotations

import re
from datetime import timedelta
from types import SimpleNamespace

import pytest
from django.contrib.auth.models import Group
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from base.checks import Check, Finding, Result, Severity
from base.ids import day_of, uuid7
from billing.models import UsageRecord, Wallet
from billing.services.reconciliation import reconcile_if_due
from control.operate import now
from gateway.runtime.data_plane import DeploymentState
from gateway.runtime.models import Observation, RefusalCount, TaskState
from gateway.runtime.observed import note_result
from routing.models import Deployment
from routing.services.catalogue import add_model
from tenancy.models import OutgoingMail, User
from tenancy.services import roles

pytestmark = pytest.mark.django_db
NOW = reverse("operate-now")


def client_of(user):
    client = Client()
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def operator(db):
    return client_of(User.objects.create_superuser("root@example.com"))


def page(client, path=NOW):
    answer = client.get(path)
    assert answer.status_code == 200
    return answer.content.decode()


def lights(client):
    """Each state of the strip: its name → its word, its tone, its figure."""
    found = re.findall(
        r'class="head"><span class="muted">([^<]+)</span><span class="state (\w*)"><svg.*?</svg>([^<]+)</span></span>'
        r"<strong>([^<]*)</strong>",
        page(client),
    )
    return {name: (word, tone, figure) for name, tone, word, figure in found}


def fail(name="mail", text="refused", mend="correct it", subject="", hits="Mail is late."):
    check = Check(name, "proof", Severity.CRITICAL, lambda _: (), hits=hits)
    note_result(Result(check, [Finding(text, mend, subject)]))


def serve(name, **states):
    """Return live states as a gateway tells them: for each deployment its `DeploymentState`, or None."""
    row = add_model(name=name, kinds=["chat"], context_length=9, rate_card="x", source="", backend="fake")
    return row, states


def known(monkeypatch, states):
    live = SimpleNamespace(deployment_states=lambda: states)
    for module in ("now", "engines"):
        monkeypatch.setattr(f"control.operate.{module}.live_of", lambda _: live)


def state(**changes):
    told = {"is_ready": True, "reason": "", "running": 0, "waiting": 0, "kv_used": 0.0, "shares_prefixes": False}
    return DeploymentState(**(told | changes))


def record(wallet, ago=timedelta(minutes=3), **fields):
    at = timezone.now() - ago
    request = uuid7(int(at.timestamp() * 1000))
    told = {"project": uuid7(), "deployment": uuid7(), "card_version": uuid7(), "model": "m", "charge": 0, "held": 0}
    return UsageRecord.objects.create(
        id=request, request=request, day=day_of(request), tenant=wallet.tenant_id, wallet=wallet.pk, reserved_at=at,
        **(told | fields),
    )  # fmt: skip


def test_a_need_says_since_when_whom_it_hits_and_what_to_do(operator):
    fail("models", "no replica is ready", "start it: `manage.py worker`", "river", "Requests for it fail.")
    row = Observation.objects.get(kind="check", name="models")
    row.facts["findings"][0]["since"] = "2026-03-01T10:00:00Z"
    row.save()
    fail(
        "models",
        "no replica is ready: does not answer",
        "start it: `manage.py worker`",
        "river",
        "Requests for it fail.",
    )
    text = page(operator)
    assert "Models: river" in text
    assert "does not answer" in text
    assert 'datetime="2026-03-01T10:00:00Z"' in text, "it has failed since it was first seen to"
    assert "Requests for it fail." in text
    assert 'data-copy-text="manage.py worker"' in text
    assert f'href="{reverse("operate-engines")}"' in text


def test_one_that_was_mended_begins_anew(operator):
    fail("mail")
    first = Observation.objects.get(name="mail").facts["findings"][0]["since"]
    note_result(Result(Check("mail", "", Severity.CRITICAL, lambda _: ()), [Finding("fine")]))
    assert "Every check is fine." in page(operator)
    fail("mail")
    assert Observation.objects.get(name="mail").facts["findings"][0]["since"] > first


def test_without_a_check_lately_the_page_says_that_nothing_looks(operator):
    assert "the periodic work doesn’t run" in page(operator)


def test_engines_queue_and_memory_have_their_states(operator, monkeypatch):
    assert lights(operator)["Engines"] == ("none", "bad", "0")
    one, _ = serve("one")
    two, _ = serve("two")
    assert lights(operator)["Engines"] == ("unknown", "warn", "– of 2"), "no gateway tells a process of pages alone"
    known(monkeypatch, {one.pk: state(kv_used=0.5, running=2), two.pk: state(kv_used=0.9, kv_cached=0.1, waiting=3)})
    seen = lights(operator)
    assert seen["Engines"] == ("ready", "good", "2 of 2")
    assert seen["Queue"] == ("waiting", "warn", "3 waiting")
    assert seen["K/V memory"] == ("nearly full", "warn", "90%")
    known(monkeypatch, {one.pk: state(is_ready=False, reason="does not answer"), two.pk: state(waiting=1)})
    seen = lights(operator)
    assert seen["Engines"] == ("down", "bad", "1 of 2")
    assert seen["Queue"] == ("stuck", "bad", "1 waiting")
    spare = Deployment.objects.create(name="spare", model=one.model, backend="fake")
    known(monkeypatch, {one.pk: state(is_ready=False), two.pk: state(), spare.pk: state()})
    assert lights(operator)["Engines"] == ("degraded", "warn", "2 of 3"), "its model is served by another"


def test_errors_and_first_tokens_are_of_the_last_hour(operator, acme):
    wallet = Wallet.objects.get(tenant=acme.tenant)
    assert lights(operator)["Errors of ours"] == ("none", "good", "0")
    for number in range(20):
        record(wallet, ttft_ms=100 * (number + 1))
    record(wallet, timedelta(minutes=61), ttft_ms=90_000, waived=True)
    seen = lights(operator)
    assert seen["Errors of ours"] == ("none", "good", "0")
    assert seen["First token"] == ("fast", "good", "1 s / 1.9 s")
    record(wallet, ttft_ms=None, waived=True)
    refusal = {"minute": timezone.now(), "tenant": acme.tenant, "last_request": uuid7(), "last_at": timezone.now()}
    RefusalCount.objects.create(id=uuid7(), status=503, code="no_capacity", count=4, **refusal)
    RefusalCount.objects.create(id=uuid7(), status=429, code="rate_limit_exceeded", count=50, **refusal)
    assert lights(operator)["Errors of ours"] == ("many", "bad", "5"), "clients' own errors are none of ours"
    assert "20.0 % of 25 requests" in page(operator)
    for _ in range(3):
        record(wallet, ttft_ms=20_000)
    assert lights(operator)["First token"][:2] == ("too slow", "bad")


def test_jobs_books_and_mail_have_their_states(operator, acme):
    seen = lights(operator)
    assert seen["Jobs"][:2] == ("not running", "bad")
    assert seen["Books"][:2] == ("not checked", "warn")
    assert seen["Mail"] == ("sent", "good", "0 given up")
    TaskState.objects.create(name="gateway.purge", succeeded_at=timezone.now())
    assert lights(operator)["Jobs"] == ("running", "good", "1")
    TaskState.objects.create(name="gateway.mail", succeeded_at=timezone.now(), failures=1)
    assert lights(operator)["Jobs"][:2] == ("failing", "warn")
    TaskState.objects.update(failures=3)
    assert lights(operator)["Jobs"] == ("failing", "bad", "2")
    reconcile_if_due(timedelta(0))
    assert lights(operator)["Books"] == ("in order", "good", "0 findings")
    wallet = Wallet.objects.get(tenant=acme.tenant)
    Wallet.objects.filter(pk=wallet.pk).update(posted=wallet.posted + 1)
    reconcile_if_due(timedelta(0))
    assert lights(operator)["Books"] == ("contradict", "bad", "1 finding")
    mail = OutgoingMail.objects.create(to="a@x.example", subject="s", sealed_text="", attempts=2)
    assert lights(operator)["Mail"][:2] == ("tried again", "warn")
    OutgoingMail.objects.filter(pk=mail.pk).update(state="failed", ended_at=timezone.now())
    assert lights(operator)["Mail"] == ("given up", "bad", "1 given up")


def test_a_poll_answers_only_what_changed(operator):
    text = page(operator)
    [seen] = re.findall(r'hx-get="\?live=(\w+)"', text)
    assert operator.get(NOW, {"live": seen}).status_code == 204, "nothing is swapped, so the focus stays"
    fail()
    part = page(operator, f"{NOW}?live={seen}")
    assert "<html" not in part
    assert "correct it" in part
    assert f"live={seen}" not in part


def test_a_role_sees_its_part_and_nobody_else_anything(operator, acme):
    fail()
    nobody = client_of(User.objects.create_user("nobody@example.com", is_staff=True))
    text = page(nobody)
    assert "no role yet" in text
    assert "correct it" not in text
    assert acme.client().get(NOW).status_code == 404
    roles.ensure_roles()
    viewer = User.objects.create_user("viewer@example.com", is_staff=True)
    viewer.groups.set(Group.objects.filter(name="viewer"))
    text = page(client_of(viewer))
    assert "correct it" in text
    assert "Check the books" not in text
    assert "Check the books" in page(operator)


def test_the_page_takes_a_fixed_number_of_queries(operator, acme, django_assert_max_num_queries, monkeypatch):
    wallet = Wallet.objects.get(tenant=acme.tenant)
    rows = [serve(f"m{number}")[0] for number in range(5)]
    known(monkeypatch, {row.pk: state(is_ready=False) for row in rows})
    for number in range(5):
        record(wallet, ttft_ms=5)
        fail(f"check {number}")
        TaskState.objects.create(name=f"task {number}", failures=1)
    with django_assert_max_num_queries(15):
        page(operator)


def test_percentiles_are_values_that_were_measured():
    assert [now.percentile([30, 10, 20], part) for part in (0, 50, 95)] == [10, 20, 30]
