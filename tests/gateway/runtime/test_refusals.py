"""What was refused is found afterwards, and no request waits for that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from base.ids import uuid7
from billing.models import Plan, Subscription
from billing.services import plans
from billing.services.plans import TERMS
from gateway import bootstrap
from gateway.errors.refusal import Refusal
from gateway.runtime.metrics import Metrics
from gateway.runtime.models import RefusalCount
from gateway.runtime.refusals import Refusals
from gateway.runtime.requests import Stage
from tenancy.models import APIKey, Tenant
from tenancy.services import keys
from tests.gateway.apis.client import ask
from tests.gateway.apis.websocket.socket import Socket
from tests.gateway.world import in_database, make_world, opened

ASKED = {"model": "fake", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
CREATE = {"type": "response.create", "model": "fake", "input": "Hi"}
NOON = datetime(2026, 3, 1, 12, 0, 30, tzinfo=UTC)
SLOW_DOWN = Refusal(429, "rate_limit_exceeded", "Slow down.")


@pytest.fixture(autouse=True)
def _written_when_asked(monkeypatch):
    monkeypatch.setattr(bootstrap, "REFUSALS_INTERVAL", 3600)


def served_by(runtime):
    from gateway.asgi import application

    async def with_state(scope, receive, send):
        await application({**scope, "state": {"runtime": runtime, "metrics": runtime.metrics}}, receive, send)

    return with_state


def counts():
    rows = RefusalCount.objects.unscoped().order_by("status", "code", "last_request")
    return [(row.status, row.code, row.model, row.api_key_id, row.count, row.last_request) for row in rows]


async def refused(application, secret, **asked):
    """Return the status, code and id with which a chat is refused."""
    answer = await ask(application, "/v1/chat/completions", {**ASKED, **asked}, key=secret)
    error = answer.json()["error"]
    return answer.status, error["code"], UUID(error["request_id"])


def make_key(world, **options):
    key, secret = keys.create_key(tenant=world.tenant, project=world.project, name="more", **options)
    return key.id, secret


def subscribe_to(world, slug, **terms):
    plan = Plan.objects.create(slug=slug, name=slug)
    base = plans.latest_version("test")
    version = plans.publish_version(plan, **({name: getattr(base, name) for name in TERMS} | terms))
    Subscription.objects.filter(tenant=world.tenant.id).update(version=version)


@pytest.mark.django_db(transaction=True)
async def test_a_refusal_of_each_kind_is_found_afterwards(tmp_path):
    poor = await in_database(make_world, credit=0)
    limited = await in_database(make_world)
    await in_database(subscribe_to, limited, "slow", request_limit=1, request_period_s=3600, request_burst=1)
    other = await in_database(make_world)
    await in_database(subscribe_to, other, "narrow", allowed_models=["another"])
    revoked, revoked_secret = await in_database(make_key, other)
    await in_database(lambda: APIKey.objects.unscoped().filter(id=revoked).update(revoked_at=timezone.now()))
    expired, expired_secret = await in_database(make_key, other, expires_at=timezone.now() + timedelta(hours=1))
    await in_database(lambda: APIKey.objects.unscoped().filter(id=expired).update(expires_at=timezone.now()))
    managing, managing_secret = await in_database(make_key, other, scopes=["management"])
    ended = await in_database(make_world)
    await in_database(lambda: Tenant.objects.filter(id=ended.tenant.id).update(is_active=False))
    expected = []
    async with opened(tmp_path) as runtime:
        application = served_by(runtime)

        async def expect(world, status, code, *, secret="", key=None, model="fake", **asked):
            answered, given, request = await refused(application, secret or world.secret, **asked)
            assert (answered, given) == (status, code)
            expected.append((status, code, model, key or world.key_id, 1, request))

        await expect(other, 401, "api_key_revoked", secret=revoked_secret, key=revoked, model="")
        await expect(other, 401, "api_key_expired", secret=expired_secret, key=expired, model="")
        await expect(other, 403, "insufficient_scope", secret=managing_secret, key=managing, model="")
        await expect(other, 403, "model_not_allowed")
        await expect(ended, 403, "tenant_inactive", model="")
        await expect(poor, 402, "credit_balance_exhausted")
        await ask(application, "/v1/chat/completions", ASKED, key=limited.secret)
        await expect(limited, 429, "rate_limit_exceeded")
        runtime.requests.stage = Stage.DRAINING
        await expect(poor, 503, "server_draining")
        assert (await ask(application, "/v1/chat/completions", ASKED, key="sk-sluice-nobodys")).status == 401
        assert (await ask(application, "/v1/chat/completions", {"model": 1}, key=poor.secret)).status == 400
        assert await in_database(counts) == []
        await runtime.requests.refusals.write()
    assert await in_database(counts) == sorted(expected, key=lambda row: (row[0], row[1], row[5]))


@pytest.mark.django_db(transaction=True)
async def test_a_refusal_over_a_websocket_is_found_too(tmp_path):
    world = await in_database(make_world, credit=0)
    async with opened(tmp_path) as runtime:
        socket = await Socket(served_by(runtime), key=world.secret).opened()
        socket.send(CREATE)
        [event] = await socket.until("error")
        await socket.leave()
    request = UUID(event["error"]["request_id"])
    assert await in_database(counts) == [(402, "credit_balance_exhausted", "fake", world.key_id, 1, request)]


@pytest.mark.django_db(transaction=True)
async def test_a_request_that_ran_has_its_usage_record_and_no_refusal(tmp_path):
    world = await in_database(make_world, tokens=8, error_at=4)
    async with opened(tmp_path) as runtime:
        answer = await ask(served_by(runtime), "/v1/chat/completions", ASKED | {"max_tokens": 8}, key=world.secret)
        assert answer.status >= 500, answer.body
    assert await in_database(counts) == []


@pytest.mark.django_db(transaction=True)
async def test_refusals_cost_no_query_on_the_requests_path(tmp_path, monkeypatch):
    world = await in_database(make_world)
    await in_database(subscribe_to, world, "narrow", allowed_models=["another"])
    calls = []

    def of_requests():
        return [call for call in calls if "look_at_installation" not in call.__qualname__]  # which goes on beside them

    async with opened(tmp_path) as runtime:
        application = served_by(runtime)
        await refused(application, world.secret)  # by now the key is known
        for threads in (runtime.threads, runtime.own_threads):
            run = threads.run
            monkeypatch.setattr(threads, "run", lambda function, run=run: (calls.append(function), run(function))[1])
        for _ in range(50):
            last = await refused(application, world.secret)
        assert of_requests() == []
        await runtime.requests.refusals.write()
        assert len(of_requests()) == 1
    rows = await in_database(counts)
    assert sum(row[4] for row in rows) == 51  # in two rows if a minute ended meanwhile
    assert rows[-1][5] == last[2]


@pytest.mark.django_db(transaction=True)
async def test_a_failed_write_goes_with_the_next_one(acme):
    threads = Flaky()
    counted = Refusals(threads, Metrics(), clock=lambda: NOON)
    note(counted, acme)
    threads.fails = True
    with pytest.raises(OSError, match="full"):
        await counted.write()
    threads.fails = False
    last = note(counted, acme)
    await counted.write()
    await counted.write()
    note(counted, acme, code="credit_balance_exhausted")
    third = note(counted, acme)
    await counted.write()
    rows = await in_database(counts)
    assert [(row[1], row[4]) for row in rows] == [("credit_balance_exhausted", 1), ("rate_limit_exceeded", 3)]
    assert rows[1][5] == third != last


async def test_a_full_memory_drops_what_is_new_and_says_so():
    metrics = Metrics()
    counted = Refusals(None, metrics, most=2, clock=lambda: NOON)
    for number in (1, 2, 3, 3, 1):
        counted.note(SLOW_DOWN, uuid7(), tenant=UUID(int=number), api_key=None, model="")
    assert [count.count for count in counted._counts.values()] == [2, 1]
    assert metrics.registry.get_sample_value("sluice_refusals_dropped_total") == 2


def note(counted, party, *, code="rate_limit_exceeded"):
    request = uuid7()
    refusal = Refusal(429, code, "No.")
    counted.note(refusal, request, tenant=party.tenant.id, api_key=party.key.id, model="fake")
    return request


class Flaky:
    """Threads whose disk may be full."""

    fails = False

    async def run(self, function):
        if self.fails:
            raise OSError("full")
        return await in_database(function)
