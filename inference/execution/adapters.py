"""The adapters of one model: which ones requests may name, and which of them are in memory. Imports no torch."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.errors import InvalidRequestError, ModelRefusedError, OverloadedError, UnpreparedError

Span = tuple[str, int, int]
"""An adapter's key, and the first and the end of the neighbouring tokens of a step that have it."""

MOST_LOADED = 16
MOST_RANK = 128

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Weights that are added to a model's, as its tier keeps them: `nbytes` is their size in memory.

    `digest` identifies what they were read from.
    """

    digest: str
    weights: Any
    nbytes: int


class Adapters:
    """At most so many of a model's adapters in memory as were offered for; the least recently used makes room.

    A request is prepared with `load`, in any thread: files are read and weights packed beside the steps that run.
    What `load` returns names the adapter by its content as well: rows and prefix keys carry it, so that nothing
    computed with an adapter is taken for what another one of the same name would give. From its submission to its end
    a request holds its adapter, which stays in memory. While one is loaded there may be one more than the most.
    """

    def __init__(self, read: Callable[[Path], Adapter]) -> None:
        """`read` returns the adapter in a folder, or raises ModelRefusedError with a reason that names no path."""
        self.read = read
        self._folders: dict[str, Path] = {}
        self._most = MOST_LOADED
        self._loaded: dict[str, Adapter] = {}  # by key, the most recently used last
        self._keys: dict[str, str] = {}  # of each name that was loaded since it was offered
        self._refused: dict[str, str] = {}
        self._held: Counter[str] = Counter()
        self._lock = threading.Lock()  # of all of the above, for moments
        self._loading = threading.Lock()  # held while an adapter is read

    def offer(self, folders: Mapping[str, Path], most: int = MOST_LOADED) -> None:
        """Let requests name these adapters from now on, and no others; keep at most `most` in memory.

        A name with another folder is loaded anew, and so is one that was refused. Requests that hold an adapter end
        with it.
        """
        if most < 1:
            raise ValueError(f"at least one adapter has to fit into memory, not {most}")
        with self._lock:
            changed = {name for name in self._keys if folders.get(name) != self._folders.get(name)}
            self._keys = {name: key for name, key in self._keys.items() if name not in changed}
            self._folders, self._most = dict(folders), most
            self._refused.clear()
            for key in set(self._loaded) - set(self._keys.values()):
                self._drop(key)

    def load(self, name: str) -> str:
        """Return the key of adapter `name`, and load it unless it is in memory; for any thread.

        Raise InvalidRequestError when there is no such adapter or it can't be served, OverloadedError when as many as
        fit into memory are held by others.
        """
        with self._loading:  # of several that want it the first one loads it
            with self._lock:
                if (key := self._used(name)) is not None:
                    return key
                folder, refusal = self._folders.get(name), self._refused.get(name)
            if folder is None:
                raise InvalidRequestError(f"this model has no adapter {name!r}", code="unknown_adapter", param="model")
            if refusal is None:
                try:
                    adapter = self.read(folder)
                except ModelRefusedError as error:
                    log.warning("adapter %s in %s is refused: %s", name, folder, error.message)
                    refusal = error.message
            with self._lock:
                if self._folders.get(name) != folder:
                    raise OverloadedError(f"adapter {name!r} was changed while it was loaded: try again")
                if refusal is not None:
                    self._refused[name] = refusal
                    message = f"adapter {name!r} can't be served: {refusal}"
                    raise InvalidRequestError(message, code="adapter_refused", param="model")
                return self._enter(name, adapter)

    def hold(self, key: str) -> None:
        """Keep an adapter in memory until `release`; raise UnpreparedError when it isn't there any more."""
        with self._lock:
            if key not in self._loaded:
                raise UnpreparedError("the request's adapter isn't in memory any more")
            self._held[key] += 1

    def release(self, key: str) -> None:
        """Take back one `hold`."""
        with self._lock:
            self._held[key] -= 1
            if not self._held[key]:
                del self._held[key]
                if key not in self._keys.values():
                    self._drop(key)

    def __contains__(self, key: object) -> bool:
        return key in self._loaded

    def spans(self, spans: Sequence[Span]) -> list[tuple[Any, int, int]]:
        """Return the spans with their adapters' weights."""
        found = [(self._loaded.get(key), begin, end) for key, begin, end in spans]
        # One that was checked and isn't there any more belongs to a request that has ended, whose row is discarded.
        return [(adapter.weights, begin, end) for adapter, begin, end in found if adapter is not None]

    @property
    def loaded(self) -> tuple[str, ...]:
        """The keys of those in memory, the least recently used first."""
        with self._lock:
            return tuple(self._loaded)

    @property
    def nbytes(self) -> int:
        """How much memory those take."""
        with self._lock:
            return sum(adapter.nbytes for adapter in self._loaded.values())

    def _used(self, name: str) -> str | None:
        """Return the key of `name` if it is in memory, now as the most recently used one."""
        key = self._keys.get(name)
        if key is None or key not in self._loaded:
            return None
        self._loaded[key] = self._loaded.pop(key)
        return key

    def _enter(self, name: str, adapter: Adapter) -> str:
        key = f"{name}:{adapter.digest}"
        self._keys[name] = key
        if key not in self._loaded:  # an earlier one of the same content may still be held
            idle = [other for other in self._loaded if not self._held[other]]
            over = len(self._loaded) + 1 - self._most
            if over > len(idle):
                raise OverloadedError("as many adapters as fit into memory are in use: try again later")
            for other in idle[: max(0, over)]:
                self._drop(other)
            self._loaded[key] = adapter
        return key

    def _drop(self, key: str) -> None:
        if not self._held[key]:
            self._loaded.pop(key, None)
