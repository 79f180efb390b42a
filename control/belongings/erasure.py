"""Erasure of a person or a tenant: names, keys, content and files go; the books stay with their sums, nameless.

Each step is a transaction of its own, or repeats without harm, and the name goes last: an erasure that was cut off is
begun again by that name, and does the rest.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from uuid import UUID

import msgspec
from allauth.account.models import EmailAddress, EmailConfirmation
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib.admin.models import LogEntry
from django.contrib.contenttypes.models import ContentType
from django.contrib.sessions.models import Session
from django.db import router, transaction
from django.db.models import CharField, F, Max, Model, Q, QuerySet, Sum, TextField, Value
from django.db.models.functions import Cast, Coalesce, Concat

from base import clock, storage
from base.errors import ServiceError
from base.units import format_credits
from billing.models import (
    CreditGrant,
    Hold,
    Invoice,
    LedgerTransfer,
    MissedPromise,
    OutboxEvent,
    PlanMove,
    PromiseDay,
    Purchase,
    Reconciliation,
    RecurringGrant,
    Rerating,
    ReratingSum,
    ScheduledGrant,
    SpendBudget,
    Statement,
    Subscription,
    UsageDay,
    UsageRecord,
    UsageRollup,
    Wallet,
)
from billing.seals.leaves import keep_words
from billing.services import credits, invoices, plans, recurring
from billing.services.rollups import consume_usage
from billing.services.wallets import lock
from billing.triggers import ERASED
from billing.writer.view import read_pools
from control.belongings.kinds import CHUNK, CONTENT, chats_of, every, in_chunks, transfers_beside, transfers_of
from control.belongings.traces import Words, erase_from_books, erase_from_texts, words_of
from fleet import adapter_files
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.conversations import Conversation
from gateway.durable.models import KeptAnswer
from gateway.runtime.epoch import FELT_AFTER
from gateway.runtime.models import Observation, RefusedRequest, TaskState
from routing.models import Adapter, PublicModel
from tenancy.audit.trail import record
from tenancy.models import (
    AdminAPIKey,
    Alert,
    APIKey,
    AuditEvent,
    Delivery,
    Invitation,
    Membership,
    OutgoingMail,
    Project,
    SignInLink,
    Tenant,
    User,
)
from tenancy.services import members
from tenancy.services.mail import mails_about
from tenancy.services.tenants import deactivate_tenant

OPERATORS = Q(user__is_staff=True) | Q(user=None, api_key=None, actor__startswith="manage.py")
"""Events of the audit trail whose actor is no tenant's."""
_DOMAIN = "@erased.invalid"
LOOK_SECONDS = 0.5
_SUMMED_TRIES, _SUMMED_SECONDS = 200, 0.05


@dataclass(frozen=True, slots=True)
class Doomed:
    """The consequences of an erasure in words, and the obstacle to it: "" where there is none."""

    goes: list[str] = field(default_factory=list)
    obstacle: str = ""


def tenants_end(tenant: Tenant) -> Doomed:
    """Return what the erasure of `tenant` takes, and why it needs to be told so."""
    counts = [(kind.name.replace("_", " "), kind.rows(tenant).count()) for kind in CONTENT]
    files = every(StoredFile).filter(tenant=tenant).count()
    keys = sum(every(model).filter(tenant=tenant).count() for model in (APIKey, AdminAPIKey))
    counts += [
        ("files", files),
        ("keys", keys),
        ("open invoices", _open_invoices(tenant)),
        ("adapters", Adapter.objects.filter(model__tenant=tenant).count()),
    ]
    people = [user.email for user in only_members_of(tenant)]
    goes = [f"{count} {name}" for name, count in counts if count]
    goes += [f"the account of {email}, who is in no other tenant" for email in people]
    subscription = Subscription.objects.filter(tenant=tenant, state="active").select_related("version__plan").first()
    paid = CreditGrant.objects.filter(wallet__tenant=tenant, kind=CreditGrant.Kind.PAID).aggregate(sum=Sum("remaining"))
    against = [f"it is subscribed to {subscription.version.plan.slug}"] if subscription else []
    coming = ScheduledGrant.objects.filter(wallet__tenant=tenant, kind=CreditGrant.Kind.PAID)
    left = (paid["sum"] or 0) + (coming.aggregate(sum=Sum("amount"))["sum"] or 0)
    against += [f"{format_credits(left)} of the credits that it paid for are left or to come"] if left else []
    return Doomed(goes, " and ".join(against))


