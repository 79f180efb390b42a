from __future__ import annotations

import pytest

from inference.core.encoder_scheduler import EncodeScheduler, EncodeTask
from inference.core.output import Output
from inference.core.step import EncodeRow, RowFailure, StepPlan, StepResult
from inference.errors import DrainingError, InvalidRequestError, OverloadedError
from inference.types import FinishReason, Started, Usage, Vector


def make(**bounds: int) -> EncodeScheduler:
    settings = {"max_rows": 4, "max_step_tokens": 10, "max_waiting": 8, "max_waiting_per_tenant": 4, **bounds}
    return EncodeScheduler(**settings, clock=lambda: 0.0)


def task(request_id: str, *lengths: int, tenant: str = "a") -> EncodeTask:
    return EncodeTask(request_id, tenant, tuple(tuple(range(length)) for length in lengths))


def answer(plan: StepPlan) -> StepResult:
    return StepResult(vectors=tuple(f"{row.request_id}{row.index}".encode() for row in plan.encodes))


def drive(scheduler: EncodeScheduler) -> tuple[list[list[tuple[str, int]]], list[Output]]:
    steps: list[list[tuple[str, int]]] = []
    outputs: list[Output] = []
    while (plan := scheduler.plan()) is not None:
        steps.append([(row.request_id, row.index) for row in plan.encodes])
        outputs += scheduler.commit(plan, answer(plan))
    return steps, outputs


def test_inputs_fill_steps_up_to_rows_and_tokens():
    scheduler = make()
    scheduler.submit(task("r", 4, 4, 4, 1, 1, 1, 1))
    steps, outputs = drive(scheduler)
    assert [[index for _, index in step] for step in steps] == [[0, 1], [2, 3, 4, 5], [6]]
    assert [vector for output in outputs for vector in output.vectors] == [
        Vector(index, f"r{index}".encode()) for index in range(7)
    ]
    assert [output.started for output in outputs] == [Started(0), None, None]
    assert [output.usage.input for output in outputs] == [8, 15, 16]
    assert outputs[-1].finished is not None
    assert (outputs[-1].finished.reason, outputs[-1].finished.usage) == (FinishReason.STOP, Usage(input=16))
    assert scheduler.unfinished == 0


def test_waits_for_the_first_step_are_counted():
    scheduler = make(max_rows=1)
    now = 0.0
    scheduler.clock = lambda: now
    scheduler.submit(task("a", 2, 2))
    scheduler.submit(task("b", 2, tenant="b"))
    scheduler.submit(task("c", 2, tenant="c"))
    scheduler.cancel("c")
    now = 2.0
    drive(scheduler)
    work = scheduler.stats().work
    assert (work.queued.total, work.queued.seconds) == (3, 4.0)
    assert (work.first_tokens.total, work.gaps.total) == (0, 0)


def test_rows_carry_the_ids_and_begins_names_a_request_once():
    scheduler = make(max_rows=1)
    scheduler.submit(task("r", 2, 3))
    first = scheduler.plan()
    assert first is not None
    assert (first.encodes, first.begins) == ((EncodeRow("r", 0, (0, 1)),), ("r",))
    second = scheduler.plan()
    assert second is not None
    assert (second.encodes, second.begins) == ((EncodeRow("r", 1, (0, 1, 2)),), ())


def test_an_input_longer_than_the_budget_has_a_step_to_itself():
    scheduler = make()
    scheduler.submit(task("r", 2, 50, 2))
    assert [[index for _, index in step] for step in drive(scheduler)[0]] == [[0], [1], [2]]


def test_tenants_take_turns_input_by_input():
    scheduler = make(max_rows=2)
    scheduler.submit(task("many", 5, 5, 5, 5, 5, 5, tenant="a"))
    scheduler.submit(task("one", 5, tenant="b"))
    steps, _ = drive(scheduler)
    assert steps[0] == [("many", 0), ("one", 0)]


