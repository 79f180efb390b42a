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
from gateway.runtime import refusals
from gateway.runtime.metrics import Metrics
from gateway.runtime.models import RefusalCount, RefusedRequest
from gateway.runtime.refusals import Refusals, Sender
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


def kept(world):
    rows = RefusedRequest.objects.of(world.tenant).order_by("id")
    return {row.id: row for row in rows}


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
        assert await in_database(counts) == []
        await runtime.requests.refusals.write()
    assert await in_database(counts) == sorted(expected, key=lambda row: (row[0], row[1], row[5]))
    rows = await in_database(lambda: [row for world in (poor, limited, other, ended) for row in kept(world).values()])
    assert {(row.status, row.code, row.api_key, row.id) for row in rows} == {
        (status, code, key, request) for status, code, _, key, _, request in expected
    }
    by_code = {row.code: row for row in rows}
    assert by_code["credit_balance_exhausted"].input_tokens > 0
    assert by_code["credit_balance_exhausted"].message.startswith("This request needs at least ")
    assert by_code["model_not_allowed"].param == "model"
    assert by_code["rate_limit_exceeded"].project == limited.project.id


SECRET = "the prompt that nobody else may read"


@pytest.mark.django_db(transaction=True)
async def test_a_request_that_was_wrong_is_kept_with_its_words_and_without_its_prompt(tmp_path):
    world, bystander = await in_database(make_world), await in_database(make_world)
    told = {}
    async with opened(tmp_path) as runtime:
        application = served_by(runtime)

        async def expect(code, address="/v1/chat/completions", method="POST", key=world.secret, **asked):
            body = {**ASKED, "messages": [{"role": "user", "content": SECRET}], **asked} if method == "POST" else None
            answer = await ask(application, address, body, key=key, method=method)
            error = answer.json()["error"]
            assert error["code"] == code
            if key == world.secret:
                told[UUID(error["request_id"])] = (answer.status, code, error["param"] or "", error["message"][:500])

        await expect("model_not_found", model="gpt-4o")
        await expect("unknown_parameter", temprature=1)
        await expect("invalid_type", model=1)
        await expect("context_length_exceeded", messages=[{"role": "user", "content": "word " * 9_000}])
        await expect("method_not_allowed", method="GET")
        await expect("unknown_endpoint", "/v1/v1/chat/completions")
        await expect("unknown_endpoint", "/v1/none", "GET")
        await expect("model_not_found", model="gpt-4o", key=bystander.secret)
    rows = await in_database(kept, world)
    assert {one: (row.status, row.code, row.param, row.message) for one, row in rows.items()} == told
    assert {(row.endpoint, row.model) for row in rows.values() if row.code == "model_not_found"} == {
        ("/v1/chat/completions", "gpt-4o")
    }
    assert {row.api_key for row in rows.values()} == {world.key_id}
    assert not [row for row in rows.values() if SECRET in str(vars(row)) or "word word" in str(vars(row))]
    counted = {(code, model) for _, code, model, *_ in await in_database(counts)}
    assert ("model_not_found", "") in counted, "names that clients make up are no kinds of counts"


@pytest.mark.django_db(transaction=True)
async def test_events_of_one_socket_are_refused_each_under_its_own_id(tmp_path):
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        socket = await Socket(served_by(runtime), key=world.secret).opened()
        told = []
        for event in ({"type": "response.wish"}, {**CREATE, "temprature": 1}, {**CREATE, "model": "gpt-4o"}):
            socket.send(event)
            [error] = await socket.until("error")
            told.append((UUID(error["error"]["request_id"]), error["error"]["code"]))
        await socket.leave()
    rows = await in_database(kept, world)
    assert [(one, row.code) for one, row in rows.items()] == told
    assert [row.endpoint for row in rows.values()] == ["/v1/responses"] * 3


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
    assert await in_database(RefusedRequest.objects.of(acme.tenant).count) == 4


async def test_a_full_memory_drops_what_is_new_and_says_so():
    metrics = Metrics()
    counted = Refusals(None, metrics, most=2, clock=lambda: NOON)
    for number in (1, 2, 3, 3, 1):
        counted.note(SLOW_DOWN, uuid7(), Sender(UUID(int=number)))
    assert [count.count for count in counted._counts.values()] == [2, 1]
    assert metrics.registry.get_sample_value("sluice_refusals_dropped_total") == 2


@pytest.mark.django_db
def test_a_flood_keeps_its_first_and_then_one_now_and_then(acme, other):
    now = NOON
    counted = Refusals(None, Metrics(), clock=lambda: now)
    flood = [note(counted, acme) for _ in range(refusals.FIRST + 50)]
    assert list(counted._whole) == flood[: refusals.FIRST]
    rare, foreign = note(counted, acme, code="model_not_found"), note(counted, other)
    assert list(counted._whole)[refusals.FIRST :] == [rare, foreign], "neither other reasons nor other tenants lose"
    for _ in range(2):
        now += timedelta(seconds=refusals.EVERY)
        after = [note(counted, acme) for _ in range(50)]
        assert [one in counted._whole for one in after] == [True] + [False] * 49
    assert sum(count.count for count in counted._counts.values()) == refusals.FIRST + 152
    for reason in range(refusals.FIRST_OF_ALL):
        note(counted, acme, code=f"made_up_{reason}")
    mine = [row for row in counted._whole.values() if row.tenant_id == acme.tenant.id]
    gained = 2 * refusals.EVERY / refusals.EVERY_OF_ALL
    assert len(mine) == refusals.FIRST_OF_ALL + gained


async def test_what_no_row_takes_is_kept_as_far_as_it_goes():
    counted = Refusals(None, Metrics(), clock=lambda: NOON)
    hostile = Refusal(400, "x" * 90, "half \ud83d and \0 and " + "long " * 200, param="p" * 300)
    counted.note(hostile, uuid7(), Sender(UUID(int=1)), endpoint="e" * 200, asked="m" * 200)
    [row] = counted._whole.values()
    assert (len(row.code), len(row.message), len(row.param), len(row.endpoint), len(row.model)) == (
        60, 500, 200, 120, 120,
    )  # fmt: skip
    assert row.message.startswith("half ? and \ufffd and long")
    assert [group.code for group in counted._counts] == [row.code]


def note(counted, party, *, code="rate_limit_exceeded"):
    request = uuid7()
    refusal = Refusal(429, code, "No.")
    counted.note(refusal, request, Sender(party.tenant.id, api_key=party.key.id), model="fake")
    return request


class Flaky:
    """Threads whose disk may be full."""

    fails = False

    async def run(self, function):
        if self.fails:
            raise OSError("full")
        return await in_database(function)
