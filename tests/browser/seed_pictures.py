"""The site of the documents' pictures: tenants, models, two months of usage, the same each time but for the dates."""

from __future__ import annotations

import random
from datetime import timedelta

from django.utils import timezone

from base.ids import day_of, uuid7
from base.units import MICRO
from billing.models import OutboxEvent, UsageRecord, Wallet
from billing.rating import charge
from billing.selectors.prices import prices_at
from billing.services import cards, plans
from billing.services.rollups import consume_usage
from gateway.runtime.models import RefusalCount
from routing.models import Deployment, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from routing.services.defaults import ensure_default_routes
from tenancy.models import APIKey, Project, Tenant, User
from tenancy.services import keys
from tenancy.services.links import mint_link
from tenancy.services.members import invite_by_mail
from tests.browser.seed import join, make_tenant

ANSWER = """A **write-ahead log** keeps a promise: what a database calls *committed* survives a power cut. A change is
appended to the log and flushed, only then is the client told; the tables follow later. After a crash, what they lack is
done again:

```python
for record in log.since(checkpoint):
    if record.lsn > page_of(record).lsn:
        apply(record)
```
"""
TICKET = '{"label": "billing", "order": "4810376", "wish": "refund", "language": "en"}'
MODELS = {  # the fake engine's options; credits for 10⁶ tokens read, cached, written; share of the requests
    "qwen2.5-7b-instruct": ({"text": ANSWER, "delay": 0.012, "cached": 0.4}, (200, 50, 800), 55),
    "llama-3.1-70b": (
        {"text": ANSWER.replace("keeps a promise: what", "makes sure that what"), "delay": 0.02},
        (900, 225, 3_000),
        15,
    ),
    "sluice-desk": ({"text": TICKET, "cached": 0.7}, (50, 10, 200), 30),
}
TENANTS = {  # plan, credit, share of the requests
    "Northwind Press": ("business", 1_500, 40),
    "Harbour Clinic": ("max", 40_000, 25),
    "Tidewater Logistics": ("business", 20_000, 15),
    "Juniper Books": ("business", 900, 10),
    "Kestrel Insurance": ("business", 9_000, 7),
    "Old Mill Bakery": ("free", 0, 2),
    "Saltmarsh Radio": ("free", 40, 1),
}
KEYS = ("website", "ticket triage", "nightly summaries")
REQUESTS = 4_000
DAYS = 45


