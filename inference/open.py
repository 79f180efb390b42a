"""Opening the engine of a specification; only this module names the implementations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


async def list_remote(endpoint: str, networks: Sequence[str], credential: str) -> list[dict[str, Any]]:
    """Return what a foreign server lists at ``/v1/models``: entries with their ``id``, its other fields as it has them.

    Raise ValueError, beginning with the name of what is wrong, where it lists nothing.
    """
    from inference.clients.remote.faults import AskError
    from inference.clients.remote.options import RemoteOptions, base_of
    from inference.clients.remote.pool import pool_of

    options = RemoteOptions.of(EngineSpec("", "openai", endpoint, {"model": "-", "networks": networks, **_LISTING}))
    pool, user = pool_of(base_of(endpoint), options.networks), object()
    pool.join(user, options)
    try:
        found = await pool.ask({"authorization": f"Bearer {credential}"} if credential else {}, "/v1/models")
    except AskError as error:
        why = "api_key: the server wants another key" if error.status in {401, 403} else f"address: {error}"
        raise ValueError(why) from error
    finally:
        await pool.leave(user)
    entries = found.get("data") if isinstance(found, dict) else None
    named = [one for one in entries or () if isinstance(one, dict) and isinstance(one.get("id"), str) and one["id"]]
    if not named:
        raise ValueError("address: the server answers, but lists no models at /v1/models")
    return named


_LISTING = {"dialect": "generic", "kinds": ["embedding"]}  # asks nothing of how a server keeps tenants apart
