"""A tenant with one of each thing that has a page, all with names as long as names may be."""

from __future__ import annotations

import json
from datetime import timedelta

from django.utils import timezone

from base.ids import uuid7
from base.units import MICRO
from billing.models import (
    CreditGrant,
    Invoice,
    Plan,
    RecurringGrant,
    Rerating,
    ScheduledGrant,
    SpendBudget,
    UsageRecord,
    VoucherBatch,
    Wallet,
)
from billing.services import cards, credits, invoices, plans, recurring, reratings, vouchers
from billing.services.reratings import Terms
from gateway.batches.models import Batch
from gateway.conversations import Conversation
from gateway.runtime.models import RefusedRequest
from routing.models import Adapter, Deployment, Fetch, Node, PublicModel, RouteRule
from tenancy.models import AdminAPIKey, APIKey, Invitation, Membership, Project, Tenant, User
from tenancy.services import admin_keys, budgets, keys
from tenancy.services.members import invite_member
from tests.browser.seed import RATES, join

LONG = (
    "The Society for the Improvement of Long Names and of Their Readers, "
    "in Rooms Narrower than Anybody Had Foreseen in Years"
)
SLUG = (
    "one-hundred-and-twenty-characters-that-somebody-wrote-without-a-space-to-see-w"
    "here-it-would-break-the-page-of-the-site-x"
)
ADDRESS = f"{'member' * 10}@long.example"


def fill() -> str:
    """Give the tenant `long` its names, people, keys, projects, a batch and a shared conversation; the site a model, a
    plan, a rule and a node with such names. Return a key's secret.
    """
    now = timezone.now()
    Tenant.objects.filter(slug="long").update(name=LONG)
    tenant = Tenant.objects.get(slug="long")
    owner = User.objects.get(memberships__tenant=tenant, memberships__role="owner")
    project = Project.objects.of(tenant).get()
    User.objects.filter(pk__in=[owner.pk, join(tenant, ADDRESS, "member").pk]).update(name=LONG)
    Project(tenant=tenant, name=LONG).save(force_insert=True)
    made, secret = keys.create_key(tenant=tenant, project=project, name=LONG, scopes=["inference"], created_by=owner)
    admin_keys.create_admin_key(tenant=tenant, name=LONG, created_by=owner)
    invite_member(tenant=tenant, email=f"{'invited' * 8}@long.example")
    wallet = Wallet.objects.get(tenant=tenant)
    credits.grant(wallet_id=wallet.pk, amount=MICRO, kind=CreditGrant.Kind.PROMOTIONAL, key="long")
    later = {"kind": CreditGrant.Kind.GOODWILL, "begins_at": now + timedelta(days=9), "reason": LONG, "key": "later"}
    credits.grant_later(wallet_id=wallet.pk, amount=MICRO, **later)
    often = {"kind": CreditGrant.Kind.PROMOTIONAL, "window": RecurringGrant.Window.WEEK, "rollover": 3, "windows": 3}
    for key in ("a", "b"):
        weekly = recurring.make(
            wallet_id=wallet.pk, amount=MICRO, key=key, reason=LONG, time_zone="America/Argentina/Buenos_Aires", **often
        )
    recurring.set_state(weekly.pk, RecurringGrant.State.PAUSED)
    for number in (1, 2):
        ends_at = now - timedelta(days=31 * number)
        one = Invoice.objects.create(wallet=wallet, number=number, ends_at=ends_at, amount=MICRO)
    invoices.pay(one.pk, reference=LONG, paid_amount=99, currency="EUR", actor="a")
    Batch(
        tenant=tenant, project=project, api_key=made.pk, endpoint="/v1/chat/completions", model=SLUG,
        input_file=uuid7(), status=Batch.Status.IN_PROGRESS, total=10, expires_at=now + timedelta(days=1),
    ).save(force_insert=True)  # fmt: skip
    words = {"turns": [{"id": "a", "parent": None, "role": "user", "content": LONG}], "leaf": "a", "settings": {}}
    Conversation(
        id=uuid7(), tenant=tenant, user=owner, title=LONG, content=json.dumps(words).encode(), words=LONG, size=9,
        changed_at=now, shared_at=now,
    ).save(force_insert=True)  # fmt: skip
    cards.publish(LONG[:100], RATES)
    model = PublicModel.objects.create(
        name=SLUG, kinds=["chat"], context_length=8192, rate_card=LONG[:100], description=f"{LONG} {LONG}"
    )
    Deployment.objects.create(
        name=SLUG[:80], model=model, backend="openai", source="http://127.0.0.1:9", options={"model": SLUG},
        is_active=False,
    )  # fmt: skip
    own = PublicModel.objects.create(name=f"long/{SLUG[:100]}", kinds=["chat"], context_length=9, tenant=tenant)
    Adapter.objects.create(model=own, base=model, config={}, rank=8, bytes=7)
    Fetch.objects.create(source=f"https://hub.example/{SLUG}", state=Fetch.State.FAILED, refusal=f"{SLUG} {LONG}")
    Node.objects.create(name=SLUG[:80], address="tcp://10.0.0.5:7411", public_key="0" * 40)
    RouteRule.objects.create(name=LONG[:80], plan="business", task="never", priority=10_000)
    base = plans.latest_version("business")
    terms = {name: getattr(base, name) for name in plans.TERMS} | {"allowed_models": [SLUG]}
    plans.publish_version(Plan.objects.create(slug=SLUG[:40], name=LONG[:80]), **terms)
    vouchers.make(
        key="long", count=2, note=LONG, amount=MICRO, made_by=LONG[:80], paid_amount=99, currency="EUR", uses=3
    )
    for by_operator in (False, True):
        budgets.make(
            tenant=tenant, scope="models", models=[SLUG], window="month", amount=MICRO, name=LONG[:80],
            by_operator=by_operator,
        )  # fmt: skip
    reratings.ask(Terms(since=now - timedelta(days=1), models=(SLUG,), multiplier=(10_000, 9_000)), asked_by=ADDRESS)
    return secret


