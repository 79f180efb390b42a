"""The sentences about an engine's work, for numbers that are hardly any."""

from __future__ import annotations

import pytest

from control.screens.engine_work import lines_of, tenants_of
from gateway.runtime.data_plane import DeploymentState
from inference.types import BOUNDS, Histogram, Work


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


def test_the_times_of_an_engine_are_told_in_words():
    counts = [0] * (len(BOUNDS) + 1)
    counts[0], counts[BOUNDS.index(0.02)], counts[BOUNDS.index(1.5)] = 60, 38, 2
    long = [0] * len(BOUNDS) + [3]
    work = Work(
        steps=1,
        rows=1,
        queued=Histogram(tuple(counts), 4.0),
        first_tokens=Histogram(tuple(long), 400.0),
        gaps=Histogram(tuple(counts), 4.0),
    )
    assert dict(lines_of(state(work)))["Times"] == (
        "Half of the requests waited at most 1 ms for their first step, and all but one in a hundred at most 1.5 s. "
        "Half had their first token more than 100 s after they came here, all but one in a hundred more than 100 s. "
        "Half of the tokens came at most 1 ms after the one before them, all but one in a hundred at most 1.5 s."
    )
    vectors = dict(lines_of(state(Work(steps=1, rows=1, queued=Histogram((1,), 0.0)))))
    assert vectors["Times"].endswith("one in a hundred at most 1 ms.")


@pytest.mark.parametrize("work", [None, Work()])
def test_an_engine_that_did_nothing_has_nothing_to_say(work):
    assert lines_of(state(work)) == []
