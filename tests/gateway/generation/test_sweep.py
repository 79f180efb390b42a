"""The sweep: what closes an orphaned hold, by what the engine knows of its request."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
from django.core.management import call_command
from django.db import connection
from django.db.models import F
from django.utils import timezone

from base.database.threads import DatabaseThreads
from base.ids import uuid7
from billing import reconcile
from billing.models import Hold, RateCardVersion, UsageRecord, UsageRollup, Wallet
from billing.selectors.usage import recent_usage, record_of
from billing.services import rollups
from billing.writer.apply import apply_now
from billing.writer.entry import WriterError
from billing.writer.operations import EndFacts, Held, Release, Renew, RequestFacts, Reserve, Settle
from gateway.apis.usage.endpoint import usage_of
from gateway.generation import sweep as sweep_module
from gateway.generation.attempts import attempt_id
from gateway.generation.placement import MOST_ATTEMPTS
from gateway.generation.sweep import Sweep
from gateway.runtime.metrics import SWEPT
from gateway.wire.usage import RequestUsage
from inference.clients.fake import FakeEngine
from inference.engine import EngineSpec
from inference.errors import UnreachableError
from inference.types import Finished, FinishReason, Lost, NothingRan, Running, Usage
from routing.models import Deployment
from tests.gateway.world import assert_books, in_database, make_world

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]

DONE = Usage(input=60, cache_read=40, output=7)


def orphan(world, checkpoint=None, amount=3000, *, streamed=True):
    """Reserve for a request, keep its checkpoint, and let its lease run out."""
    request, owner = uuid7(), uuid7()
    reserve = Reserve(
        request=request,
        wallet=world.wallet.id,
        amount=amount,
        least=1,
        owner=owner,
        deployment=world.deployment,
        card_version=RateCardVersion.objects.get().id,
        tenant=world.tenant.id,
        project=world.project.id,
        api_key=world.key_id,
        model="fake",
        facts=RequestFacts("responses", "chat", {"rule": "r"}, "e", streamed=streamed),
    )
    [held, _] = apply_now([reserve, Renew(owner, {request: checkpoint or {}})])
    assert isinstance(held, Held)
    Hold.objects.update(lease_until=F("reserved_at"))
    return request


class Bench:
    """A sweep over the test database with one fake engine and a clock of its own."""

    def __init__(self):
        self.engine = FakeEngine(EngineSpec("d", "fake"))
        self.threads = DatabaseThreads(1)
        self.later = timedelta(0)
        self.unsettled = {}
        self.sweep = Sweep(
            engines_of=lambda _: [self.engine],
            submit=self.submit,
            threads=self.threads,
            unsettled=self.unsettled,
            clock=lambda: timezone.now() + self.later,
        )

    async def submit(self, operation):
        [answer] = await self.threads.run(lambda: apply_now([operation]))
        return answer

    async def turn(self):
        found = await self.sweep.turn()
        assert found.keys() <= set(SWEPT), "an alert would miss the first of them"
        return dict(found)


@pytest.fixture
def bench():
    bench = Bench()
    yield bench
    bench.threads.close()


async def swept(bench, world, evidence, checkpoint=None):
    request = await in_database(orphan, world, checkpoint)
    if evidence is not None:
        bench.engine.record.entries[request.hex] = evidence
    return request, await bench.turn()


@pytest.mark.parametrize("reason", [FinishReason.STOP, FinishReason.CANCELLED, FinishReason.LENGTH])
async def test_finished_is_settled_exactly(bench, reason):
    world = await in_database(make_world)
    _, found = await swept(bench, world, Finished(reason, DONE), {"input": 60})
    assert found == {"settled": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert charged == 60 * 10 + 40 + 7 * 40
    assert (row.exact, row.finish, row.output_tokens) == (True, reason.value, 7)
    assert (row.endpoint, row.task, row.route, row.end_user) == ("responses", "chat", {"rule": "r"}, "e")
    assert await bench.turn() == {}


TOO_MUCH = Usage(input=2**30, output=2**30)


@pytest.mark.parametrize("evidence", [Finished(FinishReason.STOP, TOO_MUCH), Running(TOO_MUCH)])
async def test_what_was_never_paid_for_is_no_evidence(bench, evidence):
    """A worker in other hands than ours could charge a wallet without bound for a request that its gateway lost."""
    world = await in_database(make_world)
    bench.later = timedelta(minutes=20)
    request, found = await swept(bench, world, evidence, {"input": 60, "output": 2})
    assert found == {"estimated": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.exact) == (60 * 10 + 2 * 40, False)
    bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, TOO_MUCH)
    assert await bench.turn() == {}, "nor does it correct the estimate"
    assert (await in_database(assert_books, world, records=1))[0] == charged


@pytest.mark.parametrize(
    "evidence", [Finished(FinishReason.STOP, DONE), Finished(FinishReason.CANCELLED, DONE), Lost(), None]
)
async def test_answer_in_one_piece_whose_gateway_was_lost_is_waived_at_once(bench, evidence):
    """It was never delivered, whatever ran; a worker that can't be reached is not waited for."""
    world = await in_database(make_world)
    request = await in_database(partial(orphan, streamed=False), world, {"input": 60, "output": 3})
    if evidence is None:
        bench.engine.options = replace(bench.engine.options, unreachable=True)
    else:
        bench.engine.record.entries[request.hex] = evidence
    pending = await in_database(usage_of, world.tenant.id, world.project.id, request)
    assert (pending.status, pending.usage, pending.held_micro > 0) == ("pending", None, True)
    assert await in_database(usage_of, world.tenant.id, uuid7(), request) is None  # another project's key
    assert await bench.turn() == {"waived": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.exact, row.waived, row.output_tokens) == (0, True, True, 0)
    shown = await in_database(usage_of, world.tenant.id, world.project.id, request)
    assert (shown.status, shown.waived, shown.usage.credits_micro) == ("settled", True, 0)
    assert await in_database(usage_of, world.tenant.id, uuid7(), request) is None
    for told in (pending, shown):  # they are what the OpenAPI document says
        assert msgspec.json.decode(msgspec.json.encode(told), type=RequestUsage) == told


