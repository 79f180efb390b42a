"""Keys and sessions: one query each, kept while the epoch stands, forgotten within a second of a change."""

from __future__ import annotations

import asyncio
import time
import uuid
from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from base.database.threads import DatabaseThreads
from base.ids import uuid7
from billing.limits.memory import MemoryRateStore
from billing.limits.types import Lease, Taken
from billing.models import Hold, Subscription, UsageRecord
from billing.services import plans
from billing.services.budgets import make_budget
from gateway.errors.refusal import Refusal
from gateway.generation.generation import start_generation
from gateway.runtime import principals as principals_module
from gateway.runtime.epoch import Epoch, Reading, read_epoch
from gateway.runtime.principals import Principals, load_by_key, load_by_session
from tenancy.models import APIKey, Membership, Project, Tenant, User
from tenancy.services import keys, tenants
from tests.gateway.doubles import StandingEpoch, make_intent
from tests.gateway.world import engine_of, in_database, make_world, opened, principal_of, settled
from tests.waiting import until

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]


class CountingThreads(DatabaseThreads):
    calls = 0

    async def run(self, function):
        self.calls += 1
        return await super().run(function)


@pytest.fixture
def threads():
    threads = CountingThreads(2)
    yield threads
    threads.close()


def resolver(threads, **options):
    """Return principals and their epoch, which moves only when it is told to."""
    epoch = StandingEpoch()
    return Principals(epoch, threads, MemoryRateStore(lambda: 1_000_000), **options), epoch


async def refused(awaitable):
    with pytest.raises(Refusal) as caught:
        await awaitable
    return caught.value.status, caught.value.code


def test_all_terms_of_a_key_are_one_query_with_its_budgets_and_a_guess_costs_only_a_look():
    world = make_world(terms={"concurrency": 7, "allowed_models": ["fake"]})
    with CaptureQueriesContext(connection) as queries:
        principal = load_by_key(world.secret)
    assert len(queries) == 3
    with CaptureQueriesContext(connection) as queries:
        load_by_key("sk-sluice-guessed")
    assert [query["sql"].count("JOIN") for query in queries] == [0]
    assert (principal.tenant, principal.project, principal.wallet, principal.api_key) == (
        world.tenant.id,
        world.project.id,
        world.wallet.id,
        world.key_id,
    )
    assert (principal.plan, principal.concurrency, principal.allowed_models) == ("test", 7, frozenset({"fake"}))
    assert not principal.leaves_out_hosted
    tenants.set_settings(tenant=world.tenant, hosted_tools="leave_out")
    assert load_by_key(world.secret).leaves_out_hosted
    assert principal.request_bucket.key != principal.credit_bucket.key
    assert principal.credit_bucket.period_us == 60_000_000
    assert (principal.token_buckets, principal.most_tokens) == ((), None)


def test_tokens_are_limited_by_the_plan_and_by_the_key():
    world = make_world(terms={"token_limit": 600, "token_period_s": 3_600, "flex_bp": 5_000, "priority_bp": 15_000})
    principal = load_by_key(world.secret)
    [plan] = principal.token_buckets
    assert (plan.name, plan.limit, plan.burst, plan.period_us) == ("tokens", 600, 600, 3_600_000_000)
    assert (principal.flex_bp, principal.priority_bp) == (5_000, 15_000)
    APIKey.objects.unscoped().filter(id=world.key_id).update(token_limit=50)
    principal = load_by_key(world.secret)
    assert [bucket.name for bucket in principal.token_buckets] == ["tokens", "key_tokens"]
    assert principal.most_tokens == 50
    assert principal.for_batch(world.key_id, 1).token_buckets == ()


@pytest.mark.parametrize(
    ("plans", "keys", "both"),
    [([], ["a"], {"a"}), (["a", "b"], ["b", "c"], {"b"}), (["a"], [], {"a"}), (["a"], ["c"], None)],
)
def test_a_key_may_use_what_it_and_its_plan_name(plans, keys, both):
    """No name in common is no model at all: an empty set would be every one."""
    world = make_world(terms={"allowed_models": plans})
    APIKey.objects.unscoped().filter(id=world.key_id).update(allowed_models=keys)
    found = load_by_key(world.secret)
    if both is None:
        assert (found.status, found.code) == (403, "model_not_allowed")
    else:
        assert found.allowed_models == both


