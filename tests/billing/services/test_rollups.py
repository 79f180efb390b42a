from __future__ import annotations

import threading
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from django.db import connection

from base.ids import uuid7
from billing.models import CostSample, KeyTotal, OutboxEvent, UsageDay, UsageRecord, UsageRollup
from billing.selectors.usage import charges_of_key
from billing.services import rollups
from billing.services.costs import cost_of

pytestmark = [pytest.mark.contract, pytest.mark.django_db]

NOON = datetime(2026, 5, 1, 12, 59, 59, 999_000, tzinfo=UTC)


def publish(*records, revisions=()):
    payload = {"records": [str(one.request) for one in records]}
    if revisions:
        payload["revisions"] = [[str(one.request), one.revision] for one in revisions]
    return OutboxEvent.objects.create(topic="usage", payload=payload)


@pytest.fixture(autouse=True)
def _days_are_the_sums_of_their_hours(db):
    yield
    names = ("requests", "input_tokens", "cache_read_tokens", "output_tokens", "charge", "cost", "costed")
    days = Counter()
    for one in UsageRollup.objects.all():
        for name in names:
            days[one.hour.date(), one.model, name] += getattr(one, name)
    found = {(one.day, one.model, name): getattr(one, name) for one in UsageDay.objects.all() for name in names}
    assert found == days


def sums():
    return list(
        UsageRollup.objects.order_by("hour", "model", "requests").values_list(
            "hour", "model", "api_key", "requests", "input_tokens", "cache_read_tokens", "output_tokens", "charge"
        )
    )


def test_usage_is_summed_by_hour_key_and_model(record):
    key = uuid7()
    publish(
        record(at=NOON, api_key=key, input_tokens=5, cache_read_tokens=2, output_tokens=3, charge=7),
        record(at=NOON, api_key=key, input_tokens=1, cache_read_tokens=0, output_tokens=0, charge=1),
        record(at=NOON, api_key=None, charge=2),
    )
    publish(record(at=NOON.replace(hour=13), api_key=key, charge=4), record(at=NOON, model="n", api_key=key, charge=8))
    assert rollups.consume_usage() == 2
    twelve, one = datetime(2026, 5, 1, 12, tzinfo=UTC), datetime(2026, 5, 1, 13, tzinfo=UTC)
    assert sums() == [
        (twelve, "m", None, 1, 1, 0, 0, 2),
        (twelve, "m", key, 2, 6, 2, 3, 8),
        (twelve, "n", key, 1, 1, 0, 0, 8),
        (one, "m", key, 1, 1, 0, 0, 4),
    ]


def test_reasoning_is_summed_as_output_and_so_are_its_corrections(record):
    first = record(at=NOON, exact=False, output_tokens=3, reasoning_tokens=40, charge=7)
    publish(first, record(at=NOON, output_tokens=1, reasoning_tokens=0, charge=1))
    rollups.consume_usage()
    assert UsageRollup.objects.get().output_tokens == 44
    corrected = record(at=NOON, request=first.request, revision=1, output_tokens=2, reasoning_tokens=50, charge=7)
    publish(revisions=[corrected])
    rollups.consume_usage()
    assert UsageRollup.objects.get().output_tokens == 53


def test_an_event_takes_effect_once_and_later_ones_add_up(record):
    publish(record(at=NOON, charge=3))
    assert (rollups.consume_usage(), rollups.consume_usage()) == (1, 0)
    publish(record(at=NOON, charge=4))
    assert rollups.consume_usage() == 1
    rollup = UsageRollup.objects.get()
    assert (rollup.requests, rollup.charge) == (2, 7)
    assert not OutboxEvent.objects.exists()


@pytest.mark.parametrize("in_order", [True, False])
def test_a_correction_adds_its_difference_once_and_no_request(record, in_order):
    first = record(at=NOON, exact=False, input_tokens=9, output_tokens=1, charge=10)
    second = record(at=NOON, request=first.request, revision=1, input_tokens=9, output_tokens=5, charge=4)
    bystander = record(at=NOON, charge=100)
    events = [([first, bystander], []), ([], [second])]
    for records, revisions in events if in_order else reversed(events):
        publish(*records, revisions=revisions)
        rollups.consume_usage()
    (_, _, _, *found) = sums()[0]
    assert found == [2, 10, 0, 5, 104]
    assert len(sums()) == 1


def test_a_record_and_its_correction_in_one_chunk(record):
    first = record(at=NOON, exact=False, output_tokens=1, charge=10)
    second = record(at=NOON, request=first.request, revision=1, output_tokens=5, charge=30)
    publish(first)
    publish(revisions=[second])
    assert rollups.consume_usage() == 2
    rollup = UsageRollup.objects.get()
    assert (rollup.requests, rollup.output_tokens, rollup.charge) == (1, 5, 30)


def test_a_chunk_takes_the_oldest_events_of_its_topic_only(record):
    OutboxEvent.objects.create(topic="webhook", payload={})
    first = publish(record())
    second = publish(record())
    assert rollups.consume_usage(records=1) == 1
    left = set(OutboxEvent.objects.values_list("id", flat=True))
    assert first.pk not in left
    assert second.pk in left
    assert rollups.consume_usage() == 1
    assert OutboxEvent.objects.get().topic == "webhook"


def test_a_chunk_is_bounded_by_records_and_takes_one_event_at_least(record):
    for size in (3, 2, 2, 9):
        publish(*[record() for _ in range(size)])
    assert [rollups.consume_usage(records=5) for _ in range(4)] == [2, 1, 1, 0]
    assert UsageRollup.objects.get().requests == 16