async def test_stream_that_ended_before_any_output_costs_nothing(bench):
    world = await in_database(make_world)
    _, found = await swept(bench, world, Finished(FinishReason.CANCELLED, Usage(input=100)))
    assert found == {"waived": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.waived) == (0, True)


async def test_what_this_process_decided_is_applied_as_it_was_decided(bench):
    """An answer in one piece was delivered while its settlement was pending: it is charged."""
    world = await in_database(make_world)
    request = await in_database(partial(orphan, streamed=False), world)
    classes = {"input": 60, "output": 7}
    bench.unsettled[request] = Settle(request, world.wallet.id, 880, classes, EndFacts("stop"))
    assert await bench.turn() == {"settled": 1}
    assert not bench.unsettled
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.finish, row.waived) == (880, "stop", False)


async def test_decision_is_kept_until_it_is_answered_whatever_the_clocks_say(bench):
    """A gateway's clock that fell behind the database's had decisions forgotten before their lease was over."""
    world = await in_database(make_world)
    request = await in_database(partial(orphan, streamed=False), world)
    bench.unsettled[request] = Settle(request, world.wallet.id, 880, {"input": 60, "output": 7}, EndFacts("stop"))
    bench.later = timedelta(hours=3)
    submit, bench.sweep._submit = bench.sweep._submit, failing
    assert await bench.turn() == {"waiting": 1}
    bench.sweep._submit = submit
    assert await bench.turn() == {"settled": 1}
    assert not bench.unsettled


async def failing(operation):
    raise WriterError("away")


async def test_decision_whose_hold_is_gone_is_forgotten(bench):
    world = await in_database(make_world)
    request = uuid7()
    bench.unsettled[request] = Release(request, world.wallet.id)
    assert await bench.turn() == {"closed_by_another": 1}
    assert not bench.unsettled