def make() -> dict[str, list[str]]:
    """Make it all; return unused sign-in links by the name of who has them."""
    plans.ensure_default_plans()
    for name, (options, rates, _) in MODELS.items():
        read, cached, written = (int(rate * MICRO) for rate in rates)
        cards.publish(name, {0: {"input": read, "cache_read": cached, "output": written}})
        add_model(
            name=name, kinds=["chat"], context_length=32_768, rate_card=name, source="", backend="fake",
            options=options, description={"sluice-desk": "Fields of support tickets"}.get(name, "Writes and explains"),
        )  # fmt: skip
    cards.publish("bge-m3", {0: {"input": MICRO // 10, "cache_read": MICRO // 10, "output": 0}})
    add_model(
        name="bge-m3", kinds=["embedding"], context_length=8192, rate_card="bge-m3", source="", backend="fake",
        description="Vectors for search",
    )  # fmt: skip
    add_model(
        name="mistral-small-24b", kinds=["chat"], context_length=32_768, rate_card="llama-3.1-70b",
        source="http://127.0.0.1:9", backend="openai", options={"model": "mistral-small", "dialect": "vllm"},
    )  # fmt: skip
    ensure_default_routes()
    for name, task, model, examples in (
        (
            "support tickets",
            "extract",
            "sluice-desk",
            ["Give the fields of this ticket: I was charged twice for order 1234567, please send the money back."],
        ),
        ("programs", "code", "llama-3.1-70b", ["Write a function that …", "Why does this test fail?"]),
    ):
        rule = RouteRule.objects.create(name=name, task=task, priority=200 + len(name), examples=examples)
        RouteTarget.objects.create(rule=rule, model=PublicModel.objects.get(name=model))
    for name, (plan, credit, _) in TENANTS.items():
        slug = name.lower().replace(" ", "-")
        tenant = make_tenant(slug, plan, credit * MICRO)
        Tenant.objects.filter(pk=tenant.pk).update(name=name)
        join(tenant, f"owner@{slug}.example", "owner")
    tenant = Tenant.objects.get(slug="northwind-press")
    project = Project.objects.of(tenant).get()
    owner = User.objects.get(email="owner@northwind-press.example")
    for name, role in (("ada", "admin"), ("ben", "member"), ("accounts", "billing")):
        join(tenant, f"{name}@northwind-press.example", role)
    invite_by_mail(tenant=tenant, email="carla@northwind-press.example", by=owner)
    for name in KEYS:
        keys.create_key(tenant=tenant, project=project, name=name, scopes=["inference"], created_by=owner)
    operator = User.objects.create_superuser("operator@sluice.example")
    return {"operator": [mint_link(user=operator)], "owner": [mint_link(user=owner)]}


def use() -> None:
    """Let all have used it for some weeks, more on working days; some requests were refused."""
    drawn, now = random.Random(7), timezone.now()
    projects = {one.tenant.name: one for one in Project.objects.unscoped().select_related("tenant")}
    wallets = dict(Wallet.objects.values_list("tenant", "pk"))
    deployments = dict(Deployment.objects.values_list("model__name", "pk"))
    made = list(APIKey.objects.unscoped().filter(tenant__slug="northwind-press").values_list("pk", flat=True))
    prices = prices_at(now)
    rows = []
    while len(rows) < REQUESTS:
        ago = timedelta(minutes=drawn.uniform(1, 55)) if len(rows) < 240 else timedelta(days=drawn.uniform(0, DAYS))
        at = now - ago
        if at.weekday() > 4 and ago > timedelta(hours=2) and drawn.random() < 0.7:
            continue
        [tenant] = drawn.choices(list(TENANTS), [share for *_, share in TENANTS.values()])
        [model] = drawn.choices(list(MODELS), [share for *_, share in MODELS.values()])
        project, request = projects[tenant], uuid7(int(at.timestamp() * 1000))
        read, written = drawn.randrange(200, 3_000), drawn.randrange(40, 700)
        cached = int(read * drawn.random() * 0.6)
        first = drawn.randrange(90, 420)
        tokens = {"input": read - cached, "cache_read": cached, "output": written}
        rows.append(
            UsageRecord(
                id=request, request=request, day=day_of(request), tenant=project.tenant_id, project=project.pk,
                api_key=drawn.choice(made) if tenant == "Northwind Press" else None, wallet=wallets[project.tenant_id],
                model=model, deployment=deployments[model], card_version=prices[model].id, endpoint="chat",
                input_tokens=read - cached, cache_read_tokens=cached, output_tokens=written,
                charge=charge(tokens, prices[model], 10_000), held=2 * MICRO,
                finish=drawn.choice(["stop"] * 9 + ["length"]), ttft_ms=first, duration_ms=first + 11 * written,
                reserved_at=at, settled_at=at + timedelta(seconds=3),
            )
        )  # fmt: skip
    UsageRecord.objects.bulk_create(rows, batch_size=500)
    for start in range(0, REQUESTS, 500):
        asked = [str(one.request) for one in rows[start : start + 500]]
        OutboxEvent.objects.create(topic="usage", payload={"records": asked})
    while consume_usage():
        pass
    for hours, status, code, count in ((3, 429, "rate_limit_exceeded", 14), (9, 404, "model_not_found", 2)):
        at = (now - timedelta(hours=hours)).replace(second=0, microsecond=0)
        RefusalCount.objects.create(
            id=uuid7(), minute=at, tenant=projects["Northwind Press"].tenant, api_key_id=made[0], status=status,
            code=code, count=count, last_request=uuid7(), last_at=at,
        )  # fmt: skip


def secret() -> str:
    """Return the secret of a new key of the tenant that is looked at."""
    project = Project.objects.unscoped().get(tenant__slug="northwind-press")
    return keys.create_key(tenant=project.tenant, project=project, name="bookshop", scopes=["inference"])[1]
