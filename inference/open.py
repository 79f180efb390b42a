"""Opening the engine of a specification; only this module names the implementations."""

from __future__ import annotations

from inference.engine import Engine, EngineSpec


def open_engine(spec: EngineSpec) -> Engine:
    """Return the engine of `spec`, which connects in the background on the running event loop.

    Raise ValueError for an unknown backend. Only the implementation in use is imported.
    """
    match spec.backend:
        case "worker":
            from inference.clients.worker import open_worker_engine

            return open_worker_engine(spec)
        case "fake":
            from inference.clients.fake import FakeEngine

            return FakeEngine(spec)
        case other:
            raise ValueError(f"EngineSpec.backend: {other!r} is not one of 'worker', 'fake'")
