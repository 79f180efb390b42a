"""An erasure leaves no name anywhere, and every figure of the books; cut off anywhere, it is begun again."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from allauth.mfa.models import Authenticator
from django.apps import apps
from django.contrib.admin.models import CHANGE, LogEntry
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import connection
from django.db.models import Q
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from base.errors import ServiceError
from base.ids import uuid7
from billing import reconcile
from billing.models import (
    CreditGrant,
    Hold,
    LedgerTransfer,
    Reconciliation,
    Rerating,
    Subscription,
    UsageRecord,
    Wallet,
)
from billing.seals.leaves import Books
from billing.services import credits
from control.belongings import erasure, export
from control.belongings.kinds import NOBODYS, OF_PERSON, OF_TENANT
from control.belongings.traces import Words
from gateway.batches.models import Batch, BatchLine
from gateway.durable.models import KeptAnswer
from gateway.runtime.models import RefusedRequest
from routing.models import PublicModel
from routing.services.catalogue import add_model
from tenancy.models import APIKey, AuditEvent, Membership, OutgoingMail, SignInLink, Tenant, User
from tenancy.services import keys, members, tenants
from tenancy.services.tenants import activate_tenant
from tests.control.belongings.conftest import EMAIL, MARK, NAME, PERSON, SLUG, books, files_with, join, tables_with, use
from tests.control.belongings.test_export import opened, rows

pytestmark = pytest.mark.django_db(transaction=True)

WORDS = (SLUG, NAME, "zanzimark", EMAIL, PERSON, MARK)


def leaves_of(tenant):
    """Return the hashes of the tenant's rows as seals have them."""
    since, until = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)
    return {leaf.hash for leaf in Books(tenant.pk).leaves(since, until)}


def end(tenant):
    erasure.end_tenant(tenant)
    return erasure.erase_tenant(tenant)


@pytest.mark.contract
def test_after_a_tenants_erasure_nothing_names_it_and_the_books_are_whole(marked, home, other):
    before, its_owner = books(), tables_with("owner@other.example")
    leaves = leaves_of(marked.tenant)
    assert len(tables_with(*WORDS)) > 20, "the marks are seeded"
    assert files_with(home, MARK)
    goes = " ".join(erasure.tenants_end(marked.tenant).goes)
    assert all(some in goes for some in ("1 files", "3 keys", "1 adapters", "2 answers", EMAIL)), goes
    voided = end(marked.tenant)
    assert tables_with(*WORDS) == set()
    assert not files_with(home, MARK)
    assert not list((home / "files" / marked.tenant.pk.hex).glob("*"))
    assert reconcile.check(connection) == []
    assert leaves <= leaves_of(marked.tenant), "what is or will be sealed is what it was"
    after = books()
    assert {name: [row for row in after[name] if row in before[name]] for name in before} == before
    wallet = Wallet.objects.get(pk=marked.wallet.pk)
    assert (wallet.posted, wallet.held, voided) == (0, 0, marked.wallet.posted)
    # everything of the other tenant, and whoever is in it, is there
    assert tables_with("owner@other.example") == its_owner
    assert User.objects.get(pk=marked.guest.pk).is_active
    assert not Membership.objects.of(marked.tenant).exists()
    [event] = AuditEvent.objects.unscoped().filter(action="tenant.erased")
    assert (event.tenant_id, event.target, event.after) == (
        marked.tenant.pk,
        str(Tenant.objects.get(pk=marked.tenant.pk)),
        {"voided_micro": voided},
    )
    with pytest.raises(ServiceError, match="erased"):
        activate_tenant(tenant=Tenant.objects.get(pk=marked.tenant.pk))


def test_runs_that_rated_anew_name_an_erased_tenants_models_as_its_usage_does(marked, home):
    before = Rerating.objects.get().model_names[1]
    end(marked.tenant)
    run, name = Rerating.objects.get(), PublicModel.objects.get(tenant=marked.tenant).name
    assert name != before
    assert UsageRecord.objects.filter(tenant=marked.tenant.pk, model=name).exists()
    assert (run.model_names, run.cards, run.sums.get().model) == (["base", name], {name: "dear"}, name)


