"""What every test needs: a database as it was after migrating, and nothing that a test before it left open."""

from __future__ import annotations

import gc
import os
from asyncio.selector_events import BaseSelectorEventLoop, _SelectorTransport
from collections.abc import Iterator
from typing import Any

import pytest
from django.test import TransactionTestCase, override_settings
from hypothesis import HealthCheck, settings
from pytest_django.plugin import blocking_manager_key
from whitenoise.middleware import WhiteNoiseMiddleware

from tests.databases import Databases, database_of, databases_of
from tests.services.redis import RedisServer

# The suite draws the same cases each time, so that it fails for what was changed; `make explore` draws others.
# How long a case takes is no verdict: a busy machine takes long for any.
patient: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, **patient)
settings.register_profile("explore", derandomize=False, print_blob=True, **patient)  # also where CI is set
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))


@pytest.fixture(autouse=True, scope="session")
def _quick_passwords() -> Any:
    """Hash passwords quickly: a slow hash proves nothing here."""
    with override_settings(PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"]):
        yield


@pytest.fixture(autouse=True, scope="session")
def _static_files_found_once() -> Any:
    """Look for the static files once: each browser of a test has middleware of its own, which did so anew."""
    find, found = WhiteNoiseMiddleware.add_files_from_finders, {}

    def remember(self: WhiteNoiseMiddleware) -> None:
        if not found:
            find(self)
            found.update(self.files)
        self.files.update(found)

    WhiteNoiseMiddleware.add_files_from_finders = remember
    yield
    WhiteNoiseMiddleware.add_files_from_finders = find


_DATABASES = pytest.StashKey[Databases]()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Collect a test once for each of its databases, if it has two."""
    if len(names := databases_of(metafunc.definition)) > 1:
        metafunc.fixturenames.append("database")
        metafunc.parametrize("database", names, indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest) -> str:
    """The name of the test's database."""
    return database_of(request.node)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Give a test its database before any of its fixtures."""
    stash = item.session.config.stash
    if _DATABASES not in stash:
        stash[_DATABASES] = Databases(getattr(item.config, "workerinput", {}).get("workerid", "main"))
    database = stash[_DATABASES].use(database_of(item))
    if item.get_closest_marker("django_db") or {"db", "transactional_db"} & set(getattr(item, "fixturenames", ())):
        with stash[blocking_manager_key].unblock():
            database.make()


@pytest.fixture(autouse=True, scope="module")
def _kept_is_no_garbage() -> None:
    """Keep what is there before a module's tests from being looked through after each of them: that took 70 ms."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def nothing_stays_open() -> Iterator[None]:
    """Find what a test leaves open and unreachable at its own end, not in a later test."""
    yield
    gc.collect()


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _DATABASES in session.config.stash:
        with session.config.stash[blocking_manager_key].unblock():
            session.config.stash[_DATABASES].end()


@pytest.fixture(scope="session")
def django_db_setup(request: pytest.FixtureRequest) -> Iterator[None]:
    """Empty the database of this run after each test that commits, instead of Django's own making and flushing."""
    flush = TransactionTestCase._fixture_teardown
    TransactionTestCase._fixture_teardown = lambda _: request.config.stash[_DATABASES].current.empty()
    yield
    TransactionTestCase._fixture_teardown = flush


@pytest.fixture(autouse=True, scope="session")
def _accepted_by_closed_servers() -> Any:
    """Close what asyncio accepts in the very turn in which its server closes, which Python 3.11 to 3.13 forgets: its
    socket was found by the garbage collector, in whichever test that ran (python/cpython#109564).
    """
    accept = BaseSelectorEventLoop._accept_connection2

    async def accept_or_close(self: BaseSelectorEventLoop, factory: Any, accepted: Any, *rest: Any) -> None:
        _, _, server, *_ = rest
        if server is not None and not server.sockets:
            accepted.close()
        else:
            await accept(self, factory, accepted, *rest)

    BaseSelectorEventLoop._accept_connection2 = accept_or_close
    yield
    BaseSelectorEventLoop._accept_connection2 = accept


@pytest.fixture(autouse=True, scope="session")
def _transports_know_their_test() -> Any:
    """Let a connection that was never closed say which test made it: the collector finds it in another one."""
    make, tell = _SelectorTransport.__init__, _SelectorTransport.__repr__

    def made(self: Any, *given: Any, **named: Any) -> None:
        self.made_in = os.environ.get("PYTEST_CURRENT_TEST")
        make(self, *given, **named)

    _SelectorTransport.__init__ = made
    _SelectorTransport.__repr__ = lambda self: f"{tell(self)} of {self.made_in}"
    yield
    _SelectorTransport.__init__, _SelectorTransport.__repr__ = make, tell


@pytest.fixture(scope="session")
def _redis_server() -> Iterator[RedisServer]:
    server = RedisServer.start()
    yield server
    server.stop()


@pytest.fixture
def redis_server(_redis_server: RedisServer) -> RedisServer:
    """A real redis-server, running and empty; a test may end it."""
    if _redis_server.process is None:
        _redis_server.start_again()
    _redis_server.flush()
    return _redis_server