def _open_invoices(tenant: Tenant) -> int:
    return Invoice.objects.filter(wallet__tenant=tenant, state=Invoice.State.OPEN).count()


def persons_end(email: str) -> Doomed:
    """Return what the erasure of the person with that address takes, and what forbids it."""
    user = User.objects.filter(email=email).first()
    mails = every(OutgoingMail).filter(to=email).count()
    counts = [("mails", mails), ("invitations", every(Invitation).filter(email=email).count())]
    goes = []
    if user is not None:
        mine = every(Membership).filter(user=user, is_active=True)
        goes = [f"the account of {email}, with how it signs in"]
        goes += [
            f"membership of {name}" for name in mine.order_by("tenant__name").values_list("tenant__name", flat=True)
        ]
        keys = sum(every(model).filter(created_by=user).count() for model in (APIKey, AdminAPIKey))
        counts += [("keys that they made", keys), ("answers of their chats", chats_of(user).count())]
        counts += [("conversations", every(Conversation).filter(user=user).count())]
    events = every(AuditEvent).filter(Q(user=user) if user is not None else Q(target=email)).count()
    counts += [("events of the audit trail lose names and addresses", events)]
    return Doomed(goes + [f"{count} {name}" for name, count in counts if count], "" if user is None else _refusal(user))


def _refusal(user: User) -> str:
    """Return why this person can't be erased now."""
    if user.is_staff:
        return f"{user.email} is an operator: take that from them first, under People in the admin"
    for membership in every(Membership).filter(user=user, is_active=True, role="owner", tenant__erased_at=None):
        owners = every(Membership).filter(
            tenant=membership.tenant_id, role="owner", is_active=True, user__is_active=True
        )
        if not owners.exclude(user=user).exists():
            tenant = membership.tenant
            return (
                f"{user.email} is the last owner of {tenant.name}: make somebody else owner, or erase the tenant too "
                f"(`manage.py tenants erase {tenant.slug}`)"
            )
    return ""


def only_members_of(tenant: Tenant) -> QuerySet[User]:
    """Return the tenant's people who belong to no other tenant and operate nothing."""
    elsewhere = every(Membership).filter(is_active=True).exclude(tenant=tenant).values("user")
    mine = every(Membership).filter(tenant=tenant).values("user")
    return User.objects.filter(pk__in=mine, is_staff=False).exclude(pk__in=elsewhere).order_by("email")


def end_tenant(tenant: Tenant) -> None:
    """Let nothing more of the tenant begin: keys, sessions, batches and subscription end; what runs goes on."""
    if tenant.is_active:
        deactivate_tenant(tenant=tenant)
    if Subscription.objects.filter(tenant=tenant, state="active").exists():
        plans.end(tenant.pk, at_once=True)
    for one in RecurringGrant.objects.filter(wallet__tenant=tenant).exclude(state=RecurringGrant.State.ENDED):
        recurring.set_state(one.pk, RecurringGrant.State.ENDED)
    with transaction.atomic():
        for wallet in Wallet.objects.filter(tenant=tenant).values_list("pk", flat=True):
            credits.withdraw(lock(wallet), ScheduledGrant.objects.filter(wallet=wallet))
    for asked in Invoice.objects.filter(wallet__tenant=tenant, state=Invoice.State.OPEN):
        invoices.void(asked.pk, reason="The tenant was erased.")
    begun = every(Batch).filter(tenant=tenant, status__in=(Batch.Status.VALIDATING, Batch.Status.IN_PROGRESS))
    begun.update(status=Batch.Status.CANCELLING, cancelling_at=clock.now())


def end_person(user: User) -> None:
    """Let nothing more of the person begin: sessions, roles, keys and links end; what runs goes on."""
    nobody = User()
    nobody.set_unusable_password()
    User.objects.filter(pk=user.pk).update(is_active=False, password=nobody.password)
    for membership in every(Membership).filter(user=user, is_active=True).select_related("tenant"):
        if membership.tenant.is_active:
            members.remove_member(tenant=membership.tenant, membership=membership)
        else:
            every(Membership).filter(pk=membership.pk).update(is_active=False)
    for model in (APIKey, AdminAPIKey):
        _blank_keys(every(model).filter(created_by=user))


