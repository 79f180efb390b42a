"""From a specification to its engine: the one place that knows the implementations."""

from __future__ import annotations

from inference.engine import Engine, EngineSpec


def open_engine(spec: EngineSpec) -> Engine:
    """Return the engine that `spec` names, connecting in the background on the running event loop.

    Each implementation is imported only when it is asked for, so that a web process never loads more than it uses.
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
