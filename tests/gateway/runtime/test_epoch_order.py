"""Two tenants' keys, made at once and committed in the other order than their numbers were drawn."""

from __future__ import annotations

import threading

import pytest
from django.db import connection, connections, transaction

from gateway.runtime import epoch_triggers
from gateway.runtime.epoch import read_epoch
from tenancy.models import Project, Tenant
from tenancy.services import keys

pytestmark = [
    pytest.mark.postgresql,
    pytest.mark.django_db(transaction=True),
]
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


class Maker(threading.Thread):
    """Makes a key of `tenant`, draws its number and commits when it may."""

    def __init__(self, tenant):
        super().__init__()
        self.tenant = tenant
        self.project = Project.objects.create(tenant=tenant, name="Default")
        self.drawn, self.may_commit = threading.Event(), threading.Event()

    def run(self):
        try:
            with transaction.atomic():
                keys.create_key(tenant=self.tenant, project=self.project, name="new")
                with connection.cursor() as cursor:
                    cursor.execute("SET CONSTRAINTS ALL IMMEDIATE")  # what a commit begins with
                self.drawn.set()
                self.may_commit.wait(120)
        finally:
            connections.close_all()


def is_waiting():
    with connection.cursor() as cursor:
        cursor.execute(WAITING)
        return cursor.fetchone()[0] > 0


def race():
    """Return the two tenants, and those that a reader was told of that looked in the middle and at the end.

    The second commits before the first wherever it can: it waits where the first has locked the number's row.
    """
    first, second = (Maker(Tenant.objects.create(name=name, slug=name)) for name in ("first", "second"))
    told, since = set(), read_epoch().sequence

    def look():
        nonlocal since
        reading = read_epoch(since)
        told.update(reading.changed)
        since = max(since, reading.sequence, *reading.changed.values(), 0)

    look()
    told.clear()
    first.start()
    assert first.drawn.wait(120)
    second.may_commit.set()
    second.start()
    for _ in range(20_000):
        if not second.is_alive() or is_waiting():
            break
    else:
        raise AssertionError("the second neither ended nor waited")
    look()
    first.may_commit.set()
    for maker in (first, second):
        maker.join(120)
    look()
    return {first.tenant.id, second.tenant.id}, told


def test_reader_is_told_of_both_tenants():
    tenants, told = race()
    assert told == tenants


def test_numbers_drawn_without_the_row_s_lock_would_be_missed():
    """The guard off: numbers of the database's own sequence, which waits for nobody."""
    functions = epoch_triggers._FUNCTIONS
    draw = functions[
        functions.index("INSERT INTO gateway_catalogueepoch AS row (id, epoch, sequence) VALUES (1, 0, 1)") :
    ]
    draw = draw[: draw.index(";") + 1]
    with connection.cursor() as cursor:
        cursor.execute("CREATE SEQUENCE unlocked START 1000000")
        cursor.execute(functions.replace(draw, "number := nextval('unlocked');"))
    try:
        tenants, told = race()
    finally:
        with connection.cursor() as cursor:
            cursor.execute(functions)
            cursor.execute("DROP SEQUENCE unlocked")
    assert len(tenants - told) == 1
