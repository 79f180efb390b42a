"""What an operator meets on a bad day, made by `tests.stack.inside` in the site's home."""

from __future__ import annotations

from datetime import timedelta

from django.utils import timezone

from base.checks import Check, Finding, Result, Severity
from base.ids import day_of, uuid7
from base.sealing import seal
from base.units import MICRO
from billing.models import OutboxEvent, UsageRecord, Wallet
from billing.services.reconciliation import reconcile_if_due
from billing.services.rollups import consume_usage
from gateway.runtime.models import Observation, RefusalCount, TaskState
from gateway.runtime.observed import note, note_result
from routing.models import Deployment, Node
from routing.services.catalogue import add_model
from tenancy.models import OutgoingMail, Project

LONG = "a-name-of-one-hundred-and-twenty-characters-" * 3


def trouble() -> str:
    """Make failing checks, jobs of which one fails, a backup, and a mail that was given up; return the mail's id."""
    now = timezone.now()
    critical, warning = Severity.CRITICAL, Severity.WARNING
    ill = Check("mail", "the mail server lets us in, and took all mail", warning, lambda _: (), hits="Mail is late.")
    note_result(
        Result(ill, [Finding("smtp.example, port 25: refused", "correct SLUICE_EMAIL_URL, then `jobs --once`")])
    )
    models = Check("models", "each model is ready somewhere", critical, lambda _: (), hits="Requests for it fail.")
    mend = "see its worker's log, or start it: `manage.py worker --node local` on local"
    note_result(Result(models, [Finding("no replica is ready: does not answer", mend, "river")]))
    note_result(Result(Check("clock", "the clock is the database's", warning, lambda _: ()), [Finding("0.0 s apart")]))
    TaskState.objects.create(name="billing.expiry", succeeded_at=now, seconds=0.02)
    TaskState.objects.create(name="gateway.mail", succeeded_at=now, seconds=0.4, failures=4, error="OSError: refused")
    note(Observation.Kind.BACKUP, "sluice-1.tar", {"path": "/var/backups/sluice/sluice-1.tar", "bytes": 31 << 20})
    lost = OutgoingMail.objects.create(
        to=f"{LONG[:48]}@customer.example", subject="Join Acme on Sluice", sealed_text=seal("x"), state="failed",
        attempts=8, error="550 no such user", next_attempt_at=now, ended_at=now,
    )  # fmt: skip
    return str(lost.pk)


def busy() -> dict[str, str]:
    """Make an hour and two months of usage, failing checks, jobs, mail, a remote engine that is refused; return ids."""
    now = timezone.now()
    project = Project.objects.unscoped().select_related("tenant").filter(tenant__slug="acme").get()
    wallet = Wallet.objects.get(tenant=project.tenant)
    served = list(Deployment.objects.order_by("name").values_list("pk", "model__name")[:4])
    made = []
    for number in range(240):
        ago = timedelta(seconds=14 * number) if number < 120 else timedelta(days=(number - 120) / 2.2)
        deployment, model = served[number % len(served)]
        request = uuid7(int((now - ago).timestamp() * 1000))
        made.append(
            UsageRecord(
                id=request, request=request, day=day_of(request), tenant=project.tenant_id, project=project.pk,
                wallet=wallet.pk, model=model, deployment=deployment, card_version=uuid7(), endpoint="chat",
                input_tokens=400 + number, cache_read_tokens=150, output_tokens=90,
                charge=MICRO * (number % 7 + 1) // 3, held=MICRO, finish="stop", ttft_ms=120 + 7 * (number % 40),
                duration_ms=2400, reserved_at=now - ago, waived=number == 17,
            )
        )  # fmt: skip
    UsageRecord.objects.bulk_create(made)
    OutboxEvent.objects.create(topic="usage", payload={"records": [str(one.request) for one in made]})
    while consume_usage():
        pass
    RefusalCount.objects.create(
        id=uuid7(), minute=now - timedelta(minutes=20), tenant=project.tenant, status=503, code="no_capacity", count=3,
        last_request=uuid7(), last_at=now,
    )  # fmt: skip
    mail = trouble()
    far = add_model(
        name="far", kinds=["chat"], context_length=8192, rate_card="fake", source="http://127.0.0.1:9",
        backend="openai", options={"model": "far", "dialect": "vllm"},
    )  # fmt: skip
    Deployment.objects.filter(pk=far.pk).update(name=LONG[:80])
    Node.objects.create(name="gpu-1", address="tcp://10.0.0.5:7411", public_key="0" * 40)
    reconcile_if_due(timedelta(0))
    return {"remote": str(far.pk), "mail": mail, "river": str(Deployment.objects.get(model__name="river").pk)}
