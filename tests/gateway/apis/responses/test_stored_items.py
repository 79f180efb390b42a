"""Stored items that a request refers to: however large what they stand in is, little of it is in memory."""

from __future__ import annotations

import tracemalloc

import msgspec
import pytest

from base.database.threads import DatabaseThreads
from base.ids import uuid7
from gateway.apis.responses import conversation, rows
from gateway.apis.responses.conversation import with_items
from gateway.apis.responses.rows import Owner
from gateway.errors.refusal import Refusal
from tests.gateway.world import in_database, make_world

pytestmark = pytest.mark.django_db(transaction=True)

LARGE = 400_000


@pytest.fixture
async def owner():
    world = await in_database(make_world)
    return Owner(world.tenant.id, world.project.id)


@pytest.fixture
def threads():
    pool = DatabaseThreads()
    yield pool
    pool.close()


def item(name, text):
    content = [{"type": "input_text", "text": text}]
    return {"id": name, "type": "message", "role": "user", "content": content, "status": "completed"}


def store(owner, count):
    """Store responses with a large item (`i0`) and a small one (`i1`) each; return their ids."""
    identifiers = [uuid7() for _ in range(count)]
    for identifier in identifiers:
        given = [item(f"msg_{identifier.hex}_i{place}", "x" * size) for place, size in enumerate((LARGE, 1))]
        body = b'{"output":[],"model":"m"}'
        rows.add(owner, identifier, status="completed", given=msgspec.json.encode(given), body=body)
    return identifiers


def references(identifiers, place):
    given = [{"type": "item_reference", "id": f"msg_{one.hex}_i{place}"} for one in identifiers]
    return [msgspec.Raw(msgspec.json.encode(one)) for one in given]


async def test_what_small_items_stand_in_isnt_in_memory_all_at_once(threads, owner, settings):
    settings.SLUICE_MAX_BODY_BYTES = 4 * LARGE
    identifiers = await in_database(store, owner, 40)
    tracemalloc.start()
    try:
        whole = await with_items(threads, owner, references(identifiers, 1))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [msgspec.json.decode(one)["id"] for one in whole] == [f"msg_{one.hex}_i1" for one in identifiers]
    assert peak < 40 * LARGE / 2


async def test_too_much_of_items_or_around_them_is_refused(threads, owner, settings, monkeypatch):
    settings.SLUICE_MAX_BODY_BYTES = 4 * LARGE
    identifiers = await in_database(store, owner, 9)
    assert len(await with_items(threads, owner, references(identifiers[:3], 0))) == 3
    with pytest.raises(Refusal, match="With the items that it refers to") as refused:
        await with_items(threads, owner, references(identifiers, 0))
    assert (refused.value.status, refused.value.param) == (400, "input")
    monkeypatch.setattr(conversation, "MOST_READ", 2)
    monkeypatch.setattr(rows, "each", lambda *_: pytest.fail("read all the same"))
    with pytest.raises(Refusal, match="responses whose items") as refused:
        await with_items(threads, owner, references(identifiers, 1))
    assert (refused.value.status, refused.value.param) == (400, "input")


async def test_items_of_many_responses_and_of_others_are_told_apart(threads, owner, monkeypatch):
    monkeypatch.setattr(rows, "LOOKED_UP_AT_ONCE", 2)
    identifiers = await in_database(store, owner, 5)
    twice = references([*identifiers, identifiers[0]], 1)
    whole = await with_items(threads, owner, twice)
    assert [msgspec.json.decode(one)["id"] for one in whole] == [msgspec.json.decode(one)["id"] for one in twice]
    with pytest.raises(Refusal) as refused:
        await with_items(threads, Owner(owner.tenant, uuid7()), twice)
    assert (refused.value.status, refused.value.code, refused.value.param) == (404, "item_not_found", "input[0].id")