async def test_second_use_of_a_key_takes_no_query(threads):
    world = await in_database(make_world)
    known, _ = resolver(threads)
    first = await known.by_key(world.secret)
    assert await known.by_key(world.secret) is first
    assert threads.calls == 1


async def test_simultaneous_uses_of_a_key_share_one_query(threads):
    world = await in_database(make_world)
    known, _ = resolver(threads)
    found = await asyncio.gather(*(known.by_key(world.secret) for _ in range(10)))
    assert len(set(map(id, found))) == 1
    assert threads.calls == 1


async def test_entry_ends_with_its_epoch(threads):
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    await known.by_key(world.secret)
    await in_database(lambda: APIKey.objects.unscoped().update(revoked_at=timezone.now()))
    assert await known.by_key(world.secret)
    epoch.publish(Reading(2), time.monotonic())
    assert await refused(known.by_key(world.secret)) == (401, "api_key_revoked")


async def test_entry_carries_the_epoch_read_before_its_query(threads):
    """A change that falls between the query and the next reading of the epoch must not be hidden by the entry."""
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    run = threads.run

    async def raced(function):
        found = await run(function)
        await run(lambda: APIKey.objects.unscoped().update(revoked_at=timezone.now()))
        epoch.publish(Reading(2), time.monotonic())
        return found

    threads.run = raced
    await known.by_key(world.secret)
    threads.run = run
    assert await refused(known.by_key(world.secret)) == (401, "api_key_revoked")


async def test_making_keys_asks_nothing_about_other_tenants(tmp_path):
    """Every key made or revoked used to empty every principal and the snapshot."""
    world, busy = await in_database(make_world), await in_database(make_world)
    async with opened(tmp_path) as runtime:
        await principal_of(runtime, world)
        await principal_of(runtime, busy)
        asked, run = [], runtime.principals._threads.run
        runtime.principals._threads.run = lambda function: asked.append(function) or run(function)
        snapshot = runtime.catalogue.snapshot
        for _ in range(5):
            before = (await runtime.catalogue.epoch.stamp()).sequence
            await in_database(keys.create_key, tenant=busy.tenant, project=busy.project, name="more")
            async with asyncio.timeout(120):
                while runtime.catalogue.epoch.sequence == before:
                    await runtime.catalogue.epoch.next()
            await principal_of(runtime, world)
        assert asked == []
        assert runtime.catalogue.snapshot is snapshot
        await principal_of(runtime, busy)
        assert len(asked) == 1


async def test_entry_carries_the_tenants_number_read_before_its_query(threads):
    """As above, for a change of the key's own tenant: its number is read from the database, as the poller does."""
    world = await in_database(make_world)
    epoch = Epoch()
    known = Principals(epoch, threads, MemoryRateStore())
    first = await in_database(read_epoch)
    epoch.publish(first, time.monotonic())
    run = threads.run

    async def raced(function):
        found = await run(function)
        await run(lambda: APIKey.objects.unscoped().filter(id=world.key_id).update(revoked_at=timezone.now()))
        epoch.publish(await in_database(read_epoch, first.sequence), time.monotonic())
        return found

    threads.run = raced
    await known.by_key(world.secret)
    threads.run = run
    assert await refused(known.by_key(world.secret)) == (401, "api_key_revoked")


async def test_key_that_was_unknown_is_asked_again_after_any_tenants_change(threads):
    world = await in_database(make_world)
    epoch = Epoch()
    known = Principals(epoch, threads, MemoryRateStore())
    epoch.publish(Reading(1, 1), time.monotonic())
    secret = "sk-sluice-later"
    assert await refused(known.by_key(secret)) == (401, "invalid_api_key")
    await in_database(lambda: APIKey.objects.unscoped().update(digest=keys.digest_of(secret)))
    epoch.publish(Reading(1, 2, {world.tenant.id: 2}), time.monotonic())
    assert (await known.by_key(secret)).tenant == world.tenant.id


async def test_stale_epoch_is_503(threads, monkeypatch):
    monkeypatch.setattr("gateway.runtime.epoch.INTERVAL", 0.01)
    world = await in_database(make_world)
    known = Principals(Epoch(), threads, MemoryRateStore())
    assert await refused(known.by_key(world.secret)) == (503, "catalogue_unavailable")


