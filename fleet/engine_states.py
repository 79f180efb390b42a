"""The states of a node's deployments, asked of its worker directly: for commands, which run without a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from base.home import worker_endpoint
from inference.engine import Engine, EngineSpec
from inference.open import open_engine
from inference.types import LOADING, EngineInfo, Health

LOOK_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class EngineState:
    """A deployment's engine: what it announced (None before it serves) and its health, paths included."""

    info: EngineInfo | None
    health: Health

    @property
    def trouble(self) -> str:
        """Why it can't take work, with details; empty when it can."""
        if self.health.ready:
            return ""
        return ": ".join(filter(None, (self.health.reason, self.health.detail))) or "not ready"


def ask(node: str, deployments: Sequence[str], seconds: float) -> dict[str, EngineState]:
    """Return the state of each deployment of `node`, waiting at most `seconds` for its worker to answer."""

    async def look() -> dict[str, EngineState]:
        engines = {name: open_engine(_spec(node, name)) for name in deployments}
        try:
            until = asyncio.get_running_loop().time() + seconds
            while True:
                states = {name: await _state_of(engine) for name, engine in engines.items()}
                known = all(state.info is not None or state.health.revision for state in states.values())
                if known or asyncio.get_running_loop().time() >= until:
                    return states
                await asyncio.sleep(LOOK_SECONDS)
        finally:
            for engine in engines.values():
                await engine.close()

    return asyncio.run(look())


def wait_until_loaded(node: str, deployment: str, revision: str, is_running: Callable[[], bool]) -> EngineState | None:
    """Return the deployment's state once its worker has loaded or refused the settings with that `revision`.

    None when no worker `is_running` that could do so.
    """

    async def look() -> EngineState | None:
        engine = open_engine(_spec(node, deployment))
        try:
            while is_running():
                state = await _state_of(engine)
                if state.health.revision == revision and state.health.reason != LOADING:
                    return state
                await asyncio.sleep(LOOK_SECONDS)
            return None
        finally:
            await engine.close()

    return asyncio.run(look())


def wait_for_adapter(node: str, deployment: str, adapter: str, is_running: Callable[[], bool]) -> str | None:
    """Return why the node's worker can't serve the deployment's adapter, "" when it can, once it has read it.

    None when no worker `is_running` that could do so, or it doesn't serve the deployment.
    """

    async def look() -> str | None:
        engine = open_engine(_spec(node, deployment))
        try:
            while is_running():
                state = await _state_of(engine)
                if state.info is not None and adapter in state.info.adapters:
                    return state.info.adapters[adapter]
                if state.info is None and state.health.revision and state.health.reason != LOADING:
                    return None
                await asyncio.sleep(LOOK_SECONDS)
            return None
        finally:
            await engine.close()

    return asyncio.run(look())


async def _state_of(engine: Engine) -> EngineState:
    return EngineState(engine.info, await engine.health())


def _spec(node: str, deployment: str) -> EngineSpec:
    return EngineSpec(deployment, "worker", worker_endpoint(node))