def things() -> dict[str, list[str]]:
    """Return what stands in addresses by the folder before it, or by side and folder."""
    tenant = Tenant.objects.get(slug="long")

    def ids(rows) -> list[str]:
        return [str(rows.latest("pk").pk)]

    member = ids(Membership.objects.of(tenant).filter(user__email=ADDRESS))
    model = ids(PublicModel.objects.filter(name=SLUG))
    ran, refused = UsageRecord.objects.filter(tenant=tenant.pk), RefusedRequest.objects.unscoped().filter(tenant=tenant)
    return {
        "requests": [str(ran.latest("settled_at").request), *(str(one.pk) for one in refused.order_by("pk")[:2])],
        "engines": ids(Deployment.objects.filter(model__in=model)),
        "nodes": ids(Node.objects.all()),
        "money": ["models"],
        "run": ["billing.expiry"],
        "fetch": ids(Fetch.objects.all()),
        "new": model,
        "operate/models": model,
        "models": ids(Adapter.objects.filter(model__tenant=tenant)),
        "prices": [LONG[:100]],
        "plans": [SLUG[:40]],
        "routing": ids(RouteRule.objects.filter(name=LONG[:80])),
        "tenants": ["long"],
        "people": member,
        "operate/people": ids(User.objects.filter(email=ADDRESS)),
        "invitations": ids(Invitation.objects.of(tenant)),
        "vouchers": ids(VoucherBatch.objects.all()),
        "reratings": ids(Rerating.objects.all()),
        "budgets": ids(SpendBudget.objects.filter(wallet__tenant=tenant, by_operator=True)),
        "billing/budgets": ids(SpendBudget.objects.filter(wallet__tenant=tenant, by_operator=False)),
        "<str:month>": ["jsonl"],
        "statements": [f"{timezone.now():%Y-%m}"],
        "grants": [str(one.pk) for one in CreditGrant.objects.filter(wallet__tenant=tenant)],
        "scheduled": ids(ScheduledGrant.objects.filter(wallet__tenant=tenant, kind="goodwill")),
        "recurring": ids(RecurringGrant.objects.filter(wallet__tenant=tenant)),
        "<uuid:pk>": ["paused", "active", "ended"],
        "invoices": ids(Invoice.objects.filter(wallet__tenant=tenant)),
        "keys": ids(APIKey.objects.of(tenant)),
        "admin": ids(AdminAPIKey.objects.of(tenant)),
        "projects": ids(Project.objects.of(tenant).filter(name=LONG)),
        "conversations": ids(Conversation.objects.of(tenant)),
        "shared": ids(Conversation.objects.of(tenant)),
        "batches": ids(Batch.objects.of(tenant)),
        "files": [str(uuid7())],
    }
