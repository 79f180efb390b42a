"""Models on their way here: asked for on a page, fetched by periodic work, put into the catalogue without a price."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import ExitStack
from datetime import timedelta
from typing import Any

from django.db import connections
from django.db.models import F, Q, QuerySet

from base import clock
from base.errors import ServiceError
from base.home import as_stored
from fleet.local_models import add_local_model, require_free
from fleet.worker_specs import WorkerSpecError, checked_engine
from routing.models import Fetch

LEASE = timedelta(seconds=60)
"""A fetch is renewed every few seconds; one that wasn't for so long is begun anew, by this process or another."""

THREAD = "fetch"

logger = logging.getLogger("sluice.fetches")


def ask(*, source: str, name: str = "", options: dict[str, Any] | None = None, asked_by: str = "") -> Fetch:
    """Have `source` (hub id, folder or GGUF file of this machine) fetched; raise ServiceError naming the field."""
    source, options = as_stored(source.strip()), options or {}
    if not source:
        raise ServiceError("source", "Say where the weights are: a hub id, a folder, or a GGUF file.")
    if name:
        require_free(name)
    try:
        checked_engine(source, options)
    except WorkerSpecError as error:
        raise ServiceError("options", str(error)) from error
    if Fetch.objects.filter(source=source, state__in=(Fetch.State.WAITING, Fetch.State.RUNNING)).exists():
        raise ServiceError("source", f"{source} is being fetched already.")
    return Fetch.objects.create(source=source, name=name, options=options, asked_by=asked_by)


def again(fetch: Fetch) -> None:
    """Have what failed or was stopped fetched again; what is here already isn't fetched twice."""
    ended = Fetch.objects.filter(pk=fetch.pk, state__in=(Fetch.State.FAILED, Fetch.State.STOPPED))
    ended.update(state=Fetch.State.WAITING, refusal="", doing="", bytes=0, lease_until=None)


def stop(fetch: Fetch) -> None:
    """Let nothing more come; whoever works on it ends within seconds."""
    under_way = Fetch.objects.filter(pk=fetch.pk, state__in=(Fetch.State.WAITING, Fetch.State.RUNNING))
    under_way.update(state=Fetch.State.STOPPED, lease_until=None)


def in_thread(work: Callable[[], None]) -> None:
    """Do the work beside the jobs, of which none may take minutes."""
    threading.Thread(target=work, name=THREAD, daemon=True).start()


def wait() -> None:
    """Wait for the fetch that this process began: a command that ends would cut it off."""
    for thread in threading.enumerate():
        if thread.name == THREAD:
            thread.join()


class Fetches:
    """Begins the fetches that are asked for, one at a time in this process."""

    def __init__(self, start: Callable[[Callable[[], None]], None] = in_thread) -> None:
        self._start = start
        self._busy = threading.Lock()

    def step(self) -> bool:
        """Begin the oldest fetch that nobody works on, and return False: more is due only when that has ended."""
        if not self._busy.acquire(blocking=False):
            return False
        with ExitStack() as held:
            held.callback(self._busy.release)  # whatever the database or the thread does
            if (fetch := _claimed()) is not None:
                ends = held.pop_all()

                def work() -> None:
                    with ends:
                        _run(fetch, Claim(fetch))

                try:
                    self._start(work)
                except RuntimeError:  # no thread can be started
                    ends.close()
                    raise
        return False


def _claimed() -> Fetch | None:
    now = clock.now()
    free = Q(state=Fetch.State.WAITING) | Q(state=Fetch.State.RUNNING, lease_until__lt=now)
    for fetch in Fetch.objects.filter(free).order_by("created_at", "id")[:10]:
        taken = Fetch.objects.filter(free, pk=fetch.pk).update(state=Fetch.State.RUNNING, lease_until=now + LEASE)
        if taken:
            fetch.refresh_from_db()
            return fetch
    return None


class LostError(Exception):
    """Somebody stopped the fetch meanwhile, or took it over."""


class Claim:
    """One process's hold on a running fetch. The end of the lease is its token: whoever takes the fetch over sets
    another, and what comes from the former holder is refused from then on.
    """

    def __init__(self, fetch: Fetch) -> None:
        self._fetch = fetch.pk
        self._lease = fetch.lease_until

    def _mine(self) -> QuerySet[Fetch]:
        return Fetch.objects.filter(pk=self._fetch, state=Fetch.State.RUNNING, lease_until=self._lease)

    def note(self, **facts: Any) -> None:
        """Renew the lease, with what was done meanwhile; raise LostError where it is another's."""
        renewed = clock.now() + LEASE
        if not self._mine().update(lease_until=renewed, **facts):
            raise LostError
        self._lease = renewed

    def end(self, **facts: Any) -> None:
        """End the fetch, unless it is another's by now."""
        self._mine().update(doing="", lease_until=None, **facts)


def _run(fetch: Fetch, claim: Claim) -> None:
    """Fetch it and put it into the catalogue, or note why that can't be."""
    is_threads = threading.current_thread() is not threading.main_thread()
    try:
        row = add_local_model(
            source=fetch.source,
            name=fetch.name,
            options=fetch.options,
            priced=False,
            tell=lambda doing: claim.note(doing=doing[:300]),
            progress=lambda size: claim.note(bytes=size),
        )
        claim.end(state=Fetch.State.DONE, model=row.model, name=row.model.name)
    except LostError:
        logger.info("fetch_lost", extra={"source": fetch.source})
    except ServiceError as error:
        claim.end(state=Fetch.State.FAILED, refusal=error.message[:1000])
    except Exception as error:
        logger.exception("fetch_failed", extra={"source": fetch.source})
        claim.end(state=Fetch.State.FAILED, refusal=f"{type(error).__name__}: {error}"[:1000])
    finally:
        if is_threads:
            connections.close_all()


def under_way() -> list[Fetch]:
    """Return the fetches that aren't over, and those that failed since the last that was done, newest first."""
    open_states = (Fetch.State.WAITING, Fetch.State.RUNNING, Fetch.State.FAILED)
    return list(Fetch.objects.filter(state__in=open_states).order_by(F("created_at").desc())[:20])