@pytest.mark.parametrize("hours", [-3, 3])
async def test_evidence_is_waited_for_by_the_database_s_clock(hours, monkeypatch):
    """A gateway's clock that is ahead gave up at once, one that is behind waited for hours."""

    class Elsewhere(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(hours=hours)

    monkeypatch.setattr(timezone, "datetime", Elsewhere)
    threads = DatabaseThreads(1)

    async def submit(operation):
        [answer] = await threads.run(lambda: apply_now([operation]))
        return answer

    world = await in_database(make_world)
    request = await in_database(orphan, world, {"input": 60, "output": 3})
    sweep = Sweep(engines_of=lambda _: [], submit=submit, threads=threads)
    assert dict(await sweep.turn()) == {"waiting": 1}
    await in_database(lambda: Hold.objects.update(orphaned_at=F("orphaned_at") - timedelta(minutes=16)))
    assert dict(await sweep.turn()) == {"estimated": 1}
    threads.close()
    assert not await in_database(Hold.objects.filter(id=request).exists)


async def test_finished_without_work_is_released(bench):
    world = await in_database(make_world)
    _, found = await swept(bench, world, Finished(FinishReason.CANCELLED, Usage()))
    assert found == {"released": 1}
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == 0


async def test_nothing_ran_is_released_and_can_run_no_more(bench):
    world = await in_database(make_world)
    request, found = await swept(bench, world, None, {"input": 60})
    assert found == {"released": 1}
    assert isinstance(await bench.engine.usage_of(request.hex), NothingRan)
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == 0


async def test_lost_is_settled_at_the_checkpoint_as_an_estimate(bench):
    world = await in_database(make_world)
    _, found = await swept(bench, world, Lost(), {"input": 60, "cache_read": 40, "output": 3})
    assert found == {"estimated": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert charged == 60 * 10 + 40 + 3 * 40
    assert (row.exact, row.finish) == (False, "lost")


async def test_hold_that_cannot_be_understood_keeps_no_other_open(bench):
    world = await in_database(make_world)
    bad = await in_database(orphan, world)
    await in_database(lambda: Hold.objects.filter(id=bad).update(card_version=uuid7()))
    bench.engine.record.entries[bad.hex] = Finished(FinishReason.STOP, DONE)
    _, found = await swept(bench, world, Finished(FinishReason.STOP, DONE))
    assert found == {"waiting": 1, "settled": 1}


async def test_lost_without_a_checkpoint_costs_nothing_as_far_as_is_known(bench):
    world = await in_database(make_world)
    _, found = await swept(bench, world, Lost())
    assert found == {"estimated": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert (charged, row.exact) == (0, False)


async def estimated(bench, world, checkpoint):
    """An orphan settled at its checkpoint, since its worker can't be reached for 15 minutes."""
    reachable = bench.engine.options
    bench.engine.options = replace(reachable, unreachable=True)
    request = await in_database(orphan, world, checkpoint)
    bench.later = timedelta(minutes=15, seconds=1)
    assert await bench.turn() == {"estimated": 1}
    bench.engine.options = reachable
    return request


@pytest.mark.parametrize("checkpoint", [{}, {"input": 60, "output": 3}, {"input": 60, "output": 99}])
async def test_estimate_is_corrected_when_the_worker_comes_back(bench, checkpoint):
    world = await in_database(make_world)
    request = await estimated(bench, world, checkpoint)
    bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, DONE)
    bench.later = timedelta(hours=23)
    assert await bench.turn() == {"corrected": 1}
    assert await bench.turn() == {}

    def check():
        exact = UsageRecord.objects.get(request=request, revision=1)
        assert (exact.exact, exact.charge, exact.finish) == (True, 60 * 10 + 40 + 7 * 40, "stop")
        assert (exact.endpoint, exact.route) == ("responses", {"rule": "r"})
        assert (exact.input_tokens, exact.cache_read_tokens, exact.output_tokens) == (60, 40, 7)
        wallet = Wallet.objects.get(pk=world.wallet.pk)
        assert wallet.posted == world.wallet.posted + 10_000_000 - exact.charge
        assert reconcile.check(connection) == []
        assert record_of(request, world.tenant.id) == exact
        assert recent_usage(world.tenant.id) == [exact]
        while rollups.consume_usage():
            pass
        rollup = UsageRollup.objects.get(tenant=world.tenant.id)
        assert (rollup.requests, rollup.charge, rollup.output_tokens) == (1, exact.charge, 7)
        shown = usage_of(world.tenant.id, world.project.id, request)
        assert (shown.revision, shown.is_exact, shown.usage.credits_micro) == (1, True, exact.charge)

    await in_database(check)


async def test_estimate_is_left_alone_after_a_day(bench):
    world = await in_database(make_world)
    request = await estimated(bench, world, {"input": 60})
    bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, DONE)
    bench.later = timedelta(hours=24, seconds=1)
    assert await bench.turn() == {}


@pytest.mark.parametrize(("evidence", "times"), [(Lost(), 1), (NothingRan(), 1), (Running(Usage()), 2), (None, 2)])
async def test_estimate_is_asked_about_until_nothing_can_come_any_more(bench, evidence, times):
    world = await in_database(make_world)
    request = await estimated(bench, world, {"input": 60})
    asked = []

    async def usage_of(identifier):
        asked.append(identifier)
        if evidence is None:
            raise UnreachableError("away")
        return evidence

    bench.engine.usage_of = usage_of
    assert [await bench.turn(), await bench.turn()] == [{}, {}]
    assert asked == [attempt_id(request, number) for number in range(MOST_ATTEMPTS)] * times


async def test_estimates_are_looked_at_in_pages_and_a_silent_worker_is_asked_once_in_each(bench, monkeypatch):
    monkeypatch.setattr(sweep_module, "ESTIMATES", 2)
    world = await in_database(make_world)
    requests = [await estimated(bench, world, {"input": 60}) for _ in range(5)]
    reachable = bench.engine.options
    bench.engine.options = replace(reachable, unreachable=True)
    bench.sweep._places = asyncio.Semaphore(1)
    bench.sweep._after, asked, usage_of = None, [], bench.engine.usage_of

    async def noted(identifier):
        asked.append(identifier)
        return await usage_of(identifier)

    bench.engine.usage_of = noted
    for _ in range(4):
        assert await bench.turn() == {}
    assert asked == [attempt_id(requests[i], number) for i in (0, 2, 4, 0) for number in range(MOST_ATTEMPTS)]
    bench.engine.options = reachable
    for request in requests:
        bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, DONE)
    found = [await bench.turn() for _ in range(4)]
    assert sum(turn.get("corrected", 0) for turn in found) == 5


