"""Records rows created, changed and deleted of the models named here, by Django's signals.

Every write to them goes through `save`, `create` or `delete`, whichever app it is in, and a change of credit by people
sends a signal: billing and routing need not know of the trail. What a service does by `update` it records itself
(docs/decisions/0007-audit-trail.md).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import UUID

from allauth.mfa.models import Authenticator
from django.db.models import Model
from django.db.models.signals import m2m_changed, post_delete, post_save, pre_delete, pre_save

from base.units import format_credits
from billing.models import (
    Invoice,
    LedgerTransfer,
    Plan,
    PlanMove,
    PlanVersion,
    Purchase,
    Rate,
    RateCard,
    RateCardVersion,
    RecurringGrant,
    Rerating,
    Subscription,
    Voucher,
    VoucherBatch,
    Wallet,
)
from billing.services.credits import credit_changed
from routing.models import Adapter, Deployment, Fetch, ModelAlias, Node, PublicModel, Replica, RouteRule, RouteTarget
from tenancy.audit.trail import HIDDEN, record
from tenancy.models import AdminAPIKey, APIKey, Invitation, Membership, Project, SignInLink, Tenant, User, WebHook

_HELD = "_audit_before"
Values = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Tracked:
    """A tracked model: its name in actions, the fields that are recorded, and whose tenant a row is.

    Of `hidden` fields only the fact of a change is recorded, not the value.
    """

    model: type[Model]
    word: str
    fields: tuple[str, ...]
    tenant: Callable[[Any], UUID | None] = lambda row: getattr(row, "tenant_id", None)
    hidden: tuple[str, ...] = ()

    def columns(self) -> dict[str, str]:
        """Return the attribute of each field."""
        return {name: self.model._meta.get_field(name).attname for name in self.fields}  # type: ignore[union-attr]


def _all_but(model: type[Model], *besides: str) -> tuple[str, ...]:
    names = (field.name for field in model._meta.concrete_fields if not field.primary_key)
    return tuple(name for name in names if name not in {"created_at", "updated_at", *besides})


_KEY_FIELDS = (
    "name",
    "project",
    "scopes",
    "expires_at",
    "allowed_models",
    "networks",
    "request_limit",
    "credit_limit",
    "token_limit",
    "concurrency",
    "last_four",
    "previous_last_four",
    "previous_until",
    "rotated_at",
)
_RECURRING_FIELDS = (
    *("kind", "amount", "priority", "window", "anchor", "time_zone", "until", "windows", "rollover", "state", "reason"),
)
_RERATING_FIELDS = (
    *("since", "until", "tenants", "model_names", "card", "version", "prices", "cards", "multiplier_was"),
    *("multiplier_bp", "commit", "follows", "what_if", "reason"),
)
TRACKED = (
    Tracked(Tenant, "tenant", _all_but(Tenant), tenant=lambda row: row.pk),
    Tracked(Project, "project", _all_but(Project, "tenant")),
    Tracked(Membership, "membership", ("user", "role", "is_active")),
    Tracked(APIKey, "key", _KEY_FIELDS),
    Tracked(AdminAPIKey, "admin_key", ("name", "expires_at")),
    Tracked(WebHook, "web_hook", ("url", "is_active")),
    Tracked(Invitation, "invitation", ("email", "role", "expires_at")),
    Tracked(SignInLink, "sign_in_link", ("user", "expires_at")),
    Tracked(User, "user", ("email", "name", "is_active", "is_staff", "is_superuser", "password"), hidden=("password",)),
    Tracked(Authenticator, "second_factor", ("user", "type")),
    Tracked(Subscription, "subscription", ("version", "next_version", "is_ending", "state", "time_zone")),
    Tracked(Wallet, "wallet", ("state",)),
    Tracked(RecurringGrant, "recurring_grant", _RECURRING_FIELDS, tenant=lambda row: row.wallet.tenant_id),
    Tracked(Invoice, "invoice", ("number", "amount", "state"), tenant=lambda row: row.wallet.tenant_id),
    Tracked(Purchase, "purchase", ("amount", "price", "currency", "state", "payment", "taken", "lost")),
    Tracked(VoucherBatch, "vouchers", _all_but(VoucherBatch, "key")),
    Tracked(Voucher, "voucher", ("batch", "last_four", "withdrawn_at")),
    Tracked(Plan, "plan", _all_but(Plan)),
    Tracked(PlanVersion, "plan_version", _all_but(PlanVersion)),
    Tracked(PlanMove, "plan_move", ("plan", "to", "at_once", "only_adds", "total")),
    Tracked(RateCard, "rate_card", _all_but(RateCard)),
    Tracked(Rerating, "rerating", _RERATING_FIELDS),
    Tracked(PublicModel, "model", _all_but(PublicModel)),
    Tracked(ModelAlias, "alias", _all_but(ModelAlias)),
    Tracked(Fetch, "fetch", ("source", "name", "options")),
    Tracked(Adapter, "adapter", _all_but(Adapter), tenant=lambda row: row.model.tenant_id),
    Tracked(Node, "node", _all_but(Node, "seen_at")),
    Tracked(Deployment, "deployment", _all_but(Deployment), hidden=("credential",)),
    Tracked(Replica, "replica", _all_but(Replica)),
    Tracked(RouteRule, "route_rule", _all_but(RouteRule)),
    Tracked(RouteTarget, "route_target", _all_but(RouteTarget)),
)


def connect() -> None:
    """Connect the signal receivers; call once per process."""
    for tracked in TRACKED:
        for signal, receiver in (
            (pre_save, _before_save),
            (post_save, _after_save),
            (pre_delete, _before_delete),
            (post_delete, _after_delete),
        ):
            name = f"audit.{receiver.__name__}.{tracked.word}"
            signal.connect(partial(receiver, tracked), sender=tracked.model, weak=False, dispatch_uid=name)
    post_save.connect(_prices, sender=RateCardVersion, dispatch_uid="audit.prices")
    credit_changed.connect(_credit, dispatch_uid="audit.credit")
    m2m_changed.connect(_groups, sender=User.groups.through, dispatch_uid="audit.groups")


def _before_save(tracked: Tracked, instance: Model, raw: bool = False, update_fields: Any = None, **_: Any) -> None:
    """Read the stored values if a tracked field may change."""
    instance.__dict__.pop(_HELD, None)
    is_new = instance._state.adding  # noqa: SLF001 - documented
    if raw or is_new or (update_fields is not None and not set(update_fields) & set(tracked.fields)):
        return
    instance.__dict__[_HELD] = _stored(tracked, instance)


def _after_save(tracked: Tracked, instance: Model, created: bool, raw: bool = False, **_: Any) -> None:
    before: Values | None = instance.__dict__.pop(_HELD, None)
    if raw or (before is None and not created):
        return
    now = _stored(tracked, instance)
    before = before or {}
    changed = [name for name in tracked.fields if created or before.get(name) != now[name]]
    if not created and "password" in changed and _is_rehashed(instance):
        changed.remove("password")
    if changed:
        record(
            f"{tracked.word}.{'created' if created else 'changed'}",
            instance,
            tenant=tracked.tenant(instance),
            before={name: _shown(tracked, name, before[name]) for name in changed if name in before},
            after={name: _shown(tracked, name, now[name]) for name in changed},
        )


def _is_rehashed(row: Model) -> bool:
    """Whether the row is a user whose password is stored under newer parameters, as Django does at a sign-in: no
    password was set.
    """
    return isinstance(row, User) and row.has_usable_password() and getattr(row, "_password", None) is None


def _before_delete(tracked: Tracked, instance: Model, **_: Any) -> None:
    instance.__dict__[_HELD] = _stored(tracked, instance)


def _after_delete(tracked: Tracked, instance: Model, **_: Any) -> None:
    before: Values = instance.__dict__.pop(_HELD, {})
    shown = {name: _shown(tracked, name, value) for name, value in before.items()}
    record(f"{tracked.word}.deleted", instance, tenant=tracked.tenant(instance), before=shown)


def _stored(tracked: Tracked, instance: Model) -> Values:
    """Return the fields as the database has them; assigned values may be of another type."""
    columns = tracked.columns()
    every = tracked.model._base_manager  # noqa: SLF001 - documented: past the tenants' scope
    row = every.filter(pk=instance.pk).values(*columns.values()).first() or {}
    return {name: row.get(column) for name, column in columns.items()}


def _shown(tracked: Tracked, name: str, value: Any) -> Any:
    return HIDDEN if name in tracked.hidden else value


def _prices(instance: RateCardVersion, update_fields: Any = None, **_: Any) -> None:
    """Record a publication with the prices before and after, in credits per million tokens by tier and class."""
    if instance.published_at is None or (update_fields is not None and "published_at" not in update_fields):
        return
    earlier = RateCardVersion.objects.filter(card=instance.card_id, effective_from__lt=instance.effective_from)
    last = earlier.exclude(published_at=None).order_by("-effective_from").first()
    record("prices.published", instance, before=_rates(last), after=_rates(instance))


def _rates(version: RateCardVersion | None) -> Values:
    if version is None:
        return {}
    rates = Rate.objects.filter(version=version).order_by("tier_min_context", "usage_class")
    by_class = {f"{rate.usage_class} from {rate.tier_min_context}": format_credits(rate.rate) for rate in rates}
    fee = format_credits(version.request_fee)
    return {**by_class, "request_fee": fee, "effective_from": version.effective_from}


_CODES = {
    LedgerTransfer.Code.GRANT: "credit.granted",
    LedgerTransfer.Code.VOID: "credit.voided",
    LedgerTransfer.Code.REFUND: "credit.refunded",
    LedgerTransfer.Code.ADJUSTMENT: "credit.adjusted",
    LedgerTransfer.Code.REQUEST_REFUND: "request.refunded",
}


def _credit(transfer: LedgerTransfer, amount: int, **_: Any) -> None:
    """Record changes of credit that people make; those of plans and requests are in the ledger only."""
    if transfer.actor == "sluice":
        return
    wallet = transfer.credit.wallet or transfer.debit.wallet
    if wallet is None and transfer.grant is not None:  # a refund of what has ended, which goes to breakage
        wallet = transfer.grant.wallet
    grant = transfer.grant_id if transfer.amount == abs(amount) else None  # None: several, as the ledger has them
    after = {"credits_micro": amount, "reason": transfer.reason, "grant": grant}
    if transfer.code == LedgerTransfer.Code.GRANT and transfer.grant is not None and transfer.grant.restriction:
        after["models"] = transfer.grant.restriction.split("\n")
    if transfer.code == LedgerTransfer.Code.REFUND and transfer.grant is not None:
        after |= {name: getattr(transfer.grant, name) for name in ("refunded_amount", "currency", "refund_reference")}
    action = _CODES[LedgerTransfer.Code(transfer.code)]
    record(action, transfer, tenant=None if wallet is None else wallet.tenant_id, after=after)


def _groups(instance: Any, action: str, **_: Any) -> None:
    """Record the groups that an operator has after a change."""
    if action in {"post_add", "post_remove", "post_clear"} and isinstance(instance, User):
        record("user.groups", instance, after={"groups": sorted(instance.groups.values_list("name", flat=True))})
