"""The kinds of rows that belong to tenants and to people, and how an export shows them.

Each table stands here or in `NOBODYS`: a test finds those that stand in neither.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from allauth.account.models import EmailAddress
from allauth.mfa.models import Authenticator
from allauth.usersessions.models import UserSession
from django.contrib.admin.models import LogEntry
from django.db.models import Model, Q, QuerySet

from base.sealing import SealError, unseal_bytes
from billing.codes import Code
from billing.models import (
    Budget,
    BudgetWindow,
    CreditGrant,
    Hold,
    Invoice,
    LedgerAccount,
    LedgerSeal,
    LedgerTransfer,
    MissedPromise,
    PromiseDay,
    Purchase,
    RecurringGrant,
    ScheduledGrant,
    SpendBudget,
    Statement,
    Subscription,
    UsageRecord,
    UsageRollup,
    VoucherUse,
    Wallet,
)
from gateway.apis.responses.models import StoredResponse
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.conversations import Conversation
from gateway.durable.models import KeptAnswer
from gateway.runtime.models import RefusalCount, RefusedRequest
from routing.models import Adapter, PublicModel
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
    WebHook,
)

Rows = Callable[[Any], QuerySet[Any]]
CHUNK = 500
"""Rows in memory at once, and values in a statement: SQLite takes no more than some thousands."""


def every(model: type[Model]) -> QuerySet[Any]:
    """Return all rows of the model, past the tenants' scope."""
    return model._base_manager.all()  # noqa: SLF001 - documented


def in_chunks(rows: QuerySet[Any], most: int | None = None) -> Iterator[list[Any]]:
    """Yield the rows, or their values with "id", in the order of their ids, `most` or CHUNK at a time.

    Each chunk is a query of its own: its rows may be changed or deleted before the next, and nothing is held up.
    """
    rows, last, most = rows.order_by("pk"), None, most or CHUNK
    while some := list((rows if last is None else rows.filter(pk__gt=last))[:most]):
        yield some
        if len(some) < most:
            return
        last = some[-1]["id"] if isinstance(some[-1], dict) else some[-1].pk


@dataclass(frozen=True, slots=True)
class Kind:
    """Rows of one table that belong to a tenant or person: `name` is that of their file in an export.

    Secrets are `hidden`. What the database has as bytes is `decoded`. `at_once` rows are in memory together. A long
    table is read in the `order` of an index that begins with the owner, or with that of each of the `parts`.
    """

    name: str
    model: type[Model]
    rows: Rows
    hidden: tuple[str, ...] = ()
    decoded: Mapping[str, Callable[[bytes | None], object]] = field(default_factory=dict)
    at_once: int = 500
    order: tuple[str, ...] = ("id",)
    parts: Callable[[Any], Iterable[QuerySet[Any]]] | None = None

    def fields(self) -> list[str]:
        """Return the names of the fields that are shown."""
        return [one.name for one in self.model._meta.concrete_fields if one.name not in self.hidden]


def _of(model: type[Model], lookup: str) -> Rows:
    return lambda owner: every(model).filter(**{lookup: owner.pk})


def transfers_of(tenant: Tenant) -> QuerySet[LedgerTransfer]:
    """Return the transfers to and from the tenant's wallets."""
    accounts = _accounts(tenant)
    return LedgerTransfer.objects.filter(Q(debit__in=accounts) | Q(credit__in=accounts))


def transfers_beside(tenant: Tenant) -> QuerySet[LedgerTransfer]:
    """Return what corrections gave back to grants of the tenant that had ended: it goes from usage to breakage, and
    touches none of its wallets.
    """
    corrections = (Code.TRUE_UP, Code.REQUEST_REFUND, Code.RERATING, Code.PROMISE)
    rows = LedgerTransfer.objects.filter(grant__wallet__tenant=tenant, code__in=corrections)
    return rows.filter(debit__wallet=None, credit__wallet=None)


def _accounts(tenant: Tenant) -> list[Any]:
    return list(LedgerAccount.objects.filter(wallet__tenant=tenant).values_list("pk", flat=True))


def _transfers_by_account(tenant: Tenant) -> Iterator[QuerySet[LedgerTransfer]]:
    """Yield what each account paid, and what it got; what is between two of them once. Last come those `beside`."""
    accounts = _accounts(tenant)
    for account in accounts:
        yield LedgerTransfer.objects.filter(debit=account)
        yield LedgerTransfer.objects.filter(credit=account).exclude(debit__in=accounts)
    yield transfers_beside(tenant)


