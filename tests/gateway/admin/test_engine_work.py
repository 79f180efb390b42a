"""The sentences about an engine's work, for numbers that are hardly any."""

from __future__ import annotations

import pytest

from gateway.admin.engine_work import lines_of, tenants_of
from gateway.runtime.live import DeploymentState
from inference.types import Work


def state(work: Work | None) -> DeploymentState:
    return DeploymentState(True, "", 0, 0, 0.0, False, work=work)


@pytest.mark.django_db
@pytest.mark.parametrize(
    "work",
    [
        Work(steps=1, rows=1, tenants={"t": 0.0}),
        Work(steps=1, rows=1, output_tokens=1, tenants={"t": 0.0}),
        Work(steps=1, rows=1, seconds=1e-9, prefill_seconds=1e-9, prompt_tokens=1, tenants={"t": 1e-9}),
        Work(steps=2, rows=2, seconds=0.5, cached_tokens=5, output_tokens=1, tenants={"not-a-uuid": 0.5}),
    ],
)
def test_an_engine_that_has_hardly_begun_has_a_page(work):
    """A step of no time by a coarse clock was a division by zero, and the deployment's page an error."""
    assert [title for title, _ in lines_of(state(work))]
    ((name, _, part),) = tenants_of(work)
    assert name in {"t", "not-a-uuid"}
    assert part.endswith("%")


@pytest.mark.parametrize("work", [None, Work()])
def test_an_engine_that_did_nothing_has_nothing_to_say(work):
    assert lines_of(state(work)) == []
