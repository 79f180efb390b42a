"""System: jobs that can be run now, checks with their cures, mail tried again, and settings without a secret."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.conf import settings as django_settings
from django.contrib.auth.models import Group
from django.urls import reverse
from django.utils import timezone

from base.checks import Check, Finding, Result, Severity
from base.sealing import seal
from billing.models import Reconciliation, Wallet
from billing.services.reconciliation import reconcile_if_due
from control.operate.system import JOBS, SHOWN
from gateway.runtime.models import Observation, TaskState
from gateway.runtime.observed import note, note_result, noted_results
from operation.jobs import tasks
from tenancy.models import AuditEvent, OutgoingMail, User
from tenancy.services import mail, roles
from tests.control.operate.test_now import client_of, fail, operator, page
from tests.gateway.post import sent_mail

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
SYSTEM = reverse("operate-system")


def run(client, task, **options):
    return client.post(reverse("operate-run", args=[task]), **options)


def work():
    """Do what was asked for, as the periodic work does within seconds."""
    [asked] = [job for job in tasks.JOBS if job.name == "operation.asked"]
    asked.run()


def test_every_job_has_words():
    assert set(JOBS) == {job.name for job in tasks.JOBS}


def test_jobs_tell_how_they_are_those_that_fail_first(operator):
    now = timezone.now()
    TaskState.objects.create(name="gateway.mail", succeeded_at=now, seconds=0.25, failures=4, error="OSError: refused")
    TaskState.objects.create(name="billing.expiry", succeeded_at=now)
    TaskState.objects.create(name="gateway.purge", succeeded_at=now - timedelta(hours=1))
    text = page(operator, SYSTEM)
    table = text[text.index('id="jobs"') : text.index('id="checks-title"')]
    names = re.findall(r'<th scope="row" class="name"[^>]*><span>([^<]+)</span>', table)
    states = re.findall(r'<span class="state \w*">.*?</svg>([^<]+)<', table)
    lines = dict(zip(names, states, strict=True))
    assert names[0] == "Mail"
    assert [lines[name] for name in ("Mail", "Expiry", "Clean-up", "Files")] == ["failing", "fine", "late", "never ran"]
    assert "OSError: refused" in text
    assert "250 ms" in text


def test_the_books_are_checked_now_although_they_are_not_due(operator, acme):
    reconcile_if_due(timedelta(0))
    wallet = Wallet.objects.get(tenant=acme.tenant)
    Wallet.objects.filter(pk=wallet.pk).update(posted=wallet.posted + 1)
    answer = run(operator, "billing.reconciliation", headers={"referer": f"http://testserver{reverse('operate-now')}"})
    assert answer.headers["location"] == reverse("operate-now"), "back to where the button is"
    assert Reconciliation.objects.count() == 1, "not within the request"
    assert "asked for" in page(operator, SYSTEM)
    work()
    assert Reconciliation.objects.count() == 2
    text = page(operator, SYSTEM)
    assert "asked for" not in text
    assert "wallet posted" in text
    work()
    assert Reconciliation.objects.count() == 2, "asked for once"
    event = AuditEvent.objects.unscoped().latest("at")
    assert (event.action, event.target_id) == ("job.asked", "billing.reconciliation")


def test_all_checks_are_made_now(operator, monkeypatch):
    ill = Result(Check("mail", "proof", Severity.WARNING, lambda _: ()), [Finding("gone", "mend")])
    monkeypatch.setattr(tasks, "examine", lambda: [ill])
    run(operator, "operation.checks")
    work()
    assert [one.name for one in noted_results()] == ["mail"]


def test_what_fails_when_it_was_asked_for_is_noted_and_keeps_nothing_else(operator, monkeypatch):
    def broken():
        raise OSError("no room")

    monkeypatch.setattr(tasks, "examine", broken)
    run(operator, "operation.checks")
    run(operator, "gateway.purge")
    with pytest.raises(OSError, match="no room"):
        work()
    work()
    states = {one.name: (one.failures, one.asked_at) for one in TaskState.objects.all()}
    assert states["operation.checks"] == (1, None)
    assert states["gateway.purge"] == (0, None)


def test_another_site_sends_nobody_back_to_itself(operator):
    answer = run(operator, "gateway.purge", headers={"referer": "https://evil.example/operate/"})
    assert answer.headers["location"] == SYSTEM


def test_only_whose_role_allows_it_runs_jobs(operator, acme):
    roles.ensure_roles()
    user = User.objects.create_user("viewer@example.com", is_staff=True)
    user.groups.set(Group.objects.filter(name="viewer"))
    viewer = client_of(user)
    text = page(viewer, SYSTEM)
    assert "Run now</button>" not in text
    assert "Check the books" not in text
    assert run(viewer, "gateway.purge").status_code == 404
    assert run(viewer, "billing.reconciliation").status_code == 404
    assert run(operator, "nothing").status_code == 404
    assert not TaskState.objects.exists()


def test_all_checks_are_listed_with_what_they_prove_and_how_to_mend(operator):
    fail("mail", "refused", "correct it, then `manage.py jobs --once`")
    fine = Check("clock", "this machine's clock is the database's", Severity.WARNING, lambda _: ())
    note_result(Result(fine, [Finding("0.1 s apart")]))
    text = page(operator, SYSTEM)
    checks = text[text.index('id="checks"') :]
    assert checks.index("refused") < checks.index("0.1 s apart")
    assert "this machine&#x27;s clock" in checks
    assert 'data-copy-text="manage.py jobs --once"' in checks


def test_mail_that_was_given_up_is_tried_again(operator, monkeypatch):
    made = [mail.queue_mail(to=f"{name}@x.example", subject="Join", text="https://here/secret") for name in "abc"]
    OutgoingMail.objects.exclude(pk=made[2].pk).update(
        state="failed", error="no route", ended_at=timezone.now(), attempts=8
    )
    OutgoingMail.objects.filter(pk=made[1].pk).update(sealed_text=seal("x")[:-4])
    text = page(operator, SYSTEM)
    assert text.count("given up") >= 2
    assert "secret" not in text[text.index('id="mail"') : text.index('id="gateways-title"')]
    told = operator.post(f"{reverse('operate-mail')}?mail={made[0].pk}", follow=True).content.decode()
    assert "1 mail will be tried again" in told
    assert [letter.to for letter in sent_mail()] == [["c@x.example"], ["a@x.example"]]
    told = operator.post(reverse("operate-mail"), follow=True).content.decode()
    assert "SLUICE_CREDENTIAL_FALLBACKS" in told, "the other one's text can't be read"
    assert operator.post(f"{reverse('operate-mail')}?mail=x").status_code == 404
    [event] = AuditEvent.objects.unscoped().filter(action="mail.tried_again")
    assert event.target_id == str(made[0].pk)


def test_no_secret_is_shown(db, settings):
    settings.SECRET_KEY = settings.SLUICE_CREDENTIAL_SECRET = settings.SLUICE_KEY_HASH_SECRET = "hush-1"
    settings.SLUICE_OPERATOR_TOKEN = settings.SLUICE_GATEWAY_KEY = settings.EMAIL_HOST_PASSWORD = "hush-2"
    settings.REDIS_URL = "rediss://user:hush-3@redis.example:6380/0?password=hush-4"
    settings.OTEL_EXPORTER_OTLP_ENDPOINT = "https://hush-5@collector.example/x?token=hush-6"
    text = page(client_of(User.objects.create_superuser("root@example.com")), SYSTEM)
    assert "rediss://…@redis.example:6380/0" in text
    assert "https://…@collector.example/x" in text
    assert "hush" not in text


def test_every_setting_that_is_shown_is_one():
    assert [name for names in SHOWN.values() for name in names if not hasattr(django_settings, name)] == []


def test_backups_gateways_and_versions(operator):
    note(Observation.Kind.BACKUP, "sluice-1.tar", {"path": "/backups/sluice-1.tar", "bytes": 3 << 20})
    facts = {"host": "box", "version": "9.9", "started_at": "2026-01-01T00:00:00+00:00", "failing": {"disk": []}}
    note(Observation.Kind.GATEWAY, "0000-abcdef", {**facts, "deployments": {"a": "ready", "b": "loading"}})
    text = page(operator, SYSTEM)
    assert "sluice-1.tar" in text
    assert "/backups" in text
    gateways = text[text.index('id="gateways"') : text.index('id="backups-title"')]
    assert "box abcdef" in gateways
    assert "failing" in gateways
    assert "1 of 2" in gateways
    assert "9.9" in gateways
    assert re.search(r"gateway \d{4}, routing \d{4}", text)


def test_the_page_takes_a_fixed_number_of_queries(operator, acme, django_assert_max_num_queries):
    reconcile_if_due(timedelta(0))
    for number in range(12):
        fail(f"check {number}")
        TaskState.objects.create(name=f"task {number}", failures=1)
        OutgoingMail.objects.create(to="a@x.example", subject="s", sealed_text="")
        note(Observation.Kind.BACKUP, f"{number}.tar", {"path": "/b/1.tar", "bytes": 1})
    with django_assert_max_num_queries(16):
        page(operator, SYSTEM)