def _lines_by_batch(tenant: Tenant) -> Iterator[QuerySet[BatchLine]]:
    for batch in list(every(Batch).filter(tenant=tenant).values_list("pk", flat=True)):
        yield every(BatchLine).filter(batch=batch)


def chats_of(user: User) -> QuerySet[KeptAnswer]:
    """Return the kept answers of the person's chats: the key of their claim ends with the person and the request."""
    return every(KeptAnswer).filter(key__startswith="response:", key__contains=f":{user.pk.hex}:")


def _json(data: bytes | None) -> object:
    return None if data is None else json.loads(bytes(data))


def _answer(body: bytes | None) -> object:
    """Return a kept answer's text; None where there is none, or its secret is gone."""
    try:
        return None if body is None else zlib.decompress(unseal_bytes(bytes(body))).decode(errors="replace")
    except SealError:
        return None


_DIGESTS = ("digest", "previous_digest")
_ACCOUNT = ("password", "address_ask", "is_staff", "is_superuser")
_ANSWER: dict[str, Any] = {"hidden": ("digest", "owner"), "decoded": {"body": _answer}, "at_once": 4}
_CONVERSATION: dict[str, Any] = {"hidden": ("words",), "decoded": {"content": _json}, "at_once": 4}

CONTENT = (
    # Lines before their batches: they are deleted in this order.
    Kind(
        "batch_lines", BatchLine, _of(BatchLine, "batch__tenant"), at_once=50, order=("number",), parts=_lines_by_batch
    ),
    Kind("batches", Batch, _of(Batch, "tenant")),
    Kind(
        "responses",
        StoredResponse,
        _of(StoredResponse, "tenant"),
        decoded={"input": _json, "body": _json},
        at_once=4,
    ),
    Kind("answers", KeptAnswer, _of(KeptAnswer, "tenant"), **_ANSWER),
    Kind("conversations", Conversation, _of(Conversation, "tenant"), **_CONVERSATION),
    Kind("refusals", RefusalCount, _of(RefusalCount, "tenant"), order=("minute", "id")),
    Kind("refused_requests", RefusedRequest, _of(RefusedRequest, "tenant")),
    Kind("invitations", Invitation, _of(Invitation, "tenant"), hidden=("digest",)),
    Kind("alerts", Alert, _of(Alert, "tenant")),
    Kind("deliveries", Delivery, _of(Delivery, "hook__tenant")),
    Kind("web_hooks", WebHook, _of(WebHook, "tenant"), hidden=("sealed_secret",)),
)
"""A tenant's rows that an erasure deletes, and nothing else has to be done for them."""

OF_TENANT = (
    Kind("tenant", Tenant, _of(Tenant, "pk")),
    Kind(
        "people",
        User,
        lambda tenant: every(User).filter(pk__in=every(Membership).filter(tenant=tenant).values("user")),
        hidden=(*_ACCOUNT, "last_login", "is_active"),
    ),
    Kind("members", Membership, _of(Membership, "tenant")),
    Kind("projects", Project, _of(Project, "tenant")),
    Kind("keys", APIKey, _of(APIKey, "tenant"), hidden=_DIGESTS),
    Kind("admin_keys", AdminAPIKey, _of(AdminAPIKey, "tenant"), hidden=_DIGESTS),
    *CONTENT,
    Kind("files", StoredFile, lambda tenant: _of(StoredFile, "tenant")(tenant).filter(state=StoredFile.State.READY)),
    Kind("models", PublicModel, _of(PublicModel, "tenant")),
    Kind("adapters", Adapter, _of(Adapter, "model__tenant")),
    Kind("subscriptions", Subscription, _of(Subscription, "tenant")),
    Kind("wallets", Wallet, _of(Wallet, "tenant")),
    Kind("accounts", LedgerAccount, _of(LedgerAccount, "wallet__tenant")),
    Kind("grants", CreditGrant, _of(CreditGrant, "wallet__tenant")),
    Kind("purchases", Purchase, _of(Purchase, "tenant"), hidden=("moves", "froze")),
    Kind("vouchers", VoucherUse, _of(VoucherUse, "tenant")),
    Kind("scheduled_grants", ScheduledGrant, _of(ScheduledGrant, "wallet__tenant")),
    Kind("recurring_grants", RecurringGrant, _of(RecurringGrant, "wallet__tenant")),
    Kind("invoices", Invoice, _of(Invoice, "wallet__tenant")),
    Kind("transfers", LedgerTransfer, transfers_of, order=("booked_at", "id"), parts=_transfers_by_account),
    Kind("budgets", SpendBudget, _of(SpendBudget, "wallet__tenant")),
    Kind("budget_windows", BudgetWindow, _of(BudgetWindow, "wallet__tenant")),
    Kind("key_budgets", Budget, _of(Budget, "wallet__tenant")),
    Kind("holds", Hold, _of(Hold, "tenant")),
    Kind("usage", UsageRecord, _of(UsageRecord, "tenant"), order=("day", "request", "revision")),
    Kind("missed_promises", MissedPromise, _of(MissedPromise, "tenant"), order=("day", "request")),
    Kind("promises_by_day", PromiseDay, _of(PromiseDay, "tenant"), order=("day", "id")),
    Kind("seals", LedgerSeal, _of(LedgerSeal, "tenant"), order=("number",)),
    Kind("statements", Statement, _of(Statement, "tenant")),
    Kind("usage_by_hour", UsageRollup, _of(UsageRollup, "tenant"), order=("hour", "id")),
    Kind("audit", AuditEvent, _of(AuditEvent, "tenant")),
)