def still_running(owner: Tenant | User) -> int:
    """Return how many requests, answers and batches of the tenant or person somebody still works on."""
    now = clock.now()
    if isinstance(owner, User):
        return Hold.objects.filter(user=owner.pk).count()
    answers = every(KeptAnswer).filter(tenant=owner, finished_at=None, owner__isnull=False, lease_until__gt=now)
    lines = BatchLine.objects.filter(batch__tenant=owner, state=BatchLine.State.RUNNING, claimed_until__gt=now)
    batches = every(Batch).filter(tenant=owner, worked_until__gt=now)
    return sum(rows.count() for rows in (Hold.objects.filter(tenant=owner.pk), answers, lines, batches))


def wait_for_end(owner: Tenant | User, seconds: float) -> None:
    """Wait until nothing of the owner's runs any more, nor can have been let in by a gateway that didn't know yet.

    Raises ServiceError where something still runs after so many seconds.
    """
    began, name = time.monotonic(), owner.slug if isinstance(owner, Tenant) else owner.email
    while (count := still_running(owner)) or time.monotonic() < began + FELT_AFTER:
        if count and time.monotonic() >= began + seconds:
            raise ServiceError(
                "",
                f"{count} requests, answers or batches of {name} still run or hold credit, and no new one is taken: "
                "do this again when they have ended (`manage.py sweep` ends those of gateways that are gone)",
            )
        time.sleep(LOOK_SECONDS)


def erase_tenant(tenant: Tenant) -> int:
    """Erase a tenant that `end_tenant` ended and of which nothing is `still_running`; return the µcr that were voided.

    Usage, transfers, grants and subscriptions keep their sums and ids. Its people who are in no other tenant are erased
    with it. What came to a tenant after its erasure goes by another one.
    """
    _refuse_while_running(tenant)
    voided = _void_credit(tenant)
    for user in only_members_of(tenant).exclude(email__endswith=_DOMAIN):
        erase_person(user.email)
    _erase_log_of(tenant)
    while sum(step(tenant) for step in _STEPS):  # until nothing is left, also of what came meanwhile
        pass
    if tenant.erased_at is not None:
        return voided
    _erase_texts_of(tenant)
    _refuse_while_running(tenant)
    with transaction.atomic():
        end = _end_of(tenant.pk)
        every(Tenant).filter(pk=tenant.pk).update(
            name=f"Erased tenant {end}", slug=f"{ERASED}-{end}", erased_at=clock.now()
        )
        tenant.refresh_from_db()
        record("tenant.erased", tenant, tenant=tenant.pk, after={"voided_micro": voided})
    return voided


def _refuse_while_running(tenant: Tenant) -> None:
    if count := still_running(tenant):
        raise ServiceError("tenant", f"{count} requests, answers or batches of {tenant.slug} still run.")


def erase_person(email: str) -> None:
    """Erase everything that names the person with that address, whether or not there is an account.

    What they did for a tenant by keys is the tenant's and stays with it. Raises ServiceError while a request of theirs
    runs.
    """
    user = User.objects.filter(email=email).first()
    keys: list[UUID] = []
    if user is not None:
        end_person(user)
        if count := still_running(user):
            raise ServiceError("email", f"{count} requests of {email} still run.")
        keys = [
            key
            for model in (APIKey, AdminAPIKey)
            for key in every(model).filter(created_by=user).values_list("pk", flat=True)
        ]
        _delete_account(user)
    for rows in (
        every(Invitation).filter(email=email),
        every(OutgoingMail).filter(to=email),
        EmailAddress.objects.filter(email=email),
    ):
        _delete(rows)
    words = words_of(email, user)
    erase_from_texts(words)
    _forget_findings()
    erase_from_books(words, user, keys)
    if user is not None:
        with transaction.atomic():
            User.objects.filter(pk=user.pk).update(
                email=f"{ERASED}-{_end_of(user.pk)}{_DOMAIN}", name="", address_ask=""
            )
            user.refresh_from_db()
            record("user.erased", user)