def test_what_came_back_to_ended_credit_is_the_tenants_too(acme, home):
    """It moves between two accounts of the operator's, and has the words of who gave it back."""
    made = use(acme.tenant, acme.project, "base", key=acme.key)
    for grant in CreditGrant.objects.filter(wallet__tenant=acme.tenant):
        credits.void(grant_id=grant.pk, key=f"void {grant.pk}", actor="op", reason="over")
    credits.refund_request(request=made.request, key="back", actor="op", reason=f"broken, says {PERSON}")
    beside = LedgerTransfer.objects.get(request=made.request, credit__kind="breakage")
    _, files = opened(export.of_tenant(acme.tenant))
    assert [one["reason"] for one in rows(files, "transfers") if one["id"] == beside.pk] == [beside.reason]
    leaves = leaves_of(acme.tenant)
    end(acme.tenant)
    beside.refresh_from_db()
    assert beside.reason == "erased"
    assert leaves <= leaves_of(acme.tenant)


@pytest.mark.contract
def test_after_a_persons_erasure_nothing_names_them_and_the_tenant_goes_on(marked, home):
    before, leaves = books(), leaves_of(marked.tenant)
    assert "last owner" in erasure.persons_end(EMAIL).obstacle
    membership = Membership.objects.of(marked.tenant).get(user=marked.guest)
    members.change_role(tenant=marked.tenant, membership=membership, role="owner")
    doomed = erasure.persons_end(EMAIL)
    assert not doomed.obstacle
    assert {"1 answers of their chats", f"membership of {NAME}", "2 keys that they made"} <= set(doomed.goes)
    assert marked.browser.get("/usage/").status_code == 200
    erasure.erase_person(EMAIL)
    assert tables_with(EMAIL, PERSON) == set()
    assert books() == before
    assert leaves_of(marked.tenant) == leaves
    assert reconcile.check(connection) == []
    assert marked.browser.get("/usage/").status_code == 302
    assert not APIKey.objects.of(marked.tenant).filter(created_by=marked.owner, revoked_at=None).exists()
    links = SignInLink.objects.filter(user=marked.owner)
    assert not [rows for rows in (links, Authenticator.objects, Session.objects) if rows.exists()]
    assert KeptAnswer.objects.of(marked.tenant).count() == 1, "of two: the other was their chat's"
    assert list(RefusedRequest.objects.of(marked.tenant).values_list("user", flat=True)) == [None], "likewise"
    assert files_with(home, MARK), "the tenant's files stay"
    [event] = AuditEvent.objects.unscoped().filter(action="user.erased")
    assert event.target.endswith("@erased.invalid")
    erasure.erase_person(EMAIL)
    assert AuditEvent.objects.unscoped().filter(action="user.erased").count() == 1


def test_long_tables_are_read_some_rows_at_a_time(marked, home, monkeypatch):
    monkeypatch.setattr("control.belongings.kinds.CHUNK", 2)
    tables = ("gateway_auditevent", "gateway_storedfile", "django_session", "django_admin_log", "gateway_outgoingmail")
    with CaptureQueriesContext(connection) as asked:
        end(marked.tenant)
    assert tables_with(*WORDS) == set()
    whole = [one["sql"] for one in asked if one["sql"].startswith("SELECT") and "LIMIT" not in one["sql"]]
    assert not [sql for sql in whole if any(f'FROM "{table}"' in sql for table in tables)]


class KilledError(BaseException):
    """The end of the process."""


