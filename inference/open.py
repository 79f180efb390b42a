"""Opening the engine of a specification; only this module names the implementations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from inference.engine import Engine, EngineSpec


def open_engine(spec: EngineSpec) -> Engine:
    """Return the engine of `spec`, which connects in the background on the running event loop.

    Raise ValueError for an unknown backend. Only the implementation in use is imported.
    """
    match spec.backend:
        case "worker":
            from inference.clients.worker import open_worker_engine

            return open_worker_engine(spec)
        case "openai":
            from inference.clients.remote.engine import RemoteEngine

            return RemoteEngine(spec)
        case "fake":
            from inference.clients.fake import FakeEngine

            return FakeEngine(spec)
        case other:
            raise ValueError(f"EngineSpec.backend: {other!r} is not one of 'worker', 'openai', 'fake'")


def remote_dialects() -> tuple[str, ...]:
    """Return the dialects that a remote engine (backend ``openai``) may have."""
    from inference.clients.remote.dialects import DIALECTS

    return tuple(DIALECTS)


def check_remote(endpoint: str, options: Mapping[str, Any]) -> str:
    """Return a remote engine's address without what is superfluous.

    Raise ValueError, beginning with the name of what is wrong, for one that can't be opened.
    """
    from inference.clients.remote.options import RemoteOptions, base_of

    RemoteOptions.of(EngineSpec("", "openai", endpoint, options))
    return base_of(endpoint)