OF_PERSON = (
    Kind("account", User, _of(User, "pk"), hidden=("password", "address_ask")),
    Kind("addresses", EmailAddress, _of(EmailAddress, "user")),
    Kind("second_factors", Authenticator, _of(Authenticator, "user"), hidden=("data",)),
    Kind("sessions", UserSession, _of(UserSession, "user"), hidden=("session_key", "data")),
    Kind("members", Membership, _of(Membership, "user")),
    Kind("keys", APIKey, _of(APIKey, "created_by"), hidden=_DIGESTS),
    Kind("admin_keys", AdminAPIKey, _of(AdminAPIKey, "created_by"), hidden=_DIGESTS),
    Kind(
        "invitations",
        Invitation,
        lambda user: every(Invitation).filter(Q(email=user.email) | Q(invited_by=user)),
        hidden=("digest",),
    ),
    Kind("sign_in_links", SignInLink, _of(SignInLink, "user"), hidden=("digest",)),
    Kind("mails", OutgoingMail, lambda user: every(OutgoingMail).filter(to=user.email), hidden=("sealed_text",)),
    Kind("answers", KeptAnswer, chats_of, **_ANSWER),
    Kind("conversations", Conversation, _of(Conversation, "user"), **_CONVERSATION),
    Kind("holds", Hold, _of(Hold, "user")),
    Kind("usage", UsageRecord, _of(UsageRecord, "user")),
    Kind("refused_requests", RefusedRequest, _of(RefusedRequest, "user")),
    Kind("audit", AuditEvent, _of(AuditEvent, "user")),
    Kind("operator_log", LogEntry, _of(LogEntry, "user")),
)

NOBODYS = frozenset(
    {
        # keys of the tables above, and what only the installation has
        *("sessions.Session", "account.EmailConfirmation", "gateway.TenantEpoch", "gateway.CatalogueEpoch"),
        *("gateway.User_groups", "gateway.User_user_permissions", "gateway.TaskState"),
        "gateway.Observation",
        *("auth.Permission", "auth.Group", "auth.Group_permissions", "contenttypes.ContentType"),
        # what operators decide for all tenants
        *("billing.Plan", "billing.PlanVersion", "billing.RateCard", "billing.RateCardVersion", "billing.Rate"),
        *("billing.PlanMove", "billing.CostSample", "routing.Fetch"),
        *("billing.VoucherBatch", "billing.Voucher", "billing.PaymentClaim", "billing.PaymentEvent"),
        *("billing.SigningKey", "billing.ErasedWords"),
        *("billing.Rerating", "billing.ReratingSum"),
        *("billing.Reconciliation", "billing.OutboxEvent", "billing.UsageDay"),
        *("billing.CheckedSum", "billing.KeyTotal", "billing.ArchivedMonth", "billing.ArchivedFile"),
        *("routing.ModelAlias", "routing.Node", "routing.Deployment", "routing.Replica"),
        *("routing.RouteRule", "routing.RouteTarget"),
    }
)
"""The tables that an export leaves out."""