def test_cancel_before_and_during_a_step():
    scheduler = make(max_rows=1)
    scheduler.submit(task("waits", 2, 2))
    scheduler.cancel("waits")
    scheduler.cancel("waits")
    (output,) = scheduler.take_outputs()
    assert output.finished is not None
    assert (output.finished.reason, output.usage) == (FinishReason.CANCELLED, Usage())
    scheduler.submit(task("runs", 2, 2))
    plan = scheduler.plan()
    assert plan is not None
    scheduler.cancel("runs")
    assert scheduler.take_outputs() == []
    (output,) = scheduler.commit(plan, answer(plan))
    assert output.vectors == ()
    assert output.usage == Usage(input=2)
    assert output.finished is not None
    assert scheduler.plan() is None
    assert scheduler.unfinished == 0


def test_an_input_that_fails_ends_its_request_alone():
    scheduler = make()
    scheduler.submit(task("bad", 2, 2, tenant="a"))
    scheduler.submit(task("good", 2, 2, tenant="b"))
    plan = scheduler.plan()
    assert plan is not None
    vectors = tuple(RowFailure("bad_row", "no") if row.request_id == "bad" else b"v" for row in plan.encodes)
    ends = {o.request_id: o.finished for o in scheduler.commit(plan, StepResult(vectors=vectors))}
    assert ends["bad"] is not None
    assert ends["bad"].reason is FinishReason.ERROR
    assert ends["good"] is not None
    assert ends["good"].reason is FinishReason.STOP


def test_inputs_of_a_failed_step_run_alone_and_fail_alone():
    scheduler = make()
    scheduler.submit(task("bad", 2, 3, tenant="a"))
    scheduler.submit(task("good", 2, 3, tenant="b"))
    ends = {}
    sizes = []
    while (plan := scheduler.plan()) is not None:
        sizes.append(len(plan.encodes))
        if any((row.request_id, row.index) == ("bad", 1) for row in plan.encodes):
            outputs = scheduler.abandon(plan, RuntimeError())
        else:
            outputs = scheduler.commit(plan, answer(plan))
        for output in outputs:
            if output.finished is not None:
                assert output.request_id not in ends
                ends[output.request_id] = output.finished
    assert sizes == [4, 1, 1, 1, 1]
    assert ends["bad"].reason is FinishReason.ERROR
    assert ends["bad"].usage == Usage(input=2)
    assert ends["good"].reason is FinishReason.STOP
    assert ends["good"].usage == Usage(input=5)


def test_a_cancelled_request_is_not_tried_again():
    scheduler = make()
    scheduler.submit(task("r", 2, 3))
    plan = scheduler.plan()
    assert plan is not None
    assert scheduler.abandon(plan, RuntimeError()) == []
    scheduler.cancel("r")
    (output,) = scheduler.take_outputs()
    assert output.finished is not None
    assert scheduler.plan() is None


def test_refusals():
    scheduler = make(max_waiting=2, max_waiting_per_tenant=1)
    for broken in (task("r"), task("r", 0), EncodeTask("r", "a", ((1,),), weight=0)):
        with pytest.raises(InvalidRequestError):
            scheduler.submit(broken)
    scheduler.submit(task("r", 1))
    with pytest.raises(InvalidRequestError):
        scheduler.submit(task("r", 1))
    with pytest.raises(OverloadedError):
        scheduler.submit(task("s", 1))
    scheduler.submit(task("t", 1, tenant="b"))
    with pytest.raises(OverloadedError):
        scheduler.submit(task("u", 1, tenant="c"))
    scheduler.drain()
    with pytest.raises(DrainingError):
        scheduler.submit(task("v", 1))
    plan = scheduler.plan()
    assert plan is not None
    with pytest.raises(ValueError):
        scheduler.commit(plan, StepResult())
    assert scheduler.stats().running == 2
    assert scheduler.next_deadline() is None
