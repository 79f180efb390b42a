"""What every test needs: transactional tests can empty the guarded tables that the code under test cannot."""

from __future__ import annotations

import os
from asyncio.selector_events import BaseSelectorEventLoop, _SelectorTransport
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from django.contrib.auth.management import create_permissions
from django.contrib.contenttypes.management import create_contenttypes
from django.db import connections
from django.db.backends.base.introspection import BaseDatabaseIntrospection
from django.db.models.signals import post_migrate
from django.test import TransactionTestCase, override_settings
from hypothesis import HealthCheck, settings
from whitenoise.middleware import WhiteNoiseMiddleware

from billing import triggers
from tests.services.redis import RedisServer

# The suite draws the same cases each time, so that it fails for what was changed; `make explore` draws others.
# How long a case takes is no verdict: a busy machine takes long for any.
patient: dict[str, Any] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("suite", derandomize=True, **patient)
settings.register_profile("explore", derandomize=False, print_blob=True, **patient)  # also where CI is set
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "suite"))

_PERMISSIONS = "django.contrib.auth.management.create_permissions"  # as Django's own app connects it


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


@pytest.fixture(autouse=True, scope="session")
def _flush_past_the_guards() -> Any:
    """Suspend the append-only guards around the flush that ends each transactional test, and only there.

    Content types and permissions, which no test changes, stay: to make them anew took most of the time of a flush.
    """
    flush = TransactionTestCase._fixture_teardown

    def flush_unguarded(self: TransactionTestCase) -> None:
        connection = connections["default"]
        with triggers.suspended(connection), _kept(connection.introspection):
            flush(self)

    TransactionTestCase._fixture_teardown = flush_unguarded
    yield
    TransactionTestCase._fixture_teardown = flush


@contextmanager
def _kept(introspection: BaseDatabaseIntrospection) -> Iterator[None]:
    """Let a flush neither empty nor fill the tables of content types and permissions."""
    names = introspection.django_table_names
    others = partial(_without, names, {"django_content_type", "auth_permission"})
    post_migrate.disconnect(create_contenttypes)
    post_migrate.disconnect(dispatch_uid=_PERMISSIONS)
    try:
        with patch.object(introspection, "django_table_names", others):
            yield
    finally:
        post_migrate.connect(create_contenttypes)
        post_migrate.connect(create_permissions, dispatch_uid=_PERMISSIONS)


def _without(names: Callable[..., list[str]], kept: set[str], **options: Any) -> list[str]:
    return [name for name in names(**options) if name not in kept]


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