def test_an_erasure_that_was_killed_anywhere_is_begun_again(marked, home):
    """Killed at its first write, then at its second, its fourth, and so on, until it comes to its end."""
    before, kills, writes = books(), 0, [0]

    def killing(execute, sql, params, many, context):
        writes[0] -= sql.startswith(("INSERT", "UPDATE", "DELETE"))
        if writes[0] < 0:
            raise KilledError
        return execute(sql, params, many, context)

    while True:
        writes[0] = 2**kills - 1
        try:
            with connection.execute_wrapper(killing):
                end(Tenant.objects.get(slug=SLUG))
            break
        except KilledError:
            kills += 1
            assert reconcile.check(connection) == []
    assert kills >= 5
    assert tables_with(*WORDS) == set()
    assert not files_with(home, MARK)
    after = books()
    assert {name: [row for row in after[name] if row in before[name]] for name in before} == before


def hold_of(marked):
    at = timezone.now()
    Wallet.objects.filter(pk=marked.wallet.pk).update(held=5)
    return Hold.objects.create(
        id=uuid7(), wallet=marked.wallet, tenant=marked.tenant.pk, project=uuid7(), user=marked.owner.pk, model="m",
        deployment=uuid7(), card_version=uuid7(), amount=5, owner=uuid7(), reserved_at=at, lease_until=at,
    )  # fmt: skip


def end_hold(marked):
    Wallet.objects.filter(pk=marked.wallet.pk).update(held=0)
    Hold.objects.all().delete()


def test_what_runs_ends_first(marked):
    hold = hold_of(marked)
    erasure.end_tenant(marked.tenant)
    assert not Tenant.objects.get(slug=SLUG).is_active
    assert not Subscription.objects.filter(tenant=marked.tenant, state="active").exists()
    assert Batch.objects.of(marked.tenant).get().status == Batch.Status.CANCELLING
    line = BatchLine.objects.filter(batch__tenant=marked.tenant)
    line.update(state=BatchLine.State.RUNNING, claimed_until=timezone.now() + timedelta(minutes=1))
    assert erasure.still_running(marked.tenant) == 2
    with pytest.raises(ServiceError, match="2 requests"):
        erasure.erase_tenant(marked.tenant)
    with pytest.raises(ServiceError, match="1 requests"):
        erasure.erase_person(EMAIL)
    assert Hold.objects.filter(pk=hold.pk).exists()
    line.update(state=BatchLine.State.WAITING)
    end_hold(marked)
    erasure.erase_tenant(marked.tenant)


def test_what_begins_meanwhile_ends_before_the_name(acme, monkeypatch):
    """The first request of a gateway that didn't know of the end: another erasure by the same name does the rest."""
    marked = SimpleNamespace(tenant=acme.tenant, owner=acme.owner, wallet=Wallet.objects.get(tenant=acme.tenant))
    with monkeypatch.context() as patch, pytest.raises(ServiceError, match="1 requests"):
        patch.setattr(erasure, "_STEPS", (lambda _: hold_of(marked) and 0,))
        end(acme.tenant)
    assert Tenant.objects.get(slug="acme").erased_at is None
    end_hold(marked)
    end(acme.tenant)
    assert Tenant.objects.get().erased_at


def test_an_operator_is_not_erased(terms):
    User.objects.create_superuser("root@x.example", "x")
    assert "is an operator" in erasure.persons_end("root@x.example").obstacle


def test_somebody_who_was_only_invited_is_erased(acme):
    members.invite_by_mail(tenant=acme.tenant, email="new@nowhere.example")
    erasure.erase_person("new@nowhere.example")
    assert tables_with("new@nowhere.example") == set()


