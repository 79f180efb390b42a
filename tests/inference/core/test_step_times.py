"""How long prompts may hold up decoding rows."""

from __future__ import annotations

import random

import pytest

from inference.core.step_times import StepTimes
from tests.inference.core.machine import Machine, MachineBench

MACHINE = Machine(base=0.02, row=2e-4, context=1e-7, token=3e-4, pair=2e-8)
seconds = MACHINE.seconds


def add(times: StepTimes, rows: list[tuple[int, int]], took: float) -> None:
    """Take a step of `rows`: each its number of tokens and the position of the first."""
    decoding = [start for count, start in rows if count == 1]
    times.add(len(decoding), sum(decoding), [row for row in rows if row[0] > 1], took)


def measured(steps: int = 300, noise: float = 0.0) -> StepTimes:
    times, rng = StepTimes(32), random.Random(3)
    for _ in range(steps):
        rows = [(1, rng.randrange(1000)) for _ in range(rng.randrange(32))]
        if rng.random() < 0.5:
            rows += [(rng.randrange(2, 257), rng.randrange(0, 2000))]
        add(times, rows, seconds(rows) * (1 + noise * rng.uniform(-1, 1)))
    return times


@pytest.mark.parametrize(("noise", "error"), [(0.0, 0.03), (0.2, 0.3)])
def test_what_prompts_cost_is_learnt_from_mixed_steps(noise, error):
    times = measured(noise=noise)
    for count, start in ((64, 0), (256, 0), (256, 1500)):
        assert times.prefill_seconds(start, count) == pytest.approx(seconds([(count, start)]) - MACHINE.base, rel=error)


def test_a_chunk_is_the_largest_that_stays_within_the_time():
    times = measured()
    for start in (0, 500, 4000):
        count = times.tokens_within(0.05, start, 1000)
        assert times.prefill_seconds(start, count) <= 0.05 < times.prefill_seconds(start, count + 1)
    assert times.tokens_within(10.0, 0, 256) == 256


def test_nothing_measured_bounds_nothing():
    assert StepTimes(32).tokens_within(0.05, 0, 256) == 256
    only_decoding = StepTimes(32)
    for _ in range(50):
        add(only_decoding, [(1, 10)] * 8, 0.1)
    assert only_decoding.tokens_within(0.05, 0, 256) == 256


def test_a_machine_that_becomes_slower_is_noticed():
    times, rows = measured(), [(1, 100)] * 8 + [(128, 0)]
    for _ in range(200):
        add(times, rows, 4 * seconds(rows))
    assert times.prefill_seconds(0, 128) > 2 * seconds([(128, 0)])


def bench(prefill_seconds: float) -> MachineBench:
    return MachineBench(
        MACHINE,
        blocks=600,
        block_size=16,
        max_context=4000,
        max_rows=8,
        max_step_tokens=1024,
        prefill_chunk=1024,
        prefill_seconds=prefill_seconds,
        prefix_cache=False,
    )


def longest_step(one: MachineBench) -> float:
    """The longest step from the moment on at which two decode, one prompt was measured and a second one comes."""
    one.submit("first", [5] * 400, 300, tenant="a")
    one.submit("second", [6] * 400, 300, tenant="a")
    one.run(until=lambda: len(one.stories["second"].tokens) > 5)
    one.submit("long", [index % 97 for index in range(3000)], 4, tenant="b")
    longest = 0.0
    while not one.stories["long"].tokens:
        before = one.now
        one.step()
        longest = max(longest, one.now - before)
    return longest


def test_a_long_prompt_never_holds_decoding_rows_longer_than_the_setting():
    assert longest_step(bench(0.0)) > 0.3, "unbounded, it does"
    assert longest_step(bench(0.05)) < seconds([(1, 700)] * 2) + 0.05 * 1.05


def test_without_decoding_rows_a_prompt_takes_five_times_the_setting():
    one = bench(0.05)
    one.submit("first", [5] * 400, 4, tenant="a")
    one.run()
    one.submit("long", [index % 97 for index in range(3000)], 4, tenant="b")
    before = one.now
    one.step()
    assert 4.5 * 0.05 < one.now - before < 5.5 * 0.05


def test_a_slow_machine_goes_on_block_by_block():
    one = bench(0.001)
    longest_step(one)
    chunks = [len(row.ids) for plan in one.plans for row in plan.rows if row.request_id == "long" and row.start]
    assert set(chunks[:100]) == {16}


def test_a_long_time_of_decoding_alone_forgets_nothing_of_what_prompts_cost():
    times = measured()
    before = times.prefill_seconds(0, 256)
    for _ in range(3000):
        add(times, [(1, 300)] * 8, seconds([(1, 300)] * 8))
    assert times.prefill_seconds(0, 256) == pytest.approx(before)


def test_small_chunks_beside_other_rows_than_were_measured_are_not_taken_for_dear() -> None:
    """Were what such a step takes longer put down to its chunk, the next would be smaller still, and so on."""
    times = StepTimes(32)
    for _ in range(100):
        add(times, [(1, 100)] * 32, seconds([(1, 100)] * 32))
    slower = Machine(base=0.04, row=2e-4, context=1e-7, token=3e-4, pair=2e-8)  # others have come to use its cores
    rows = 20
    chunk = 32
    for step in range(200):
        chunk = times.tokens_within(0.01, 32 * step % 1000, 256) or 16
        add(times, [*[(1, 300)] * rows, (chunk, 0)], slower.seconds([*[(1, 300)] * rows, (chunk, 0)]))
    assert chunk >= 24
