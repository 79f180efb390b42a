from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from base.trigger_set import _drop
from billing.models import Plan, PlanVersion, Rate, RateCard, RateCardVersion, SpendBudget, Subscription, Wallet
from gateway.runtime import epoch_triggers
from routing.models import Adapter, Deployment, ModelAlias, Node, PublicModel, Replica, RouteRule, RouteTarget
from tenancy.models import APIKey, CatalogueEpoch, Membership, Project, Tenant, TenantEpoch, User

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


def settled_epoch():
    """The epoch as it would be after a commit here: deferred triggers fire, and may fire again."""
    connection.check_constraints()
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT set_config('sluice.epoch_bumped', '', true), set_config('sluice.tenant_bumped', '', true)"
            )
    row = CatalogueEpoch.objects.get(id=1)
    return row.epoch, row.sequence


@pytest.fixture
def rows():
    now = timezone.now()
    tenant = Tenant.objects.create(name="Acme", slug="acme")
    project = Project.objects.create(tenant=tenant, name="Default")
    user = User.objects.create_user("ann@example.com")
    plan = Plan.objects.create(slug="odd", name="Odd")
    version = PlanVersion.objects.create(
        plan=plan, number=1, request_limit=1, request_burst=1, credit_limit=1, credit_burst=1, concurrency=1
    )
    card = RateCard.objects.create(name="odd")
    card_version = RateCardVersion.objects.create(card=card, effective_from=now)
    model = PublicModel.objects.create(name="m", context_length=10, rate_card="odd")
    other = PublicModel.objects.create(name="o", context_length=10, rate_card="odd")
    deployment, node = Deployment.objects.create(name="d", model=model), Node.objects.create(name="n")
    rule = RouteRule.objects.create(name="r")
    return {
        "tenant": tenant,
        "project": project,
        "user": user,
        "key": APIKey.objects.create(tenant=tenant, project=project, name="k", digest="d"),
        "membership": Membership.objects.create(tenant=tenant, user=user),
        "plan": plan,
        "version": version,
        "subscription": Subscription.objects.create(tenant=tenant, version=version, anchor=now),
        "budget": SpendBudget.objects.create(
            wallet=Wallet.objects.create(tenant=tenant, name="budgeted"),
            tenant=tenant.pk,
            number=1,
            scope="tenant",
            window="day",
            anchor=now,
        ),
        "card": card,
        "card_version": card_version,
        "rate": Rate.objects.create(version=card_version, usage_class="input", rate=1),
        "model": model,
        "alias": ModelAlias.objects.create(name="a", target="m"),
        "deployment": deployment,
        "node": node,
        "replica": Replica.objects.create(deployment=deployment, node=node),
        "rule": rule,
        "adapter": Adapter.objects.create(model=other, base=model, config={}, rank=8, bytes=1),
        "target": RouteTarget.objects.create(rule=rule, model=model),
    }


OF_A_TENANT = {"tenant", "project", "key", "membership", "subscription", "budget"}
BUMPING = [
    ("tenant", "slug", "other"),
    ("project", "name", "other"),
    ("user", "is_active", False),
    ("key", "revoked_at", timezone.now()),
    ("key", "expires_at", timezone.now()),
    ("key", "scopes", ["management"]),
    ("membership", "role", "owner"),
    ("membership", "is_active", False),
    ("plan", "is_offered", False),
    ("subscription", "state", "ended"),
    ("budget", "amount", 7),
    ("card", "name", "other"),
    ("card_version", "note", "x"),
    ("rate", "rate", 7),
    ("model", "context_length", 11),
    ("alias", "target", "o"),
    ("deployment", "options", {"a": 1}),
    ("deployment", "is_active", False),
    ("node", "is_active", False),
    ("replica", "weight", 2),
    ("rule", "min_prompt_tokens", 100),
    ("target", "weight", 3),
    ("adapter", "rank", 4),
]


def update(row, field, value):
    type(row)._base_manager.filter(pk=row.pk).update(**{field: value})


@pytest.mark.parametrize(("name", "field", "value"), BUMPING)
def test_each_write_bumps(rows, name, field, value):
    before = settled_epoch()
    update(rows[name], field, value)
    after = settled_epoch()
    if name in OF_A_TENANT:
        assert (after[0], TenantEpoch.objects.get(tenant=rows["tenant"].id).sequence) == (before[0], after[1])
        assert after[1] > before[1]
    else:
        assert after == (before[0] + 1, before[1])


