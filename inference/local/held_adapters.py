"""The adapters that an engine's requests hold: each its own, until no step in flight can use it any more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from inference.core.output import Output
from inference.execution.adapters import Adapters
from inference.text.prepare import Prompt


class HeldAdapters:
    """The adapters in use by requests. Without `adapters` no request has one."""

    def __init__(self, adapters: Adapters | None) -> None:
        self._adapters = adapters
        self._held: dict[str, tuple[str, str]] = {}  # of unfinished requests, the adapter that each holds for whom
        # Those of requests that have ended, and the number of steps launched until then, which may use them.
        self._leaving: list[tuple[int, tuple[str, str]]] = []

    @contextmanager
    def holding(self, prompt: Prompt) -> Iterator[None]:
        """Hold the request's adapter, if it has one, unless what queues it raises; raise like `Adapters.hold`."""
        if not prompt.adapter or self._adapters is None:
            yield
            return
        held = prompt.adapter, prompt.request.domain
        self._adapters.hold(*held)
        try:
            yield
        except BaseException:
            self._adapters.release(*held)
            raise
        self._held[prompt.request.id] = held

    def release(self, outputs: Iterable[Output], launched: int, settled: int) -> None:
        """Let go the adapters of requests that end with `outputs`, once the steps `launched` by now are `settled`."""
        for output in outputs:
            if output.finished is not None and output.request_id in self._held:
                self._leaving.append((launched, self._held.pop(output.request_id)))
        if self._leaving and self._adapters is not None:
            for _, held in [one for one in self._leaving if one[0] <= settled]:
                self._adapters.release(*held)
            self._leaving = [one for one in self._leaving if one[0] > settled]