async def test_unknown_keys_push_no_real_one_out(threads):
    world = await in_database(make_world)
    known, _ = resolver(threads, most=2)
    await known.by_key(world.secret)
    for number in range(5):
        assert await refused(known.by_key(f"sk-sluice-{number}")) == (401, "invalid_api_key")
    calls = threads.calls
    await known.by_key(world.secret)
    assert await refused(known.by_key("sk-sluice-4")) == (401, "invalid_api_key")
    assert threads.calls == calls
    assert len(known._denied._entries) == 2


async def test_who_guesses_keys_is_refused_before_the_database_is_asked_and_nobody_else_is(threads, monkeypatch):
    """Each guess cost a query, and nobody counted them."""
    monkeypatch.setattr(principals_module, "GUESSES", 3)
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    await known.by_key(world.secret, "203.0.113.7")
    for number in range(3):
        assert await refused(known.by_key(f"sk-sluice-{number}", "203.0.113.7")) == (401, "invalid_api_key")
    calls = threads.calls
    with pytest.raises(Refusal) as caught:
        await known.by_key("sk-sluice-more", "203.0.113.7")
    assert (caught.value.status, caught.value.code) == (429, "too_many_invalid_keys")
    assert caught.value.headers["retry-after"] == "20"
    assert await refused(known.by_key("sk-sluice-2", "203.0.113.7")) == (401, "invalid_api_key")
    assert threads.calls == calls
    # Whoever is known to have a good key shares an address with the guesser, and isn't kept out by a change.
    epoch.publish(Reading(2), time.monotonic())
    assert (await known.by_key(world.secret, "203.0.113.7")).tenant == world.tenant.id
    assert await refused(known.by_key("sk-sluice-more", "203.0.113.8")) == (401, "invalid_api_key")


async def test_good_keys_take_nothing_from_the_rate_of_guesses(threads, monkeypatch):
    monkeypatch.setattr(principals_module, "GUESSES", 1)
    worlds = [await in_database(make_world) for _ in range(3)]
    known, _ = resolver(threads)
    at_once = [known.by_key(world.secret, "203.0.113.7") for world in worlds for _ in range(3)]
    assert {one.tenant for one in await asyncio.gather(*at_once)} == {world.tenant.id for world in worlds}
    assert await refused(known.by_key("sk-sluice-guess", "203.0.113.7")) == (401, "invalid_api_key")
    assert await refused(known.by_key("sk-sluice-more", "203.0.113.7")) == (429, "too_many_invalid_keys")


async def test_key_that_expires_is_refused_from_that_moment_on(threads, monkeypatch):
    world = await in_database(make_world)
    soon = timezone.now() + timedelta(hours=1)
    await in_database(lambda: APIKey.objects.unscoped().update(expires_at=soon))
    known, _ = resolver(threads)
    await known.by_key(world.secret)
    monkeypatch.setattr(principals_module.timezone, "now", lambda: soon)
    assert await refused(known.by_key(world.secret)) == (401, "api_key_expired")


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda: Tenant.objects.update(is_active=False), "tenant_inactive"),
        (lambda: Project.objects.unscoped().update(is_active=False), "project_inactive"),
        (lambda: Subscription.objects.update(state="ended"), "no_subscription"),
    ],
)
async def test_inactive_account_is_403(threads, change, code):
    world = await in_database(make_world)
    await in_database(change)
    known, _ = resolver(threads)
    assert await refused(known.by_key(world.secret)) == (403, code)


async def test_plan_change_is_felt_with_the_next_epoch(threads):
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    assert (await known.by_key(world.secret)).plan == "test"
    await in_database(plans.change_plan, world.tenant.id, "max", at_once=True)
    epoch.publish(Reading(2), time.monotonic())
    assert (await known.by_key(world.secret)).plan == "max"


def make_member(world, role=Membership.Role.MEMBER):
    user = User.objects.create_user(f"{role}@example.com")
    Membership.objects.create(tenant=world.tenant, user=user, role=role)
    return user


def test_session_is_resolved_by_one_query_and_one_for_its_budgets():
    world = make_world()
    user = make_member(world)
    with CaptureQueriesContext(connection) as queries:
        principal = load_by_session(user.id, world.project.id)
    assert len(queries) == 2
    assert (principal.user, principal.api_key, principal.project) == (user.id, None, world.project.id)
    assert principal.wallet == world.wallet.id