def test_many_cells_take_as_many_queries_as_one(record, django_assert_num_queries):
    """One cell after another took 43 to 69 queries a chunk."""
    keys = [uuid7() if n % 2 else None for n in range(40)]
    for _ in range(2):  # made, then added to
        publish(*[record(at=NOON, model=f"m{n}", api_key=key) for n, key in enumerate(keys)])
        # oldest, begin, take, what is old, its keys' totals, costs, with a key, without, days, promises, commit
        with django_assert_num_queries(11):
            rollups.consume_usage()
    assert UsageRollup.objects.count() == 40
    assert set(UsageRollup.objects.values_list("requests", flat=True)) == {2}


def test_a_failure_leaves_the_events_for_the_next_time(record, monkeypatch):
    publish(record(charge=3))
    with monkeypatch.context() as broken:
        broken.setattr(rollups, "_add", None)
        with pytest.raises(ExceptionGroup, match="1 of 1"):
            rollups.consume_usage()
    assert rollups.consume_usage() == 1
    assert UsageRollup.objects.get().charge == 3


@pytest.mark.parametrize("bad", [{"records": ["no uuid"]}, {}, [1], "text", {"records": None}])
def test_an_event_that_always_fails_keeps_no_other_from_taking_effect(record, bad):
    event = OutboxEvent.objects.create(topic="usage", payload=bad)
    publish(record(charge=3))
    with pytest.raises(ExceptionGroup, match="1 of 2 outbox events failed"):
        rollups.consume_usage()
    assert UsageRollup.objects.get().charge == 3
    for _ in range(20):
        publish(record(charge=1))
    assert [rollups.consume_usage(records=10) for _ in range(2)] == [10, 10]
    with pytest.raises(ExceptionGroup, match="1 of 1 outbox events failed"):
        rollups.consume_usage()
    assert OutboxEvent.objects.get() == event


@pytest.mark.django_db(transaction=True)
def test_two_consumers_at_once_count_each_record_once(record):
    for _ in range(20):
        publish(record(at=NOON, charge=1), record(at=NOON, model="n", charge=1))
    start = threading.Barrier(2)
    failures = []

    def consume():
        try:
            start.wait()
            while rollups.consume_usage(records=6):
                pass
        except Exception as error:  # noqa: BLE001 - handed to the test's thread
            failures.append(error)
        finally:
            connection.close()

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert sum(UsageRollup.objects.values_list("requests", flat=True)) == 40


def calibrated(deployment, at, **rates):
    """A calibration of that moment, at µcr per million."""
    return CostSample.objects.create(
        deployment=deployment, name="d", model="m", device="d", seconds={}, price={"hour": 1}, proposal={},
        rates=rates, residual=0.0, recovery=1.0, created_at=at,
    )  # fmt: skip


def test_costs_are_those_of_the_calibration_in_force_when_a_request_began(record):
    first = record(at=NOON, exact=False, input_tokens=3, cache_read_tokens=0, output_tokens=2, charge=90)
    publish(first)
    rollups.consume_usage()
    assert (UsageRollup.objects.get().cost, cost_of(first)) == (0, None), "nothing was calibrated"
    old = calibrated(first.deployment, NOON - timedelta(hours=1), input=5_000_000, output=10_000_000)
    calibrated(first.deployment, NOON + timedelta(seconds=1), input=7_000_000)
    publish(first, record(at=NOON + timedelta(seconds=2), input_tokens=2, charge=20))
    rollups.consume_usage()
    later = UsageRollup.objects.get(hour__gt=NOON)
    assert (later.cost, later.costed) == (14, 20)
    assert (cost_of(first).amount, cost_of(first).sample) == (35, old.pk)
    hour = UsageRollup.objects.get(hour__lt=NOON)
    assert (hour.cost, hour.costed) == (35, 90)
    corrected = record(at=NOON, request=first.request, revision=1, input_tokens=1, output_tokens=2, charge=40)
    publish(revisions=[corrected])
    rollups.consume_usage()
    hour.refresh_from_db()
    assert (hour.cost, hour.costed) == (25, 40), "the difference, at the same calibration"


def total_of(key):
    return KeyTotal.objects.filter(pk=key).values_list("charge", flat=True).first()


def test_months_that_are_over_are_added_to_each_keys_total_and_late_corrections_too(record, wallet, clock):
    keys = [uuid7(), uuid7()]
    old = record(at=NOON, api_key=keys[0], charge=7)
    publish(old, record(at=NOON + timedelta(days=40), api_key=keys[0], charge=2))
    publish(record(at=NOON, api_key=keys[1], charge=5))
    while rollups.consume_usage():
        pass
    clock.set(datetime(2026, 6, 30, 12, tzinfo=UTC))
    while rollups.add_up_keys():
        pass
    assert [total_of(key) for key in keys] == [None, None], "May is the month before"
    clock.set(datetime(2026, 7, 1, 12, tzinfo=UTC))
    assert rollups.add_up_keys(1), "there are more"
    while rollups.add_up_keys(1):
        pass
    assert [total_of(key) for key in keys] == [7, 5]
    assert charges_of_key(wallet.tenant_id, keys[0])[0] == 9
    record(at=NOON, request=old.request, revision=1, api_key=keys[0], charge=4)
    publish(revisions=[UsageRecord.objects.get(request=old.request, revision=1)])
    rollups.consume_usage()
    assert [total_of(key) for key in keys] == [4, 5]
    assert charges_of_key(wallet.tenant_id, keys[0])[0] == 6
    clock.set(datetime(2026, 8, 1, 12, tzinfo=UTC))
    while rollups.add_up_keys():
        pass
    assert charges_of_key(wallet.tenant_id, keys[0])[0] == total_of(keys[0]) == 6