def test_a_tenant_whose_name_is_in_anothers_takes_nothing_of_it(acme, other):
    Tenant.objects.filter(pk=other.tenant.pk).update(name="Acme Tools", slug="acme-tools")
    keys.create_key(tenant=other.tenant, project=other.project, name="for Acme")
    for tenant in (acme.tenant, other.tenant):
        tenant.refresh_from_db()
        members.invite_by_mail(tenant=tenant, email=f"new@{tenant.slug}.example")
    namesake = tenants.create_tenant(name="Acme", slug="acme-2", owner_email="new@acme-2.example", plan="free")
    members.send_invitation(invitation=namesake.invitation, address="https://here")
    add_model(name="acme/base", kinds=["chat"], context_length=9, rate_card="smollm2-135m-instruct", source="/m")
    kind = ContentType.objects.get_for_model(User)
    said = {"object_repr": "Acme's adviser", "change_message": "acme", "action_flag": CHANGE}
    LogEntry.objects.create(user=other.owner, content_type=kind, object_id=str(other.owner.pk), **said)
    finding = {"check": "acme", "subject": other.tenant.pk.hex, "detail": "of model acme, Acme"}
    mine = finding | {"subject": acme.tenant.pk.hex}
    checked = Reconciliation.objects.create(is_running=None, found=2, findings=[finding, mine])
    end(acme.tenant)
    mails = OutgoingMail.objects.filter(to__startswith="new@").values_list("subject", flat=True)
    assert sorted(mails) == ["Join Acme Tools on Sluice", "Join Acme on Sluice"]
    assert LogEntry.objects.filter(**said).exists()
    assert AuditEvent.objects.unscoped().filter(action="model.created", target="acme/base").exists()
    checked.refresh_from_db()
    assert checked.findings == [finding, mine | {"detail": "erased"}]
    assert Tenant.objects.filter(name="Acme Tools", slug="acme-tools").exists()
    assert APIKey.objects.of(other.tenant).filter(name="for Acme", revoked_at=None).exists()
    assert AuditEvent.objects.of(other.tenant).exclude(target="erased").exists()


@pytest.mark.parametrize(
    ("text", "erased"),
    [
        ("ann.lee@corp.example, o'lee@corp.example, lee@corp.example.au, x-lee@corp.example", None),
        ("Sent to lee@corp.example.", "Sent to erased."),
        ("{'LEE@corp.example': (550, 'no')}", "{'erased': (550, 'no')}"),
        ("Jo Lee <lee@corp.example>", "erased <erased>"),
        ({"lee@corp.example": ["\nlee@corp.example"]}, {"lee@corp.example": ["\nerased"]}),
    ],
)
def test_an_address_is_found_whole(text, erased):
    words = Words(["lee@corp.example"], beside=["Jo Lee"])
    assert words.erased_from(text) == (erased or text)
    assert words.are_in(text) is (erased is not None)
    assert not words.are_in("Jo Lee")


def test_a_namesake_and_a_longer_address_keep_their_own(acme, other):
    person = join(acme.tenant, "lee@corp.example")
    for address in ("ann.lee@corp.example", "lee@corp.example.au"):
        members.invite_by_mail(tenant=other.tenant, email=address)
    for user in (person, other.owner):
        user.name = "Jo Lee"
        user.save()
    keys.create_key(tenant=other.tenant, project=other.project, name="Jo Lee", created_by=other.owner)
    of_others = Q(tenant=other.tenant) | Q(target_id=str(other.owner.pk))
    before = list(AuditEvent.objects.unscoped().filter(of_others).values())
    assert "Jo Lee" in str(before)
    erasure.erase_person("lee@corp.example")
    assert list(AuditEvent.objects.unscoped().filter(of_others).values()) == before
    assert APIKey.objects.of(other.tenant).filter(name="Jo Lee").exists()
    assert not [event for event in AuditEvent.objects.unscoped().exclude(of_others) if "Jo Lee" in str(event.after)]


def test_every_table_is_somebodys_or_nobodys():
    """A new table has to say whose its rows are: else it would be in no export, and no erasure would look there."""
    tables = {model._meta.label for model in apps.get_models(include_auto_created=True)}
    told = {kind.model._meta.label for kind in (*OF_TENANT, *OF_PERSON)}
    assert not told & NOBODYS
    assert tables == told | NOBODYS
