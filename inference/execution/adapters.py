"""The adapters of one model: which ones requests may name, and which of them are in memory. Imports no torch."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import InvalidRequestError, ModelRefusedError, OverloadedError, UnpreparedError
from inference.execution.adapter_room import Bounds, Resident, Room

Span = tuple[str, int, int]
"""An adapter's key, and the first and the end of the neighbouring tokens of a step that have it."""

TYPICAL_RANK = 16

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Weights that are added to a model's, as its tier keeps them: `nbytes` is their size in memory.

    `digest` identifies what they were read from.
    """

    digest: str
    weights: Any
    nbytes: int


@dataclass(slots=True)
class _Loaded:
    adapter: Adapter
    tenant: str  # whose request used it last


class Adapters:
    """The adapters of a model that requests may name; of those the ones that were used last are in memory.

    A request is prepared with `load`, in any thread: files are read and weights packed beside the steps that run.
    What `load` returns names the adapter by its content as well: rows and prefix keys carry it, so that nothing
    computed with an adapter is taken for what another one of the same name would give. From its submission to its end
    a request holds its adapter, which stays in memory. While one is loaded there may be one more than the most. Who
    makes room for it tells `Room`.
    """

    def __init__(
        self,
        read: Callable[[Path], Adapter],
        typical_bytes: int = 0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`read` returns the adapter in a folder, or raises ModelRefusedError with a reason that names no path, or
        MemoryError or OSError where memory ran out or the disk didn't answer, which says nothing of the adapter.

        `typical_bytes` are those of one of rank `TYPICAL_RANK` that changes every layer. `clock` tells the seconds by
        which claims to room end; the attribute may be replaced.
        """
        self.read = read
        self.typical_bytes = typical_bytes
        self.clock = clock
        self._folders: dict[str, Path] = {}
        self._room = Room(self._now)
        self._loaded: dict[str, _Loaded] = {}  # by key, the most recently used last
        self._keys: dict[str, str] = {}  # of each name that was loaded since it was offered
        self._refused: dict[str, str] = {}
        self._sizes: dict[str, int] = {}  # in memory, of those that were read since they were offered
        self._checked: set[str] = set()
        self._held: dict[str, Counter[str]] = {}  # by key, how many requests of each tenant
        self._lock = threading.Lock()  # of all of the above, for moments
        self._loading = threading.Lock()  # held while an adapter is read

    def offer(self, folders: Mapping[str, Path], bounds: Bounds | None = None) -> None:
        """Let requests name these adapters from now on, and no others.

        A name with another folder is read anew, and so is one that was refused. Requests that hold an adapter end
        with it.
        """
        bounds = bounds if bounds is not None else Bounds()
        if bounds.most < 1 or bounds.per_tenant < 1:
            raise ValueError("at least one adapter has to fit into memory, and one of each tenant")
        with self._lock:
            changed = {name for name in self._folders if folders.get(name) != self._folders[name]}
            self._keys = {name: key for name, key in self._keys.items() if name not in changed}
            self._checked -= changed | self._refused.keys()
            self._sizes = {name: nbytes for name, nbytes in self._sizes.items() if name not in changed}
            self._folders, self._room.bounds = dict(folders), bounds
            self._refused.clear()
            for key in set(self._loaded) - set(self._keys.values()):
                self._drop(key)

    def unchecked(self) -> str | None:
        """Return the name of an adapter that was offered and never read, None where there is none."""
        with self._lock:
            return next((name for name in self._folders if name not in self._checked), None)

    def check(self, name: str) -> None:
        """Read the adapter `name`, and keep it where nothing has to make room for it; `states` knows the result."""
        with self._lock:
            folder = self._folders.get(name)
        if folder is None:
            return
        try:
            adapter, refusal = self._read(name, folder), ""
        except ModelRefusedError as error:
            adapter, refusal = None, error.message
        except OverloadedError:
            adapter, refusal = None, ""
        with self._lock:
            if self._folders.get(name) != folder:
                return
            self._checked.add(name)
            if refusal:
                self._refused[name] = refusal
            if adapter is None:
                return
            self._sizes[name] = adapter.nbytes
            if name not in self._keys and self._room.has_room(self._residents(), adapter.nbytes):
                self._keys[name] = key = f"{name}:{adapter.digest}"
                self._loaded = {key: _Loaded(adapter, ""), **self._loaded}  # nobody used it: the first to make room

    def states(self) -> dict[str, str]:
        """Return why each adapter that was read can't be served, "" where it can; those not read yet are missing."""
        with self._lock:
            return {name: self._refused.get(name, "") for name in self._folders if name in self._checked}

    def used(self, name: str, tenant: str = "") -> str | None:
        """Return the key of adapter `name`, now the most recently used one, if it is in memory; raise OverloadedError
        where the tenant may use no more of them, or others wait for its room.
        """
        with self._lock:
            key = self._keys.get(name)
            if key is None or key not in self._loaded:
                return None
            self._take(key, tenant)
            return key

    def load(self, name: str, tenant: str = "") -> str:
        """Return the key of adapter `name`, which `tenant` wants, and load it unless it is in memory; for any thread.

        Raise InvalidRequestError when there is no such adapter or it can't be served, OverloadedError when as many as
        fit into memory are held, or as many as the tenant may use, or memory ran out.
        """
        if (key := self.used(name, tenant)) is not None:
            return key
        with self._loading:  # of several that want it the first one loads it
            if (key := self.used(name, tenant)) is not None:
                return key
            with self._lock:
                folder, refusal = self._folders.get(name), self._refused.get(name)
                if folder is not None and refusal is None:
                    # Nothing is read for whom there is no room, which only a first reading can find out by bytes.
                    self._room.victims(self._residents(), tenant, self._sizes.get(name, 0))
            if folder is None:
                raise InvalidRequestError(f"this model has no adapter {name!r}", code="unknown_adapter", param="model")
            adapter = None
            if refusal is None:
                try:
                    adapter = self._read(name, folder)
                except ModelRefusedError as error:
                    refusal = error.message
            with self._lock:
                if self._folders.get(name) != folder:
                    raise OverloadedError("the adapter was changed while it was loaded: try again")
                self._checked.add(name)
                if adapter is None:
                    self._refused[name] = refusal or ""
                    message = f"the adapter can't be served: {refusal}"
                    raise InvalidRequestError(message, code="adapter_refused", param="model")
                self._sizes[name] = adapter.nbytes
                return self._enter(name, adapter, tenant)

    def hold(self, key: str, tenant: str) -> None:
        """Keep an adapter in memory for a request of the tenant, until `release`; raise UnpreparedError when it isn't
        there any more.
        """
        with self._lock:
            if key not in self._loaded:
                raise UnpreparedError("the request's adapter isn't in memory any more")
            self._held.setdefault(key, Counter())[tenant] += 1

    def release(self, key: str, tenant: str) -> None:
        """Take back one `hold`."""
        with self._lock:
            holders = self._held[key]
            holders[tenant] -= 1
            if not holders[tenant]:
                del holders[tenant]
            if not holders:
                del self._held[key]
                if key not in self._keys.values():
                    self._drop(key)

    def __contains__(self, key: object) -> bool:
        return key in self._loaded

    def spans(self, spans: Sequence[Span]) -> list[tuple[Any, int, int]]:
        """Return the spans with their adapters' weights."""
        found = [(self._loaded.get(key), begin, end) for key, begin, end in spans]
        # One that was checked and isn't there any more belongs to a request that has ended, whose row is discarded.
        return [(loaded.adapter.weights, begin, end) for loaded, begin, end in found if loaded is not None]

    @property
    def loaded(self) -> tuple[str, ...]:
        """The keys of those in memory, the least recently used first."""
        with self._lock:
            return tuple(self._loaded)

    def in_memory(self) -> tuple[str, ...]:
        """Return the names of those that requests may name and that are in memory."""
        with self._lock:
            return tuple(name for name, key in self._keys.items() if key in self._loaded)

    @property
    def nbytes(self) -> int:
        """How much memory those take."""
        with self._lock:
            return sum(loaded.adapter.nbytes for loaded in self._loaded.values())

    def _now(self) -> float:
        return self.clock()

    def _read(self, name: str, folder: Path) -> Adapter:
        """Return the adapter in `folder`; raise ModelRefusedError with the reason, or OverloadedError where memory ran
        out or the disk didn't answer; either is logged.
        """
        try:
            return self._fitting(self.read(folder))
        except ModelRefusedError as error:
            log.warning("adapter %s in %s is refused: %s", name, folder, error.message)
            raise
        except (MemoryError, OSError) as error:
            log.warning("adapter %s in %s can't be read now: %r", name, folder, error)
            message = "this model's adapter can't be read now: try again later"
            raise OverloadedError(message, code="adapters_in_use") from error
        except Exception as error:  # whatever reading raises, it must not end the thread that reads for all
            log.exception("adapter %s in %s can't be read", name, folder)
            raise ModelRefusedError(f"it can't be read ({type(error).__name__})") from error

    def _fitting(self, adapter: Adapter) -> Adapter:
        most = self._room.bounds.nbytes
        if most and adapter.nbytes > most:
            raise ModelRefusedError(f"it takes {adapter.nbytes} bytes of memory, where all adapters have {most}")
        return adapter

    def _residents(self, besides: str = "") -> list[Resident]:
        """Return those in memory `besides` that of one key."""
        return [
            Resident(key, self._owner(key), loaded.adapter.nbytes, is_idle=key not in self._held)
            for key, loaded in self._loaded.items()
            if key != besides
        ]

    def _owner(self, key: str) -> str | None:
        """Return the tenant that has requests with an adapter, else the one that had the last; None for several."""
        holders = self._held.get(key)
        if not holders:
            return self._loaded[key].tenant
        return next(iter(holders)) if len(holders) == 1 else None

    def _take(self, key: str, tenant: str) -> None:
        """Let `tenant` use one in memory; raise OverloadedError where it may not."""
        is_new = (
            key not in self._held and self._loaded[key].tenant != tenant
        )  # else it is the tenant's, or takes no room
        if is_new:
            nbytes = self._loaded[key].adapter.nbytes
            for gone in self._room.victims(self._residents(besides=key), tenant, nbytes):
                self._drop(gone)
        self._room.check_use(self._residents(), key, tenant)
        if is_new:
            self._room.entered(tenant)
        self._loaded[key] = found = self._loaded.pop(key)
        found.tenant = tenant

    def _enter(self, name: str, adapter: Adapter, tenant: str) -> str:
        key = f"{name}:{adapter.digest}"
        self._keys[name] = key
        if key in self._loaded:  # an earlier one of the same content may still be held
            self._take(key, tenant)
            return key
        for gone in self._room.victims(self._residents(), tenant, adapter.nbytes):
            self._drop(gone)
        self._room.entered(tenant)
        self._loaded[key] = _Loaded(adapter, tenant)
        return key

    def _drop(self, key: str) -> None:
        if key not in self._held:
            self._loaded.pop(key, None)
