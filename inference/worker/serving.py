"""A worker's deployments, their health, and why one takes no work."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from inference.errors import DrainingError, OverloadedError
from inference.types import EngineInfo, Health
from inference.worker.deployment import Deployment
from inference.worker.step_loop import StepLoop


class Serving:
    """The deployments of one worker: the loading thread fills `deployments` and `unready`, the reader reads them.

    `unready` is the health of each deployment of the spec that isn't loaded. `draining` is set when the worker is about
    to end. An iteration of the step thread that takes longer than `step_seconds` makes every deployment unready.
    """

    def __init__(self, loop: StepLoop, *, step_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.deployments: dict[str, Deployment] = {}
        self.unready: dict[str, Health] = {}
        self.draining = False
        self._loop = loop
        self._step_seconds = step_seconds
        self._clock = clock

    @property
    def steps(self) -> int:
        """How many steps ran, of all deployments."""
        return self._loop.steps

    def find(self, name: str) -> Deployment:
        """Return the deployment `name`; raise `OverloadedError` or `DrainingError` when it takes no work now."""
        deployment = self.deployments.get(name)
        if deployment is None:
            state = self.unready.get(name)
            reason = state.reason if state is not None else "unknown to this worker"
        else:
            reason = self._hung()
        if deployment is None or reason:
            raise OverloadedError(f"the deployment is not ready: {reason}", code="deployment_not_ready")
        if self.draining or deployment.draining:
            raise DrainingError("the engine is about to stop")
        return deployment

    def infos(self) -> dict[str, EngineInfo]:
        """Return the abilities of each loaded deployment, by name."""
        # A copy: the loading thread adds deployments meanwhile.
        return {name: deployment.info for name, deployment in dict(self.deployments).items()}

    def health(self) -> dict[str, Health]:
        """The health of each deployment of the spec, loaded or not, by name."""
        health = dict(self.unready)
        hung = self._hung()
        for name, deployment in dict(self.deployments).items():
            # Adapters come and go beside the steps, in which the rest of the health is taken.
            state = replace(self._loop.health.get(name, Health(ready=True)), adapters=deployment.adapters_in_memory())
            if hung:
                state = replace(state, ready=False, reason=hung)
            elif self.draining and not state.draining:
                state = replace(state, ready=False, reason="draining", draining=True)
            health[name] = state
        return health

    def _hung(self) -> str:
        """Why the step thread counts as hung; empty when it doesn't."""
        since = self._loop.busy_since
        seconds = 0.0 if since is None else self._clock() - since
        return f"a step has not ended for {seconds:.0f} s" if seconds > self._step_seconds else ""