def _end_of(identifier: UUID) -> str:
    """Return the random end of an id, which tells it from others of its millisecond."""
    return identifier.hex[-12:]


def _delete_account(user: User) -> None:
    """Delete how the person signs in, and their chats with answers and refused requests."""
    for rows in (
        Authenticator.objects.filter(user=user),
        UserSession.objects.filter(user=user),
        SignInLink.objects.filter(user=user),
        EmailConfirmation.objects.filter(email_address__user=user),
        EmailAddress.objects.filter(user=user),
        chats_of(user),
        every(RefusedRequest).filter(user=user.pk),
        every(Conversation).filter(user=user),
    ):
        _delete(rows)
    user.groups.clear()
    user.user_permissions.clear()
    for session in chain.from_iterable(in_chunks(Session.objects.all())):
        if session.get_decoded().get("_auth_user_id") == str(user.pk):
            session.delete()


def _delete(rows: QuerySet[Any]) -> int:
    """Delete the rows in chunks, past the audit trail, which would name them; return how many."""
    count = 0
    while chosen := list(rows.values_list("pk", flat=True)[:CHUNK]):
        doomed = every(rows.model).filter(pk__in=chosen)
        count += len(chosen)
        doomed._raw_delete(router.db_for_write(rows.model))  # noqa: SLF001 - `delete` sends signals for each row
    return count


def _blank_keys(keys: QuerySet[Any]) -> int:
    """Revoke keys and take all that tells one from another; their rows stay, since usage refers to them."""
    blank: dict[str, Any] = {"name": ERASED, "last_four": "", "revoked_at": Coalesce(F("revoked_at"), clock.now())}
    if keys.model is APIKey:
        blank |= {"prefix": "", "previous_digest": None, "previous_last_four": "", "networks": [], "allowed_models": []}
    count = 0
    for key in keys.exclude(digest__startswith=f"{ERASED}:").values_list("pk", flat=True):
        count += every(keys.model).filter(pk=key).update(**blank, digest=f"{ERASED}:{key.hex}")
    return count


def _void_credit(tenant: Tenant) -> int:
    """Void what is left of the tenant's grants, and return it in µcr."""
    left = CreditGrant.objects.filter(wallet__tenant=tenant, remaining__gt=0, voided_at=None, expired_at=None)
    return sum(
        credits.void(grant_id=grant, key=f"{ERASED}:{grant}", actor="sluice", reason="its tenant was erased")
        for grant in left.values_list("pk", flat=True)
    )


def _content(tenant: Tenant) -> int:
    return sum(_delete(kind.rows(tenant)) for kind in CONTENT)


def _files(tenant: Tenant) -> int:
    """Remove the bytes of files, and then the rows by which they are found; an upload under way gives up."""
    count = 0
    for file in chain.from_iterable(in_chunks(every(StoredFile).filter(tenant=tenant))):
        every(StoredFile).filter(pk=file.pk).update(state=StoredFile.State.DELETED)
        storage.remove(file)
        count += _delete(every(StoredFile).filter(pk=file.pk))
    return count


def _keys(tenant: Tenant) -> int:
    return sum(_blank_keys(every(model).filter(tenant=tenant)) for model in (APIKey, AdminAPIKey))


def _projects(tenant: Tenant) -> int:
    count = 0
    for project in every(Project).filter(tenant=tenant):
        name = f"{ERASED} {_end_of(project.pk)}"
        count += every(Project).filter(pk=project.pk).exclude(name=name).update(name=name, is_active=False)
    return count