@pytest.mark.parametrize("evidence", ["running", "unreachable", "no engine"])
async def test_hold_stays_orphaned_until_evidence_or_fifteen_minutes(bench, evidence):
    world = await in_database(make_world)
    checkpoint = {"input": 60, "output": 3}
    request = await in_database(orphan, world, checkpoint)
    if evidence == "running":
        bench.engine.record.entries[request.hex] = Running(Usage(input=60, output=5))
    elif evidence == "unreachable":
        bench.engine.options = replace(bench.engine.options, unreachable=True)
    else:
        bench.sweep._engines_of = lambda _: []
    assert await bench.turn() == {"waiting": 1}
    hold = await in_database(Hold.objects.get)
    assert (hold.state, hold.amount) == (Hold.State.ORPHANED, 3000)
    assert (await in_database(Wallet.objects.get, pk=world.wallet.pk)).held == 3000
    bench.later = timedelta(minutes=14)
    assert await bench.turn() == {"waiting": 1}
    bench.later = timedelta(minutes=15, seconds=1)
    assert await bench.turn() == {"estimated": 1}
    charged, [row] = await in_database(assert_books, world, records=1)
    assert charged == 60 * 10 + (5 if evidence == "running" else 3) * 40
    assert not row.exact


async def test_evidence_that_comes_later_is_still_exact(bench):
    world = await in_database(make_world)
    request, found = await swept(bench, world, Running(Usage(input=60, output=5)))
    assert found == {"waiting": 1}
    bench.engine.record.entries[request.hex] = Finished(FinishReason.CANCELLED, DONE)
    assert await bench.turn() == {"settled": 1}
    _, [row] = await in_database(assert_books, world, records=1)
    assert row.exact


async def test_renewed_hold_is_left_alone(bench):
    world = await in_database(make_world)
    request = await in_database(orphan, world)
    owner = (await in_database(Hold.objects.get)).owner
    await in_database(apply_now, [Renew(owner, {request: {}})])
    assert await bench.turn() == {}


async def test_two_sweeps_at_once_close_a_hold_once(bench):
    world = await in_database(make_world)
    request = await in_database(orphan, world)
    bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, DONE)
    again = Bench()
    again.engine = bench.engine
    first, second = await bench.turn(), await again.turn()
    again.threads.close()
    assert first == {"settled": 1}
    assert second == {}
    await in_database(assert_books, world, records=1)


async def test_hold_closed_while_its_evidence_was_asked_is_not_charged_twice(bench):
    world = await in_database(make_world)
    request = await in_database(orphan, world)
    bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, DONE)
    usage_of = bench.engine.usage_of

    async def raced(request_id):
        other = Bench()
        other.engine.record.entries[request_id] = NothingRan()
        await other.turn()
        other.threads.close()
        return await usage_of(request_id)

    bench.engine.usage_of = raced
    assert await bench.turn() == {"closed_by_another": 1}
    await in_database(assert_books, world, records=1)


def test_command_prints_what_it_did(capsys):
    world = make_world()
    orphan(world)
    call_command("sweep")
    assert "released: 1" in capsys.readouterr().out
    assert UsageRecord.objects.get().charge == 0
    Deployment.objects.all().delete()
    orphan(world, streamed=False)
    call_command("sweep")
    assert "waived: 1" in capsys.readouterr().out