@pytest.mark.parametrize("name", ["tenant", "project"])
@pytest.mark.parametrize("is_active", [False, True])
def test_what_ends_or_comes_back_with_its_adapters_bumps_the_catalogue_too(rows, name, is_active):
    """They are offered to workers no more, or again."""
    update(rows[name], "is_active", not is_active)
    before = settled_epoch()
    update(rows[name], "is_active", is_active)
    after = settled_epoch()
    assert after[0] == before[0] + 1
    assert after[1] > before[1]


def test_row_that_moves_to_another_tenant_bumps_both(rows):
    other = Tenant.objects.create(name="Other", slug="other")
    before = settled_epoch()
    update(rows["membership"], "tenant", other)
    settled_epoch()
    found = dict(TenantEpoch.objects.values_list("tenant", "sequence"))
    assert min(found[rows["tenant"].id], found[other.id]) > before[1]


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("key", "last_used_at", timezone.now()),
        ("user", "last_login", timezone.now()),
        ("user", "name", "Ann"),
        ("subscription", "granted_until", timezone.now() + timedelta(days=30)),
        ("tenant", "name", "Acme"),  # as it was
        ("node", "seen_at", timezone.now()),
    ],
)
def test_what_is_not_cached_does_not_bump(rows, name, field, value):
    before = settled_epoch()
    update(rows[name], field, value)
    assert settled_epoch() == before


def test_inserts_and_deletes_bump(rows):
    for name in ("target", "key", "membership"):
        before = settled_epoch()
        rows[name].delete()
        between = settled_epoch()
        assert between > before
        rows[name].save(force_insert=True)
        assert settled_epoch() > between


def test_unwatched_tables_do_not_bump(rows):
    before = settled_epoch()
    Wallet.objects.create(tenant=rows["tenant"])
    assert settled_epoch() == before


def test_every_watched_model_has_a_case(rows):
    tested = {type(rows[name])._meta.label for name, _, _ in BUMPING} | {"billing.PlanVersion"}  # immutable: insert
    assert tested == {watched.model for watched in epoch_triggers.WATCHED}


def test_plan_version_insert_bumps(rows):
    before = settled_epoch()
    PlanVersion.objects.create(
        plan=rows["plan"], number=2, request_limit=1, request_burst=1, credit_limit=1, credit_burst=1, concurrency=1
    )
    assert settled_epoch() == (before[0] + 1, before[1])


def test_missing_names_what_was_dropped_and_install_restores_it():
    assert epoch_triggers.missing() == []
    name, table = next(iter(epoch_triggers.EPOCH_TRIGGERS.present(connection).items()))
    with connection.cursor() as cursor:
        cursor.execute(_drop(connection, name, table))
        assert epoch_triggers.missing() == [name]
        stale = name[:-8] + "00000000"
        statement = next(
            one.statement for one in epoch_triggers.EPOCH_TRIGGERS.triggers(connection.vendor) if one.name == name
        )
        cursor.execute(statement.replace(name, stale))
    assert epoch_triggers.missing() == []
    epoch_triggers.install()
    assert epoch_triggers.missing() == []
    assert stale not in epoch_triggers.EPOCH_TRIGGERS.present(connection)


def test_each_of_two_triggers_of_a_table_and_event_is_missed():
    present = epoch_triggers.EPOCH_TRIGGERS.present(connection)
    [first, _] = sorted(name for name in present if name.startswith("epoch_gateway_tenant_update_"))
    with connection.cursor() as cursor:
        cursor.execute(_drop(connection, first, present[first]))
    assert epoch_triggers.missing() == [first]


@pytest.mark.django_db(transaction=True)
def test_one_transaction_bumps_at_its_commit():
    def epochs():
        row = CatalogueEpoch.objects.get(id=1)
        return row.epoch, row.sequence

    tenant = Tenant.objects.create(name="Acme", slug="acme")
    before = epochs()
    with transaction.atomic():
        Plan.objects.bulk_create(Plan(slug=f"p{n}", name=f"p{n}") for n in range(5))
        Project.objects.bulk_create(Project(tenant=tenant, name=f"p{n}") for n in range(5))
    after = epochs()
    assert min(after[0] - before[0], after[1] - before[1]) >= 1
    if connection.vendor == "postgresql":
        assert after == (before[0] + 1, before[1] + 1)  # the marker makes many rows one bump
    with transaction.atomic():
        Tenant.objects.create(id=uuid4(), name="x", slug="x")
        transaction.set_rollback(True)
    assert epochs() == after
