"""What a worker says of itself while a step doesn't end, by a movable clock."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from inference.errors import OverloadedError
from inference.types import Health
from inference.worker.serving import Serving


class Loop:
    """The step thread as others see it."""

    steps = 0
    busy_since: float | None = None
    health = {"a": Health(ready=True), "b": Health(ready=True)}


def test_a_step_that_does_not_end_makes_every_deployment_unready() -> None:
    clock, loop = [0.0], Loop()
    serving = Serving(cast("Any", loop), step_seconds=60.0, clock=lambda: clock[0])
    deployment = SimpleNamespace(draining=False, adapters_in_memory=lambda: ("law",))
    serving.deployments |= dict.fromkeys("ab", cast("Any", deployment))
    loop.busy_since, clock[0] = 0.0, 60.0
    assert serving.find("a") is deployment
    assert all(state.ready for state in serving.health().values())
    assert {state.adapters for state in serving.health().values()} == {("law",)}
    clock[0] = 61.0
    for name in "ab":
        with pytest.raises(OverloadedError, match="a step has not ended for 61 s"):
            serving.find(name)
        state = serving.health()[name]
        assert (state.ready, state.reason) == (False, "a step has not ended for 61 s")
    loop.busy_since = None
    assert serving.find("b") is deployment
    assert serving.health()["b"].ready