def counting(bench):
    """Count how often the engine is asked about each request."""
    asked = Counter()
    usage_of = bench.engine.usage_of

    async def counted(request):
        asked[request] += 1
        return await usage_of(request)

    bench.engine.usage_of = counted
    return asked


@pytest.mark.parametrize("lease", [None, timedelta(minutes=1)])
async def test_two_sweeps_at_once_settle_each_hold_once_and_with_leases_share_the_work(bench, lease):
    world = await in_database(partial(make_world, credit=1_000_000))
    requests = [await in_database(orphan, world, {"input": 60}) for _ in range(6)]
    for request in requests:
        bench.engine.record.entries[request.hex] = Finished(FinishReason.STOP, DONE)
    asked = counting(bench)
    threads = DatabaseThreads(2)
    sweeps = [
        Sweep(engines_of=lambda _: [bench.engine], submit=bench.submit, threads=threads, lease=lease) for _ in range(2)
    ]
    try:
        found = sum(await asyncio.gather(*(one.turn() for one in sweeps)), Counter())
    finally:
        threads.close()
    await in_database(assert_books, world, records=6)
    if lease is not None:
        attempts = [attempt_id(request, number) for request in requests for number in range(MOST_ATTEMPTS)]
        assert asked == dict.fromkeys(attempts, 1)
        assert found == {"settled": 6}


async def test_the_last_attempt_of_a_request_that_moved_counts(bench):
    """Its gateway died after it had moved to another replica: the first worker lost it, the second has all of it."""
    world = await in_database(make_world)
    request = await in_database(orphan, world, {"input": 60})
    whole = Finished(FinishReason.CANCELLED, Usage(input=100, output=30))

    def says(evidence):
        async def usage_of(identifier):
            return evidence.get(identifier, NothingRan())

        return SimpleNamespace(usage_of=usage_of)

    first, second = says({request.hex: Lost()}), says({attempt_id(request, 1): whole})
    bench.sweep._engines_of = lambda _: [first, second]
    assert dict(await bench.turn()) == {"settled": 1}
    _, [row] = await in_database(assert_books, world, records=1)
    assert (row.output_tokens, row.exact) == (30, True)


async def test_an_engine_that_forgets_hides_no_attempt_that_ended_well(bench):
    """A foreign server's engine says of attempts that were never made what it says of those that it lost."""
    world = await in_database(make_world)
    request = await in_database(orphan, world, {"input": 60})
    known = {request.hex: Finished(FinishReason.STOP, Usage(input=100, output=30))}

    async def usage_of(identifier):
        return known.get(identifier, Lost())

    bench.sweep._engines_of = lambda _: [SimpleNamespace(usage_of=usage_of)]
    assert dict(await bench.turn()) == {"settled": 1}
    _, [row] = await in_database(assert_books, world, records=1)
    assert (row.output_tokens, row.exact) == (30, True)


@pytest.mark.parametrize("number", range(MOST_ATTEMPTS))
async def test_what_a_deployment_with_one_replica_ran_as_a_later_attempt_is_found(bench, number):
    """Those before it were made elsewhere: its hold was pinned to this deployment afterwards."""
    world = await in_database(make_world)
    request = await in_database(orphan, world, {"input": 60})
    bench.engine.record.entries[attempt_id(request, number)] = Finished(FinishReason.STOP, DONE)
    assert await bench.turn() == {"settled": 1}
    charged, _ = await in_database(assert_books, world, records=1)
    assert charged == 60 * 10 + 40 + 7 * 40


async def test_several_gateways_share_the_estimates_among_them(bench):
    """Each is asked about by one of them, and by the others once that one is gone."""
    world = await in_database(make_world)
    requests = [await estimated(bench, world, {"input": 60}) for _ in range(8)]
    asked, places = Counter(), {0: (0, 2), 1: (1, 2)}

    def one(number):
        return Sweep(
            engines_of=lambda _: [bench.engine],
            submit=bench.submit,
            threads=bench.threads,
            share=lambda: places[number],
        )

    sweeps = [one(number) for number in places]
    for sweep in sweeps:
        sweep._correct = partial(_noted, asked)
        await sweep.turn()
    assert asked == dict.fromkeys(requests, 1)
    places[0] = (0, 1)
    await sweeps[0].turn()
    assert sum(asked.values()) == 16


async def _noted(asked, estimate, silent):
    asked[estimate.request] += 1
