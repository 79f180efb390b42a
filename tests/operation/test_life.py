"""`tenants` and `people`: what they say before they erase, when they refuse, and where an export goes."""

from __future__ import annotations

import io
import stat
import zipfile
from types import SimpleNamespace

import pytest
from django.core.management import CommandError, call_command
from django.db import OperationalError
from django.db.models import F
from django.utils import timezone

from base.ids import uuid7
from billing.models import CreditGrant, Hold, Subscription, Wallet
from billing.services import credits, plans
from gateway.runtime import epoch
from gateway.runtime.models import RefusalCount
from operation.management import life
from routing.models import RouteRule
from tenancy.models import AuditEvent, Tenant, User

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def home(settings, tmp_path, monkeypatch):
    settings.SLUICE_HOME = tmp_path
    monkeypatch.setattr(life.erasure, "FELT_AFTER", 0.0)
    return tmp_path


def run(*words):
    said = io.StringIO()
    call_command(*words, stdout=said)
    return said.getvalue()


def typing(monkeypatch, text):
    terminal = io.StringIO(text)
    terminal.isatty = lambda: True
    monkeypatch.setattr("sys.stdin", terminal)


def paid(party, amount):
    wallet = Wallet.objects.get(tenant=party.tenant)
    return credits.grant(
        wallet_id=wallet.pk, amount=amount, kind=CreditGrant.Kind.PAID, key="paid", paid_amount=1, currency="EUR"
    )


def test_an_export_is_written_for_its_reader_alone(acme, tmp_path):
    run("tenants", "export", "acme", "--output", str(tmp_path))
    [path] = tmp_path.glob("acme-*.zip")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "manifest.json" in zipfile.ZipFile(path).namelist()
    with pytest.raises(CommandError, match="exists already"):
        run("tenants", "export", "Acme", "--output", str(path))
    run("people", "export", "owner@acme.example", "--output", str(tmp_path / "owner.zip"))
    assert "account.jsonl" in zipfile.ZipFile(tmp_path / "owner.zip").namelist()
    for words in (("tenants", "export", "nobody"), ("people", "export", "no@body.example")):
        with pytest.raises(CommandError, match=r"no tenant|nobody"):
            run(*words, "--output", str(tmp_path))
    exports = AuditEvent.objects.unscoped().filter(action__endswith=".exported").order_by("id")
    assert [(event.action, event.target) for event in exports] == [
        ("tenant.exported", "Acme"),
        ("user.exported", "owner@acme.example"),
    ]