@pytest.mark.parametrize(
    "change",
    [
        lambda: Membership.objects.unscoped().update(is_active=False),
        lambda: Membership.objects.unscoped().update(role=Membership.Role.BILLING),
        lambda: User.objects.update(is_active=False),
    ],
)
async def test_session_without_a_right_to_the_project_is_403(threads, change):
    world = await in_database(make_world)
    user = await in_database(make_member, world)
    known, epoch = resolver(threads)
    assert await known.by_session(user.id, world.project.id)
    await in_database(change)
    epoch.publish(Reading(2), time.monotonic())
    assert await refused(known.by_session(user.id, world.project.id)) == (403, "not_a_member")


async def test_session_reaches_no_other_tenants_project(threads):
    world, other = await in_database(make_world), await in_database(make_world)
    user = await in_database(make_member, world)
    known, _ = resolver(threads)
    assert await refused(known.by_session(user.id, other.project.id)) == (403, "not_a_member")


async def test_last_use_is_written_once_a_minute_for_all_keys_together(threads, monkeypatch):
    world, other = await in_database(make_world), await in_database(make_world)
    known, _ = resolver(threads)
    await known.by_key(world.secret)
    await known.by_key(other.secret)
    calls = threads.calls
    await known.write_last_used()
    assert threads.calls == calls + 1
    first = await in_database(lambda: set(APIKey.objects.unscoped().values_list("last_used_at", flat=True)))
    assert len(first) == 1
    assert None not in first
    await known.by_key(world.secret)
    await known.write_last_used()
    assert threads.calls == calls + 1
    later = timezone.now() + timedelta(minutes=2)
    monkeypatch.setattr(principals_module.timezone, "now", lambda: later)
    await known.write_last_used()
    assert threads.calls == calls + 2
    key = await in_database(APIKey.objects.unscoped().get, id=world.key_id)
    assert key.last_used_at == later


async def test_revocation_is_felt_by_the_next_reading_of_the_epoch(tmp_path):
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        await principal_of(runtime, world)
        before = await runtime.catalogue.epoch.stamp()
        key = await in_database(APIKey.objects.unscoped().get, id=world.key_id)
        await in_database(keys.revoke_key, tenant=world.tenant, key=key)
        async with asyncio.timeout(120):
            while await runtime.catalogue.epoch.stamp() == before:
                await runtime.catalogue.epoch.next()
        assert await refused(principal_of(runtime, world)) == (401, "api_key_revoked")


async def test_use_of_a_key_raises_no_epoch(tmp_path):
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        before = await runtime.catalogue.epoch.stamp()
        await principal_of(runtime, world)
        await runtime.principals.write_last_used()
        await runtime.catalogue.epoch.next()
        await runtime.catalogue.epoch.next()
        assert await runtime.catalogue.epoch.stamp() == before
    key = await in_database(APIKey.objects.unscoped().get, id=world.key_id)
    assert key.last_used_at is not None


# -- requests that waited --------------------------------------------------------------------------------------------


async def test_confirming_costs_nothing_while_nothing_changed_and_one_query_after_that(threads):
    world, other = await in_database(make_world), await in_database(make_world)
    known, epoch = resolver(threads)
    principal = await known.by_key(world.secret)
    calls = threads.calls
    await known.confirm(principal)
    epoch.publish(Reading(1, 7, {other.tenant.id: 7}), time.monotonic())  # another tenant's change
    await known.confirm(principal)
    assert threads.calls == calls
    epoch.publish(Reading(1, 8, {world.tenant.id: 8}), time.monotonic())
    for _ in range(3):  # three requests of the key that waited
        await known.confirm(principal)
    assert threads.calls == calls + 1


@pytest.mark.parametrize("how", ["revoked", "suspended", "expired", "member"])
async def test_what_ended_while_it_waited_is_not_confirmed(threads, how):
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    key = await in_database(APIKey.objects.unscoped().get, id=world.key_id)
    if how == "member":
        user = await in_database(make_member, world)
        principal = await known.by_session(user.id, world.project.id)
        await in_database(Membership.objects.unscoped().filter(user=user).update, is_active=False)
        expected = (403, "not_a_member")
    else:
        principal = await known.by_key(world.secret)
        if how == "revoked":
            await in_database(keys.revoke_key, tenant=world.tenant, key=key)
            expected = (401, "api_key_revoked")
        elif how == "suspended":
            await in_database(Tenant.objects.filter(pk=world.tenant.pk).update, is_active=False)
            expected = (403, "tenant_inactive")
        else:
            principal = replace(principal, expires_at=timezone.now())
            expected = (401, "api_key_expired")
    epoch.publish(Reading(2), time.monotonic())
    assert await refused(known.confirm(principal)) == expected