def _models(tenant: Tenant) -> int:
    """Withdraw the tenant's own models, and give another name to them and to their usage and its sums."""
    count = 0
    for adapter in Adapter.objects.filter(model__tenant=tenant):
        PublicModel.objects.filter(pk=adapter.model_id).update(is_active=False)
        adapter_files.remove(adapter)
        count += _delete(Adapter.objects.filter(pk=adapter.pk))
    named = PublicModel.objects.filter(tenant=tenant).exclude(name__startswith=f"{ERASED}/")
    if named.exists():
        _sum_up()
    for model in named:
        name = f"{ERASED}/{_end_of(model.pk)}"
        with transaction.atomic():  # the sums agree with the records before and after
            used = UsageRecord.objects.filter(tenant=tenant.pk, model=model.name)
            keep_words(used)
            used.update(model=name)
            _rename_in_statements(tenant, model.name, name)
            _rename_in_reratings(model.name, name)
            UsageRollup.objects.filter(model=model.name).update(model=name)
            UsageDay.objects.filter(model=model.name).update(model=name)
            MissedPromise.objects.filter(model=model.name).update(model=name)
            PromiseDay.objects.filter(model=model.name).update(model=name)
            _rename_in_credit(tenant, model.name, name)
            count += PublicModel.objects.filter(pk=model.pk).update(name=name, description="", is_active=False)
    return count


def _rename_in_credit(tenant: Tenant, before: str, name: str) -> None:
    """Give a model another name in what the tenant's credit is restricted to."""

    def renamed(models: str) -> str:
        return "\n".join(sorted(name if one == before else one for one in models.split("\n")))

    for pk in Wallet.objects.filter(tenant=tenant).values_list("pk", flat=True):
        lock(pk)
        for kind in (CreditGrant, ScheduledGrant):
            for grant, models in kind.objects.filter(wallet=pk, restriction__contains=before).values_list(
                "pk", "restriction"
            ):
                kind.objects.filter(pk=grant).update(restriction=renamed(models))
        if pools := read_pools(Wallet.objects.values_list("pools", flat=True).get(pk=pk)):
            kept = msgspec.json.encode({renamed(models): pool for models, pool in pools.items()}).decode()
            Wallet.objects.filter(pk=pk).update(pools=kept, version=F("version") + 1)


def _rename_in_statements(tenant: Tenant, before: str, name: str) -> None:
    """Give a model another name in the lines of the tenant's statements."""
    for statement in Statement.objects.filter(tenant=tenant.pk):
        lines = statement.sums["usage"]
        renamed = [line | {"model": name} if line["model"] == before else line for line in lines]
        if renamed != lines:
            Statement.objects.filter(pk=statement.pk).update(sums=statement.sums | {"usage": renamed})


def _rename_in_reratings(before: str, name: str) -> None:
    """Give a model another name in runs that rate anew, and in what came of them; the trail forgets their terms."""
    ReratingSum.objects.filter(model=before).update(model=name)
    for run in Rerating.objects.only("model_names", "cards"):
        if before in run.model_names or before in run.cards:
            names = [name if one == before else one for one in run.model_names]
            cards = {name if one == before else one: card for one, card in run.cards.items()}
            Rerating.objects.filter(pk=run.pk).update(model_names=names, cards=cards)
            told = every(AuditEvent).filter(target_type="rerating", target_id=str(run.pk))
            told.update(target=ERASED, before={}, after={})


def _sum_up() -> None:
    """Wait until all usage up to now is in the sums, also that which another consumer is adding."""
    last = OutboxEvent.objects.aggregate(last=Max("id"))["last"] or 0
    for _ in range(_SUMMED_TRIES):
        if not OutboxEvent.objects.filter(id__lte=last).exists():
            return
        if not consume_usage():
            time.sleep(_SUMMED_SECONDS)
    raise ServiceError(
        "usage", "Usage is not summed up, which the log of `manage.py jobs` explains: run this again then."
    )


def _usage(tenant: Tenant) -> int:
    """Take from usage records who used the tenant's keys, and which of its own models were thought of: a day at a
    time.
    """
    mine = UsageRecord.objects.filter(tenant=tenant.pk)
    days = list(mine.order_by().values_list("day", flat=True).distinct())
    named = mine.annotate(text=Cast("route", TextField()))
    named = named.filter(~Q(end_user="") | Q(text__contains=f'"{tenant.slug}/'))
    count = 0
    for day in days:
        with transaction.atomic():
            keep_words(mine.filter(day=day).exclude(end_user=""))
            count += named.filter(day=day).update(end_user="", route={})
    return count


