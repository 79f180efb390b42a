"""The step loop, driven on one thread: on every path a request ends once, recorded before its event is sent."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from inference.architectures.fake import load_fake_model
from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.core.step import StepPlan
from inference.execution.backend import Pending, Runner
from inference.protocol import Batch, FromWorker, Refused, WireDelta, WireFinished, WireStarted
from inference.text.byte_tokenizer import ByteTokenizer
from inference.types import Finished, FinishReason, GenerationRequest, Usage
from inference.worker.deployment import Deployment
from inference.worker.record import Record
from inference.worker.requests import (
    AddCommand,
    CancelCommand,
    Command,
    DrainCommand,
    ExtendCommand,
    Request,
    StopCommand,
    SubmitCommand,
)
from inference.worker.step_loop import RECENTLY, TURN_SECONDS, StepLoop
from tests.inference.engine_contract import chat, embedding, same


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Timed:
    """A runner whose steps take `step` seconds of a clock, and `token` for each of their tokens; `took` lists them."""

    runner: Runner
    clock: Clock
    step: float
    token: float
    took: list[float] = field(default_factory=list)
    overlaps = False

    def launch(self, plan: StepPlan) -> Pending:
        self.took.append(self.step + self.token * plan.tokens)
        self.clock.now += self.took[-1]
        return self.runner.launch(plan)


class Bench:
    """A loop without threads and sockets. `round` is one turn of it."""

    def __init__(self, record: Record) -> None:
        self.record = record
        self.clock = Clock()
        self.registry: dict[str, Request] = {}
        self.sent: list[tuple[bytes, FromWorker]] = []
        self.inbox: SimpleQueue[Command] = SimpleQueue()
        self.took: dict[Deployment, list[float]] = {}  # what the steps of each took
        self.loop = StepLoop(record=record, registry=self.registry, inbox=self.inbox, outbox=self, clock=self.clock)

    def send(self, session: bytes, message: FromWorker) -> None:
        if isinstance(message, Batch):
            for event in message.events:
                if isinstance(event, WireFinished):
                    assert self.record.evidence(event.id) == same(event.finished), "said before it was recorded"
        self.sent.append((session, message))

    def serve(self, *, step: float = 0.0, token: float = 0.0, **config: Any) -> Deployment:
        options = {"architecture": "fake", "kv_tokens": 1024, **config}
        spec = EngineConfig(str(len(self.loop._deployments)), "fake", **options)
        model = load_fake_model(spec)
        runner = Timed(model.runner, self.clock, step, token)
        model = replace(model, runner=runner)
        engine = Deployment(spec, model, ByteTokenizer(), secret=b"s", pause_seconds=2.0, clock=self.clock)
        self.took[engine] = runner.took
        self.inbox.put(AddCommand(engine))
        self.loop._read_inbox(block=False)
        return engine

    def submit(
        self,
        engine: Deployment,
        request: GenerationRequest,
        allowance: int = 1000,
        is_final: bool = True,
        session: bytes = b"s",
    ) -> Request:
        active = Request(request.id, session, engine, engine.prepare(request), allowance, is_final)
        self.registry[active.id] = active
        self.inbox.put(SubmitCommand(active))
        return active

    def round(self) -> bool:
        self.loop._read_inbox(block=False)
        busy = self.loop._take_turn()
        for engine in self.loop._deployments:
            for scheduler in engine.engine.schedulers:
                if isinstance(scheduler, Scheduler):
                    scheduler.check()
        self.loop._check_drains()
        return busy

    def finish(self) -> None:
        for _ in range(2000):
            if not self.round() and self.inbox.empty():
                return
        raise AssertionError("the loop doesn't come to an end")

    def events(self, active: Request) -> list[Any]:
        return [
            event
            for _, message in self.sent
            if isinstance(message, Batch)
            for event in message.events
            if event.id == active.id
        ]

    def text(self, active: Request) -> str:
        return "".join(event.text for event in self.events(active) if isinstance(event, WireDelta))

    def end(self, active: Request) -> Finished:
        ends = [event.finished for event in self.events(active) if isinstance(event, WireFinished)]
        assert len(ends) == 1
        assert isinstance(self.events(active)[-1], WireFinished)
        assert active.id not in self.registry
        return ends[0]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    with Record(tmp_path / "record") as record:
        yield Bench(record)


def test_a_cancel_at_every_step_ends_once_with_what_ran(bench: Bench) -> None:
    engine = bench.serve(prefill_chunk=8, prefix_cache=False)
    prompt = len(ByteTokenizer().prompt(chat("twelve bytes").messages))
    ran = set()
    for steps in itertools.count():
        active = bench.submit(engine, chat("twelve bytes", max_tokens=6))
        for _ in range(steps):
            bench.round()
        done = active.id not in bench.registry
        bench.inbox.put(CancelCommand((active,)))
        bench.finish()
        finished = bench.end(active)
        computed = min(prompt, 8 * steps)
        sampled = min(6, max(0, steps - -(-prompt // 8) + 1))
        assert finished.usage == Usage(input=computed, output=sampled)
        assert finished.reason is (FinishReason.LENGTH if done else FinishReason.CANCELLED)
        ran.add(finished.usage)
        if done:
            break
    assert len(ran) > 8


@pytest.mark.parametrize("steps", range(6))
def test_a_session_that_ends_at_any_step_takes_only_its_own_requests(bench: Bench, steps: int) -> None:
    engine = bench.serve()
    mine = [bench.submit(engine, chat(f"mine {number}"), session=b"gone") for number in range(3)]
    other = bench.submit(engine, chat("other"), session=b"here")
    for _ in range(steps):
        bench.round()
    bench.inbox.put(CancelCommand(tuple(mine)))
    bench.finish()
    assert bench.text(other) == "other"
    assert all(bench.end(active).reason is FinishReason.CANCELLED for active in mine)


def test_one_frame_for_each_step_and_session(bench: Bench) -> None:
    engine = bench.serve(prefix_cache=False)
    first = bench.submit(engine, chat("abc"), session=b"one")
    second = bench.submit(engine, chat("abc"), session=b"one")
    third = bench.submit(engine, chat("abc"), session=b"two")
    bench.finish()
    assert [session for session, _ in bench.sent] == [b"one", b"two"] * 4
    assert [bench.text(active) for active in (first, second, third)] == ["abc"] * 3


def test_engines_take_turns_step_by_step(bench: Bench) -> None:
    first, second = bench.serve(), bench.serve()
    bench.submit(first, chat("abcdef"), session=b"one")
    bench.submit(second, chat("abcdef"), session=b"two")
    bench.finish()
    assert [session for session, _ in bench.sent] == [b"one", b"two"] * 7


SMALL_MODEL = {"step": 0.010, "token": 3.5e-4}  # 135M parameters on two cores
LARGE_MODEL = {"step": 0.040, "token": 1.1e-3}  # 0.6B


def seconds_of(bench: Bench, engine: Deployment, answer: str) -> float:
    """Return how long a chat with this answer takes from its arrival to its end."""
    began, active = bench.clock.now, bench.submit(engine, chat(answer))
    while active.id in bench.registry:
        bench.round()
    return bench.clock.now - began


def test_a_long_prompt_of_one_model_moves_the_chats_of_another_little(bench: Bench) -> None:
    """Each model has half of the time, in turns as short as a bounded step."""
    reading, chatting = bench.serve(kv_tokens=16_384, **LARGE_MODEL), bench.serve(**SMALL_MODEL)
    alone = seconds_of(bench, chatting, "a short answer")
    long = bench.submit(reading, chat("x" * 7_800, max_tokens=1))
    for _ in range(3):
        assert seconds_of(bench, chatting, "a short answer") <= 2 * alone + 2 * (TURN_SECONDS + LARGE_MODEL["step"])
    assert long.id in bench.registry, "the prompt was over before the chats"
    bench.finish()
    assert bench.end(long).usage.output == 1


def test_prompts_of_a_step_take_their_turns_seconds_while_another_model_works_and_more_without(bench: Bench) -> None:
    """Once a step has shown what prompt tokens cost."""
    reading, chatting = bench.serve(kv_tokens=16_384, **LARGE_MODEL), bench.serve(kv_tokens=16_384, **SMALL_MODEL)
    bound = LARGE_MODEL["step"] + TURN_SECONDS

    def longest(prompt: str) -> float:
        """Return what the longest step of `reading` takes until it has computed the prompt."""
        active, before = bench.submit(reading, chat(prompt, max_tokens=1)), len(bench.took[reading])
        while active.id in bench.registry:
            assert bench.round()
        return max(bench.took[reading][before:])

    longest("w" * 600)
    talk = bench.submit(chatting, chat("y" * 900))
    assert 0.8 * bound < longest("x" * 4_000) <= 1.02 * bound
    assert talk.id in bench.registry, "the chat was over before the prompt"
    bench.finish()
    bench.clock.now += RECENTLY - 1
    assert longest("z" * 500) <= 1.02 * bound  # it may go on any moment
    bench.clock.now += RECENTLY
    assert longest("z" * 4_000) > 2 * bound


def test_a_model_that_was_idle_is_served_next_and_has_no_more_than_its_half_then(bench: Bench) -> None:
    busy, idle = bench.serve(step=0.05, kv_tokens=16_384), bench.serve(step=0.05, kv_tokens=16_384)
    bench.submit(busy, chat("x" * 400), session=b"busy")
    while bench.clock.now < 110:
        bench.round()
    bench.submit(idle, chat("y" * 400), session=b"idle")
    before = len(bench.sent)
    for _ in range(40):
        bench.round()
    assert [session for session, _ in bench.sent[before:]] == [b"idle", b"busy"] * 20


@pytest.mark.parametrize("stop", ["c", "cd", "bc", "ab", "fg", "a"])
def test_a_stop_string_ends_at_the_token_that_completes_it(bench: Bench, stop: str) -> None:
    engine = bench.serve()
    active = bench.submit(engine, chat("abcdefg", stop=(stop,)))
    bench.finish()
    finished = bench.end(active)
    assert (finished.reason, finished.stop) == (FinishReason.STOP, stop)
    assert finished.usage.output == "abcdefg".index(stop) + len(stop)
    assert bench.text(active) == "abcdefg"[: "abcdefg".index(stop)]


def test_a_stop_string_at_the_last_permitted_token_counts(bench: Bench) -> None:
    engine = bench.serve()
    by_length = bench.submit(engine, chat("abcdefg", stop=("bc",), max_tokens=3))
    by_allowance = bench.submit(engine, chat("abcdefg", stop=("bc",)), allowance=3)
    paused = bench.submit(engine, chat("abcdefg", stop=("bc",)), allowance=3, is_final=False)
    bench.finish()
    for active in (by_length, by_allowance, paused):
        finished = bench.end(active)
        assert (finished.reason, finished.stop, finished.usage.output) == (FinishReason.STOP, "bc", 3)
        assert bench.text(active) == "a"


def test_a_pause_waits_for_the_clock_alone(bench: Bench) -> None:
    engine = bench.serve()
    active = bench.submit(engine, chat("abcdefg"), allowance=2, is_final=False)
    bench.finish()
    assert active.id in bench.registry
    assert bench.loop._until_deadline() == pytest.approx(2.0)
    bench.clock.now += 1.9
    bench.inbox.put(ExtendCommand(active, 4, False))
    bench.finish()
    assert bench.text(active) == "abcd"
    bench.clock.now += 2.1
    bench.finish()
    assert bench.end(active).reason is FinishReason.ALLOWANCE
    assert bench.loop._until_deadline() is None


def test_split_characters_never_leave_in_parts(bench: Bench) -> None:
    engine = bench.serve()
    active = bench.submit(engine, chat("aé€😀z"))
    bench.finish()
    pieces = [event.text for event in bench.events(active) if isinstance(event, WireDelta)]
    assert "".join(pieces) == "aé€😀z"
    assert len(pieces) == len("aé€😀z".encode())
    cut = bench.submit(engine, chat("é", max_tokens=1))
    bench.finish()
    assert bench.text(cut) == "\ufffd"


def test_a_poisoned_row_fails_alone_and_its_mates_go_on(bench: Bench) -> None:
    engine = bench.serve(options={"poison": "POISON", "fail_at": 2}, kv_tokens=4096)
    good = [bench.submit(engine, chat("a long good answer")) for _ in range(3)]
    bad = bench.submit(engine, chat("POISON"))
    bench.finish()
    finished = bench.end(bad)
    assert finished.reason is FinishReason.ERROR
    assert finished.error is not None
    assert finished.error.code == "step_failed"
    assert finished.usage.output == 2
    assert [bench.text(active) for active in good] == ["a long good answer"] * 3


def test_a_text_that_cannot_be_decoded_fails_its_request(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = bench.serve()

    class Breaking(ByteTokenizer):
        def decode(self, ids: Sequence[int]) -> str:
            if bytes(token for token in ids if token < 256).endswith(b"!"):
                raise ValueError("no such token")
            return super().decode(ids)

    monkeypatch.setattr(engine.engine._texts, "_tokenizer", Breaking())
    bad, good = bench.submit(engine, chat("ab!cd")), bench.submit(engine, chat("abcd"))
    bench.finish()
    finished = bench.end(bad)
    assert finished.error is not None
    assert (finished.reason, finished.error.code) == (FinishReason.ERROR, "text_failed")
    assert bench.text(good) == "abcd"


def test_what_the_scheduler_refuses_never_began(bench: Bench) -> None:
    engine = bench.serve(max_waiting=1)
    active = bench.submit(engine, chat("first"))
    refused = bench.submit(engine, chat("second"))
    bench.finish()
    [message] = [message for _, message in bench.sent if isinstance(message, Refused)]
    assert (message.id, message.kind) == (refused.id, "overloaded")
    assert not bench.record.is_closed(refused.id)
    assert bench.text(active) == "first"


def test_a_prefix_hit_is_reported_at_the_start(bench: Bench) -> None:
    engine = bench.serve()
    request = chat("a prompt of more than one block")
    bench.submit(engine, request)
    bench.finish()
    again = bench.submit(engine, replace(request, id="again"))
    bench.finish()
    started = bench.events(again)[0]
    assert isinstance(started, WireStarted)
    assert started.cached > 0
    usage = bench.end(again).usage
    assert (usage.cache_read, usage.prompt) == (started.cached, len(again.prompt.ids))


def test_a_drain_ends_what_runs_at_its_deadline(bench: Bench) -> None:
    engine = bench.serve()
    active = bench.submit(engine, chat("x", ignore_eos=True))
    bench.round()
    drained: list[bool] = []
    bench.inbox.put(DrainCommand((engine,), bench.clock.now + 5, lambda: drained.append(True)))
    bench.round()
    assert not drained
    late = bench.submit(engine, chat("late"))
    bench.round()
    assert [message.kind for _, message in bench.sent if isinstance(message, Refused)] == ["draining"]
    assert late.id not in bench.registry
    bench.clock.now += 5
    bench.round()
    assert bench.end(active).reason is FinishReason.CANCELLED
    assert drained == [True]


def test_preempted_requests_answer_as_if_alone(bench: Bench) -> None:
    engine = bench.serve(kv_tokens=128, block_size=4)
    answers = [f"answer number {number}" for number in range(6)]
    active = [bench.submit(engine, chat(answer)) for answer in answers]
    bench.finish()
    assert [bench.text(one) for one in active] == answers
    scheduler = engine.engine.schedulers[0]
    assert isinstance(scheduler, Scheduler)
    assert scheduler.stats().preemptions > 0


def test_embeddings_of_several_tenants_share_steps(bench: Bench) -> None:
    engine = bench.serve(options={"kinds": ["embedding"]})
    first, second = bench.submit(engine, embedding("a", "b"), 0), bench.submit(engine, embedding("c"), 0)
    bench.finish()
    assert bench.end(first).usage == Usage(input=4)
    assert bench.end(second).usage == Usage(input=2)
    assert bench.loop.steps == 1


def test_the_loop_is_busy_since_its_iteration_began_and_not_while_it_waits(bench: Bench) -> None:
    """What the heartbeat and `Health` judge a hung step by."""
    waits: list[float | None] = []
    steps: list[float | None] = []

    class Inbox(SimpleQueue[Command]):
        def get(self, block: bool = True, timeout: float | None = None) -> Command:
            waits.append(bench.loop.busy_since)
            if len(waits) > 1:
                self.put(StopCommand())
            return super().get(block, timeout)

    deployment = bench.serve()
    bench.inbox = bench.loop._inbox = Inbox()
    step = deployment.engine.step

    def watched(begin: Any) -> Any:
        steps.append(bench.loop.busy_since)
        bench.clock.now += 1
        return step(begin)

    deployment.engine.step = watched  # type: ignore[method-assign]
    bench.submit(deployment, chat("hi"))
    bench.loop.run()
    assert waits == [None, None]
    assert steps[:3] == [100.0, 101.0, 102.0]


def test_the_stop_of_each_of_several_answers_is_sent_with_its_end(bench: Bench) -> None:
    engine = bench.serve()
    request = chat("say it", n=2, max_tokens=40, stop=("a", "e", "i", "o", "u", " "))
    active = bench.submit(engine, request)
    bench.finish()
    ends = [event for event in bench.events(active) if isinstance(event, WireDelta) and event.ended]
    assert sorted(event.index for event in ends) == [0, 1]
    assert all(event.ended is FinishReason.STOP for event in ends)
    assert all(event.stop in request.sampling.stop for event in ends)
