"""Connections to PostgreSQL: how many each process opens, and all of it behind PgBouncer in either mode."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections import Counter

import aiohttp
import psycopg
import pytest
from django.db import connection

from base.database.connections import SERVER
from operation import schema
from tests.services.pgbouncer import SESSIONS, pgbouncer
from tests.stack.clients import mixed_jobs, run_jobs, whole
from tests.stack.stack import PATIENCE, assert_books_are_right, running_stack
from tests.stack.topology import running_topology
from tests.stack.web import ask

SESSIONS_OF = "SELECT application_name, client_port FROM pg_stat_activity WHERE datname = current_database()"
PASSWORD = "behind-a-pooler-1"


# -- a pooler that isn't known of ---------------------------------------------------------------------------------


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [(), ("ignore_startup_parameters = options",)], ids=["strict", "lenient"])
def test_a_pooler_in_place_of_postgresql_is_told_with_what_to_set(monkeypatch, options):
    given = connection.settings_dict
    server = f"postgresql://{given['USER']}@{given['HOST']}:{given['PORT']}/"
    with pgbouncer(server, "transaction", *options) as port:
        monkeypatch.setitem(given, "PORT", str(port))
        found = schema.look()
        assert "a pooler " in found.problem
        assert "set SLUICE_DIRECT_DATABASE_URL" in found.mend
        assert found.code == 78


# -- pages, API and jobs behind one -------------------------------------------------------------------------------


async def pages(address, email, times):
    """The statuses of pages that one who has signed in asks for, twelve at a time."""
    gate = asyncio.Semaphore(12)
    jar = aiohttp.CookieJar(unsafe=True)  # which keeps those of an IP address
    async with aiohttp.ClientSession(address, cookie_jar=jar, timeout=aiohttp.ClientTimeout(PATIENCE)) as browser:
        async with browser.get("/accounts/login/") as form:
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', await form.text())[1]
        given = {"login": email, "password": PASSWORD, "csrfmiddlewaretoken": token}
        async with browser.post("/accounts/login/", data=given, allow_redirects=False) as answer:
            assert answer.status == 302

        async def page(path):
            async with gate, browser.get(path) as answer:
                await answer.read()
                return answer.status

        return await asyncio.gather(*map(page, PAGES * times))


PAGES = ("/admin/", "/admin/routing/deployment/", "/admin/billing/plan/add/", "/admin/gateway/tenant/")


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.sweep
@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_pages_api_and_jobs_behind_pgbouncer(postgres_server, mode):
    with (
        pgbouncer(postgres_server, mode) as port,
        running_stack(server=postgres_server, pooler=port, chat={"step_seconds": 0.001}) as stack,
    ):
        direct = stack.environment["SLUICE_DIRECT_DATABASE_URL"]
        assert stack.command("setup").returncode == 0  # beside what serves, and past the pooler
        with psycopg.connect(direct, autocommit=True) as session:
            for name, value in SERVER.items():
                assert session.execute(f"SHOW {name}").fetchone() == (value,)
        stack.script("superuser", "operator@example.com", PASSWORD)
        keys = [tenant["key"] for tenant in stack.tenants.values()]
        answers = asyncio.run(run_jobs(stack.base_url, mixed_jobs(keys, 120), 24))
        assert {answer.status for answer in answers} <= {0, 200}
        assert set(asyncio.run(pages(stack.base_url, "operator@example.com", 6))) == {200}
        admin = stack.tenants["max"]["admin_key"]
        assert ask(f"{stack.base_url}/api/v1/usage", key=admin).status in {200, 404}
        found = stack.audit()
        assert_books_are_right(found)
        assert len(found["usage"]) >= len(whole(answers))
        until_summed(direct)
        with psycopg.connect(direct, autocommit=True) as session:
            rows = session.execute(SESSIONS_OF + " AND pid <> pg_backend_pid()").fetchall()
        own = sorted(re.sub(r" [0-9a-f-]{36}| \d+\b", "", name) for name, _ in rows if re.search(r"writer|lock", name))
        assert own == ["sluice gateway lock", "sluice gateway writer"]
        assert len(rows) - len(own) <= SESSIONS
        assert "Traceback" not in "".join(stack.said)
        assert stack.stop() == 0


def until_summed(address):
    """Return once the jobs have summed all usage; bounded by the test's timeout."""
    with psycopg.connect(address, autocommit=True) as session:
        while session.execute("SELECT count(*) FROM billing_outboxevent").fetchone() != (0,):
            time.sleep(0.1)


# -- how many there are -------------------------------------------------------------------------------------------

MOST = {  # of each process, as docs/scaling.md has it
    "gateway": 16,
    "gateway writer": 1,
    "gateway lock": 1,
    "jobs": 4,
    "celery": 2,
    "serve": 1,
    "worker": 1,
}


class Census(threading.Thread):
    """Counts the sessions of a database again and again, and keeps the most of each process and kind."""

    def __init__(self, address):
        super().__init__()
        self._session = psycopg.connect(address, autocommit=True)
        self._ends = threading.Event()
        self.most, self.of_all = Counter(), 0

    def run(self):
        while not self._ends.wait(0.02):
            names = [name for name, _ in self._session.execute(SESSIONS_OF).fetchall() if name.startswith("sluice ")]
            for name, count in Counter(re.sub(r" [0-9a-f-]{36}$", "", name) for name in names).items():
                self.most[name] = max(self.most[name], count)
            self.of_all = max(self.of_all, len(names))

    def end(self):
        self._ends.set()
        self.join(PATIENCE)
        self._session.close()


@pytest.mark.stack
@pytest.mark.slow
@pytest.mark.sweep
def test_each_process_of_three_gateways_opens_no_more_than_the_table_says(postgres_server):
    with running_topology(postgres_server, gateways=3, chat={"step_seconds": 0.001}) as cluster:
        stack = cluster.stack
        stack.script("superuser", "operator@example.com", PASSWORD)
        census = Census(stack.environment["DATABASE_URL"])
        census.start()
        keys = [tenant["key"] for tenant in stack.tenants.values()]

        async def load():
            control = f"http://127.0.0.1:{cluster.control_port}"
            asked = pages(control, "operator@example.com", 10)
            return await asyncio.gather(asked, run_jobs(stack.base_url, mixed_jobs(keys, 400), 64))

        assert set(asyncio.run(load())[0]) == {200}
        census.end()
        assert_books_are_right(cluster.settled())
        most = {}
        for name, count in census.most.items():
            kind, number, purpose = re.fullmatch(r"sluice (\w+) (\d+) ?(.*)", name).groups()
            if kind != "python":  # the test's own
                most.setdefault(f"{kind} {purpose}".strip(), {})[number] = count
        print(census.of_all, most)
        assert len(most["gateway writer"]) == len(most["gateway lock"]) == 3
        assert len(most["gateway"]) == 4  # the process of pages too
        assert most.keys() <= MOST.keys()
        assert {kind: max(counts.values()) for kind, counts in most.items() if max(counts.values()) > MOST[kind]} == {}