@transaction.atomic
def _books(tenant: Tenant) -> int:
    """Take people's words from grants and transfers; amounts, ids and moments stay."""
    count = 0
    for rows in (transfers_of(tenant).exclude(code=LedgerTransfer.Code.CHARGE), transfers_beside(tenant)):
        said = rows.exclude(actor="sluice").exclude(reason__in=("", ERASED))
        keep_words(said)
        count += said.update(reason=ERASED)
    grants = CreditGrant.objects.filter(wallet__tenant=tenant).exclude(kind=CreditGrant.Kind.PLAN)
    paid = sum(
        grants.exclude(**{f"{name}__in": ("", ERASED)}).update(**{name: ERASED})
        for name in ("paid_reference", "refund_reference")
    )
    recurs = RecurringGrant.objects.filter(wallet__tenant=tenant).exclude(reason=ERASED)
    paid += recurs.update(reason=ERASED, made_by=ERASED)
    paid += Invoice.objects.filter(wallet__tenant=tenant).exclude(reason__in=("", ERASED)).update(reason=ERASED)
    paid += Purchase.objects.filter(tenant=tenant).exclude(made_by__in=("", ERASED)).update(made_by=ERASED)
    budgets = SpendBudget.objects.filter(tenant=tenant.pk).exclude(name=ERASED)
    about = Concat(Value(f"{ERASED} "), Cast("number", CharField()))
    named = budgets.filter(scope__in=("end_user", "models")).update(name=ERASED, subject=about)
    paid += named + budgets.update(name=ERASED)
    return count + paid + grants.exclude(source__in=("", ERASED)).update(source=ERASED)


def _trail(tenant: Tenant) -> int:
    events = every(AuditEvent).filter(tenant=tenant).exclude(action="tenant.erased")
    told = events.exclude(target=ERASED, before={}, after={})
    count = told.update(target=ERASED, before={}, after={})
    return count + events.exclude(OPERATORS).exclude(actor=ERASED, address="").update(actor=ERASED, address="")


def _members(tenant: Tenant) -> int:
    return _delete(every(Membership).filter(tenant=tenant))


_STEPS = (_content, _files, _models, _usage, _keys, _projects, _books, _trail, _members)


def _erase_texts_of(tenant: Tenant) -> None:
    """Take the tenant from mails, errors and findings."""
    namesakes = every(Invitation).filter(tenant__name=tenant.name).exclude(tenant=tenant)
    _delete(mails_about(tenant.name).exclude(to__in=namesakes.values("email")))
    erase_from_texts(Words([tenant.name, tenant.slug], exact=True), (TaskState, Alert, Delivery, PlanMove, Rerating))
    _forget_findings()
    subjects = {str(tenant.pk), tenant.pk.hex}  # SQLite's statements show ids without hyphens
    for run in chain.from_iterable(in_chunks(Reconciliation.objects.exclude(findings=[]))):
        findings = [one | {"detail": ERASED} if one["subject"] in subjects else one for one in run.findings]
        if findings != run.findings:
            Reconciliation.objects.filter(pk=run.pk).update(findings=findings)


def _forget_findings() -> None:
    """Forget what checks found, whose texts may have names: the checks are made again within a minute."""
    _delete(Observation.objects.filter(kind=Observation.Kind.CHECK))
    for gateway in Observation.objects.filter(kind=Observation.Kind.GATEWAY):
        same = Observation.objects.filter(pk=gateway.pk, at=gateway.at)
        same.update(facts={**gateway.facts, "failing": {}})


_LOGGED: dict[type[Model], str] = {
    Tenant: "pk",
    Membership: "tenant",
    Invitation: "tenant",
    Batch: "tenant",
    Project: "tenant",
    APIKey: "tenant",
    AdminAPIKey: "tenant",
    PublicModel: "tenant",
    Subscription: "tenant",
    Wallet: "tenant",
    CreditGrant: "wallet__tenant",
}


def _erase_log_of(tenant: Tenant) -> None:
    """Take from the operators' log what it says of the tenant's rows, which have to be there to be found."""
    for model, lookup in _LOGGED.items():
        mine = LogEntry.objects.filter(content_type=ContentType.objects.get_for_model(model))
        for some in in_chunks(every(model).filter(**{lookup: tenant.pk}).values("id")):
            mine.filter(object_id__in=[str(row["id"]) for row in some]).update(object_repr=ERASED, change_message="")