def test_an_export_that_fails_leaves_nothing(acme, tmp_path, monkeypatch):
    def failing(tenant):
        yield b"some"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(life.export, "of_tenant", failing)
    with pytest.raises(CommandError, match="No space left on device: make room"):
        run("tenants", "export", "acme", "--output", str(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_tenant_with_a_plan_and_paid_credit_is_erased_only_if_told_so(acme):
    paid(acme, 2_500_000)
    with pytest.raises(CommandError, match=r"it is subscribed to free and 2\.5\S* of the credits .* --force"):
        run("tenants", "erase", "acme", "--yes")
    assert Tenant.objects.get(slug="acme").is_active
    plans.end(acme.tenant.id, at_once=True)
    CreditGrant.objects.filter(kind="paid").update(kind="promotional")
    RouteRule.objects.create(name="Acme first")
    said = run("tenants", "erase", "acme", "--yes")
    assert "1 keys" in said
    assert "the account of owner@acme.example" in said
    assert "its name still stands in the route rule Acme first" in said
    with pytest.raises(CommandError, match="there is no tenant 'acme'"):
        run("tenants", "erase", "acme", "--yes")
    erased = Tenant.objects.get(slug__startswith="erased-")
    late = RefusalCount.objects.create(
        id=uuid7(), minute=timezone.now(), tenant=erased, status=404, code="x", model="m", count=1,
        last_request=uuid7(), last_at=timezone.now(),
    )  # fmt: skip
    assert "was erased on" in run("tenants", "erase", erased.slug)
    assert not RefusalCount.objects.of(erased).filter(pk=late.pk).exists()
    assert AuditEvent.objects.unscoped().filter(action="tenant.erased").count() == 1
    assert User.objects.get().email.endswith("@erased.invalid")


def test_an_erasure_that_the_database_ends_is_run_again(acme, monkeypatch):
    def ended(tenant):
        raise OperationalError("server closed the connection\n\tunexpectedly")

    words = ("tenants", "erase", "acme", "--yes", "--force")
    with monkeypatch.context() as patched:
        patched.setattr(life.erasure, "erase_tenant", ended)
        with pytest.raises(CommandError, match=r"server closed the connection unexpectedly: .*: run this again"):
            run(*words)
    assert "acme is erased" in run(*words)


def test_force_ends_the_plan_and_voids_the_credit(acme):
    paid(acme, 2_500_000)
    run("tenants", "erase", "acme", "--yes", "--force")
    assert Wallet.objects.get(tenant=acme.tenant).posted == 0
    assert not Subscription.objects.filter(state="active").exists()


@pytest.mark.parametrize(("typed", "is_erased"), [("acme\n", True), ("Acme\n", False), ("", False)])
def test_the_name_is_typed(acme, monkeypatch, typed, is_erased):
    typing(monkeypatch, typed)
    if is_erased:
        run("tenants", "erase", "acme", "--force")
    else:
        with pytest.raises(CommandError, match="nothing was erased"):
            run("tenants", "erase", "acme", "--force")
    assert Tenant.objects.filter(slug="acme", is_active=True).exists() is not is_erased


def test_without_a_terminal_it_asks_for_yes(acme, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("acme\n"))
    with pytest.raises(CommandError, match="give --yes"):
        run("tenants", "erase", "acme", "--force")


def test_what_runs_is_waited_for_and_told(acme):
    """Nothing new begins meanwhile, and the same command does the rest later."""
    wallet, at = Wallet.objects.get(tenant=acme.tenant), timezone.now()
    Wallet.objects.filter(pk=wallet.pk).update(held=F("held") + 5)
    hold = Hold.objects.create(
        id=uuid7(), wallet=wallet, tenant=acme.tenant.pk, project=uuid7(), model="m", deployment=uuid7(),
        card_version=uuid7(), amount=5, owner=uuid7(), reserved_at=at, lease_until=at,
    )  # fmt: skip
    words = ("tenants", "erase", "acme", "--yes", "--wait", "0")
    with pytest.raises(CommandError, match="1 requests, answers or batches of acme still run or hold credit"):
        run(*words, "--force")
    assert not Tenant.objects.get(slug="acme").is_active
    hold.delete()
    Wallet.objects.filter(pk=wallet.pk).update(held=0)
    run(*words)
    assert not Tenant.objects.filter(slug="acme").exists()


def test_a_request_that_a_gateway_let_in_late_is_waited_for(acme, monkeypatch):
    """A gateway goes by a cached key for a moment, in which a request has no hold yet."""
    seconds, looks = [0.0], []

    def running(owner):
        looks.append(seconds[0])
        return int(1.5 <= seconds[0] < 4.0)

    monkeypatch.setattr(life.erasure, "still_running", running)
    clock = SimpleNamespace(monotonic=lambda: seconds[0], sleep=lambda more: seconds.append(seconds.pop() + more))
    monkeypatch.setattr(life.erasure, "time", clock)
    monkeypatch.setattr(life.erasure, "FELT_AFTER", epoch.FELT_AFTER)
    life.erasure.wait_for_end(acme.tenant, 60)
    assert looks[-1] == 4.0


def test_a_person_is_erased_whom_nothing_needs(acme, other):
    with pytest.raises(CommandError, match="is the last owner of Acme: make somebody else owner"):
        run("people", "erase", "owner@acme.example", "--yes")
    assert User.objects.filter(email="owner@acme.example", is_active=True).exists()
    assert "no account, mail or event" in run("people", "erase", "no@body.example")
