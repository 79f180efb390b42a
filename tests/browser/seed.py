"""What the site's home has, made by `tests.stack.inside` there: fake models, tenants with people in every role."""

from __future__ import annotations

from datetime import timedelta

from django.test import Client
from django.utils import timezone

from base.sealing import unseal
from base.units import MICRO
from billing.models import CreditGrant, Plan, UsageRollup, Wallet
from billing.services import cards, credits, plans, wallets
from gateway.runtime.models import RefusedRequest
from routing.models import PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from routing.services.defaults import ensure_default_routes
from tenancy.models import Membership, OutgoingMail, Project, SignInLink, Tenant, User
from tenancy.services import admin_keys, keys
from tenancy.services.links import mint_link
from tenancy.services.members import invite_by_mail

MARKDOWN = """## Rivers

A river **carries** water to the sea, see [the source](https://example.com/river).

| river | km |
|:------|---:|
| Rhine | 1230 |

1. rain

2. spring

```python
def flow():
    return "down"
```

The end."""
EVIL = """<img src=x onerror="window.broken=1"> <script>window.broken=1</script>

[click](javascript:window.broken=1) ![pixel](https://tracker.example/p.png) <b onclick="window.broken=1">bold</b>

<https://safe.example/>"""
MODELS = {
    "river": {"text": MARKDOWN, "delay": 0.002, "cached": 0.5},
    "evil": {"text": EVIL},
    "endless": {"tokens": 2000, "hang_at": 6},
    "failing": {"tokens": 8, "error_at": 4},
    "broken": {"tokens": 8, "error_at": 1},
    "steady": {"tokens": 400},
    "echo": {"echo": True},
    "seer": {"echo": True, "images": "data"},
    "slow": {"tokens": 40, "delay": 0.3},
    "fields": {"text": '{"order": "*4810376*", "number": 12345678901234567890, "phone": null}'},
    "sorter": {},
    "thinker": {"thinks": True, "text": "<think> Let me see. </think> Yes."},
}
RATES = {0: {"input": 2 * MICRO, "cache_read": MICRO // 2, "output": 8 * MICRO}}
PEOPLE = {"owner": "owner", "member": "member", "billing": "billing"}
LINKS = 3


def make_tenant(slug: str, plan: str, credit: int) -> Tenant:
    tenant = Tenant.objects.create(slug=slug, name=slug.title())
    Project(tenant=tenant, name="Default").save(force_insert=True)
    wallet = wallets.open_wallet(tenant_id=tenant.id)
    plans.subscribe(tenant.id, plan)
    if credit:
        credits.grant(wallet_id=wallet.id, amount=credit, kind=CreditGrant.Kind.PAID, key=f"seed:{slug}")
    return tenant


def join(tenant: Tenant, email: str, role: str) -> User:
    user = User.objects.filter(email=email).first() or User.objects.create_user(email)
    Membership(tenant=tenant, user=user, role=role).save(force_insert=True)
    return user


def make() -> dict[str, list[str]]:
    """Make it all; return unused sign-in links by the name of who has them."""
    plans.ensure_default_plans()
    broke = Plan.objects.create(slug="broke", name="Broke")
    base = plans.latest_version("business")
    terms = {name: getattr(base, name) for name in plans.TERMS}
    plans.publish_version(broke, **{**terms, "monthly_credits": 0, "slice_tokens": 16})
    cards.publish("fake", RATES)
    for name, options in MODELS.items():
        add_model(
            name=name,
            kinds=["classification" if name == "sorter" else "chat"],
            context_length=8192,
            rate_card="fake",
            source="",
            backend="fake",
            options=options,
            description=f"A fake model: {name}",
        )
    ensure_default_routes()
    for name, task in (("fields", "extract"), ("sorter", "classify")):
        rule = RouteRule.objects.create(name=name, task=task, examples=[f"Please {task} this."])
        RouteTarget.objects.create(rule=rule, model=PublicModel.objects.get(name=name))
    acme = make_tenant("acme", "business", 0)
    poor = make_tenant("poor", "broke", 900)
    empty = make_tenant("empty", "broke", 0)
    private = make_tenant("private", "business", 0)
    Tenant.objects.filter(pk=private.pk).update(response_storage=Tenant.Storage.FORBIDDEN)
    users = {name: join(acme, f"{name}@acme.example", role) for name, role in PEOPLE.items()}
    join(poor, "poor@acme.example", "owner")
    users["private"] = join(private, "private@private.example", "owner")
    users["poor"] = User.objects.get(email="poor@acme.example")
    users["both"] = join(acme, "both@acme.example", "member")
    join(poor, "both@acme.example", "member")
    users["broke"] = join(empty, "broke@empty.example", "member")
    users["boss"] = join(empty, "boss@empty.example", "owner")
    make_examples()
    long = make_tenant("long", "business", 5 * MICRO)
    users["long"] = join(long, f"{'long' * 12}@long.example", "owner")
    users["operator"] = User.objects.create_superuser("operator@sluice.example")
    links = {name: [mint_link(user=user) for _ in range(LINKS)] for name, user in users.items()}
    later = timezone.now() + timedelta(days=1)  # the last test may come after their 15 minutes
    SignInLink.objects.update(expires_at=later)
    return links


OF_EXAMPLES = {"answers": "chat", "vectors": "embedding", "pairs": "score", "sluice-desk-labels": "classification"}
"""A model of each kind, which are all that the tenant of the documents' examples may use."""


def make_examples() -> None:
    """Make the tenant with whose keys the documents' examples run; it stores responses."""
    for name, kind in OF_EXAMPLES.items():
        add_model(
            name=name, kinds=[kind], context_length=8192, rate_card="fake", source="", backend="fake",
            options={"text": "Paris.", "guides": True} if kind == "chat" else {},
        )  # fmt: skip
    rule = RouteRule.objects.create(name="examples", plan="examples", priority=1)
    RouteTarget.objects.create(rule=rule, model=PublicModel.objects.get(name="answers"))
    base = plans.latest_version("business")
    terms = {name: getattr(base, name) for name in plans.TERMS} | {"allowed_models": [*OF_EXAMPLES, "auto"]}
    plans.publish_version(Plan.objects.create(slug="examples", name="Examples"), **terms)
    tenant = make_tenant("examples", "examples", MICRO)
    Tenant.objects.filter(pk=tenant.pk).update(response_storage=Tenant.Storage.BY_DEFAULT)
    join(tenant, "reader@examples.example", "owner")


def keys_of_examples() -> dict[str, str]:
    """Return a key for everything and an admin key of that tenant, as the examples' environment has them."""
    tenant = Tenant.objects.get(slug="examples")
    owner = User.objects.get(email="reader@examples.example")
    scopes, project = ["inference", "management"], Project.objects.of(tenant).get()
    _, key = keys.create_key(tenant=tenant, project=project, name="examples", scopes=scopes, created_by=owner)
    _, admin_key = admin_keys.create_admin_key(tenant=tenant, name="examples", created_by=owner)
    return {"SLUICE_API_KEY": key, "SLUICE_ADMIN_KEY": admin_key}


def set_projects_aside(slug: str) -> None:
    """Rename what examples made, so that their names are free."""
    tenant = Tenant.objects.get(slug=slug)
    for project in Project.objects.of(tenant).exclude(name="Default"):
        Project.objects.of(tenant).filter(pk=project.pk).update(name=f"{project.name[:60]} {project.pk}")


def pages_of_examples(host: str, addresses: list[str]) -> dict[str, str]:
    """Return those pages as the tenant's owner has them."""
    client = Client(headers={"host": host})
    backend = "django.contrib.auth.backends.ModelBackend"
    client.force_login(User.objects.get(email="reader@examples.example"), backend=backend)
    return {address: client.get(address).content.decode() for address in addresses}


def grant(slug: str, amount: int) -> None:
    """Give a tenant so many µcr."""
    wallet = Wallet.objects.get(tenant__slug=slug)
    credits.grant(wallet_id=wallet.id, amount=amount, kind=CreditGrant.Kind.PAID, key="browser")


def secret(slug: str) -> str:
    """Return the secret of a new key of a tenant."""
    tenant = Tenant.objects.get(slug=slug)
    project = Project.objects.of(tenant).get(name="Default")
    return keys.create_key(tenant=tenant, project=project, name="a program", scopes=["inference"])[1]


def invited(slug: str, email: str) -> str:
    """Make a tenant and invite its owner; return the text of the mail."""
    invite_by_mail(tenant=make_tenant(slug, "business", 5 * MICRO), email=email, role="owner")
    return unseal(OutgoingMail.objects.filter(to=email).latest("pk").sealed_text)


def is_kept(request: str) -> bool:
    """Return whether a refused request has been written."""
    return RefusedRequest.objects.unscoped().filter(id=request).exists()


def key(slug: str, name: str) -> None:
    """Give a tenant's first project a key."""
    tenant = Tenant.objects.get(slug=slug)
    project = Project.objects.of(tenant).order_by("created_at").first()
    keys.create_key(tenant=tenant, project=project, name=name, scopes=["inference"])


def joined(slug: str, email: str, role: str) -> None:
    """Add a member to a tenant."""
    join(Tenant.objects.get(slug=slug), email, role)


def spend(slug: str) -> None:
    """Let a tenant have used something in this hour."""
    tenant = Tenant.objects.get(slug=slug)
    project = Project.objects.of(tenant).order_by("created_at").first()
    hour = timezone.now().replace(minute=0, second=0, microsecond=0)
    sums = {"requests": 3, "input_tokens": 300, "output_tokens": 90, "charge": 2 * MICRO}
    UsageRollup.objects.get_or_create(hour=hour, tenant=tenant.id, project=project.id, model="river", defaults=sums)


def link(email: str) -> str:
    """Return a new sign-in link of the person."""
    return mint_link(user=User.objects.get(email=email))