@pytest.mark.parametrize("queue", ["places of this gateway", "leases of all gateways"])
@pytest.mark.parametrize("how", ["revoked", "suspended"])
async def test_a_request_in_a_queue_ends_with_its_key(tmp_path, queue, how):
    """It came with a key that stood, waits, and gets its turn after the key was revoked."""
    world = await in_database(partial(make_world, terms={"concurrency": 1}))
    async with opened(tmp_path) as runtime:
        principal = await principal_of(runtime, world)
        lease = Lease(f"{{{principal.tenant}}}:concurrency", 1, "another gateway's", 60_000_000)
        if queue == "places of this gateway":
            await runtime.requests.gate.enter(principal)
        else:
            assert isinstance(await runtime.rates.take([], lease), Taken)
        starting = asyncio.ensure_future(start_generation(runtime, principal, make_intent(), uuid7()))
        async with asyncio.timeout(120):
            await until(lambda: runtime.requests.gate.waiting + runtime.requests.turns.waiting)
            before = await runtime.catalogue.epoch.stamp()
            if how == "revoked":
                key = await in_database(APIKey.objects.unscoped().get, id=world.key_id)
                await in_database(keys.revoke_key, tenant=world.tenant, key=key)
            else:
                await in_database(partial(tenants.deactivate_tenant, tenant=world.tenant))
            while await runtime.catalogue.epoch.stamp() == before:
                await runtime.catalogue.epoch.next()
        if queue == "places of this gateway":
            runtime.requests.gate.leave(principal)
        else:
            await runtime.rates.give_back(lease)
            runtime.requests.turns.wake(lease.key)
        expected = (401, "api_key_revoked") if how == "revoked" else (403, "tenant_inactive")
        assert await refused(starting) == expected
        await settled(runtime)
        assert len(runtime.requests.gate) == 0
        assert engine_of(runtime, world).record.entries == {}
    assert await in_database(UsageRecord.objects.count) == 0
    assert await in_database(Hold.objects.count) == 0


@pytest.mark.parametrize(
    "terms",
    [{"scopes": ["chat"]}, {"allowed_models": ["fake"]}, {"networks": ["10.0.0.0/8"]}, {"name": "renamed"}],
    ids=lambda terms: next(iter(terms)),
)
async def test_what_was_taken_from_a_key_while_a_request_waited_is_not_used_by_it(threads, terms):
    """A line of a batch is run by gateways, whatever the key's networks are."""
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    principal = await known.by_key(world.secret)
    line = principal.for_batch(uuid.uuid4(), 8)
    await in_database(APIKey.objects.unscoped().filter(id=world.key_id).update, **terms)
    epoch.publish(Reading(2), time.monotonic())
    changed = (503, "access_changed")
    assert (None if "name" in terms else changed) == await refused_or_none(known.confirm(principal))
    assert (None if {"name", "networks"} & set(terms) else changed) == await refused_or_none(known.confirm(line))


@pytest.mark.parametrize(
    ("scope", "ends"), [("tenant", True), ("project", True), ("end_user", False), ("models", False)]
)
async def test_only_a_budget_of_all_requests_of_a_key_ends_those_that_wait(threads, scope, ends):
    world = await in_database(make_world)
    known, epoch = resolver(threads)
    principal = await known.by_key(world.secret)
    subject = {"tenant": "", "project": str(world.project.id)}.get(scope, "another")
    terms = {"wallet": world.wallet.id, "scope": scope, "subject": subject, "window": "day", "amount": 1}
    await in_database(partial(make_budget, **terms))
    epoch.publish(Reading(2), time.monotonic())
    assert ((503, "access_changed") if ends else None) == await refused_or_none(known.confirm(principal))


async def refused_or_none(confirming):
    try:
        await confirming
    except Refusal as error:
        return error.status, error.code
    return None
