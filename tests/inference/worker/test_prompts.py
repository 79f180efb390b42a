"""Long requests are prepared beside the reader thread, which goes on answering."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from queue import SimpleQueue
from typing import Any, cast

import pytest

from inference.errors import EngineError, InvalidRequestError, LimitedError, OverloadedError
from inference.protocol import Prepare, Refused, Renew, Submit, client_inbound, numbered
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, Guidance, GuidanceKind
from inference.worker import prompts
from inference.worker.budget import PreparationBudget
from inference.worker.deployment import Deployment
from inference.worker.process import Outbox
from inference.worker.prompts import (
    SHORT_BYTES,
    WAITED,
    PromptCall,
    PromptQueue,
    PromptResult,
    Queues,
    adapter_of,
    grammar_of,
    long_prompt,
)
from inference.worker.serving import Serving
from inference.worker.session import Session
from inference.worker.sessions import Reader
from tests.inference.engine_contract import chat

WAIT = 10.0


class PanicError(BaseException):
    """Stands for what libraries in Rust raise when they panic, which is no Exception."""


class Compiled:
    """Compiles a guidance, for a long time one whose source is "stuck"; knows what it has compiled."""

    def __init__(self) -> None:
        self.kept: dict[Guidance, str] = {}
        self.go = threading.Event()
        self.began = threading.Event()

    def known(self, guidance: Guidance) -> str | None:
        if guidance.source == "refused":
            raise InvalidRequestError("refused before", param=guidance.param)
        return self.kept.get(guidance)

    def compiled(self, guidance: Guidance) -> str:
        if guidance.source == "broken":
            raise ZeroDivisionError
        if guidance.source == "panic":
            raise PanicError
        if guidance.source == "stuck":
            self.began.set()
            assert self.go.wait(WAIT)
        return self.kept.setdefault(guidance, f"grammar of {guidance.source}")


class Engine:
    """Prepares a request in a tenth of a second of its own clock; one that begins with "stuck" once `go` is set."""

    id = "d"
    draining = False

    def __init__(self) -> None:
        self.grammars = Compiled()
        self.go = threading.Event()
        self.adapters: dict[str, str] = {}
        self.loading, self.loaded = threading.Event(), threading.Event()
        self.began = threading.Event()
        self.own_tokenizer: list[bool] = []
        self.order: list[str] = []
        self.now = 0.0

    def guidance_of(self, request: GenerationRequest) -> Guidance | None:
        if request.messages[-1].texts[0].startswith("unreadable"):
            raise RecursionError
        return request.sampling.guidance

    def adapter_in_memory(self, request: GenerationRequest) -> str | None:
        return self.adapters.get(request.adapter, "" if not request.adapter else None)

    def adapters_in_memory(self) -> tuple[str, ...]:
        return tuple(self.adapters)

    def load_adapter(self, request: GenerationRequest) -> str:
        self.loading.set()
        assert self.loaded.wait(WAIT)
        self.adapters[request.adapter] = f"{request.adapter}:digest"
        return self.adapters[request.adapter]

    def prepare(
        self, request: GenerationRequest, *, own_tokenizer: bool = True, grammar: object = None, adapter: str = ""
    ) -> Prompt:
        self.own_tokenizer.append(own_tokenizer)
        text = request.messages[-1].texts[0]
        self.order.append(text)
        self.now += 0.1
        if text.startswith("broken"):
            raise ZeroDivisionError
        if text.startswith("panic"):
            raise PanicError
        if text.startswith("ended"):
            raise SystemExit
        if text.startswith("stuck"):
            self.began.set()
            assert self.go.wait(WAIT)
        return Prompt(request, 7, ids=(1, 2, 3), grammar=cast("Any", grammar), adapter=adapter)


class Router:
    """Counts what is sent."""

    def __init__(self) -> None:
        self.frames: list[list[bytes]] = []

    def send_multipart(self, frames: list[bytes], flags: int) -> None:
        self.frames.append(frames)


class Wake:
    """Stands for the socket that wakes the reader."""

    def __init__(self) -> None:
        self.came: SimpleQueue[bytes] = SimpleQueue()

    def send(self, frame: bytes) -> None:
        self.came.put(frame)


class Served:
    """A reader with one session, without sockets; long prompts have one thread."""

    def __init__(self, budget: PreparationBudget | None = None, threads: int = 1) -> None:
        self.engine, self.router, self.wake = Engine(), Router(), Wake()
        self.outbox = Outbox(self.wake)
        budget, done = budget or PreparationBudget(at_once=float("inf")), self.outbox.prepared
        self.queues = Queues(
            PromptQueue(long_prompt, done, budget, self.clock, what="long prompts", threads=threads),
            PromptQueue(grammar_of, done, budget, self.clock, what="new grammars", threads=2),
            PromptQueue(adapter_of, done, budget, self.clock, what="adapters", threads=1),
        )
        loop: Any = type("Loop", (), {"steps": 0, "health": {}, "busy_since": None})()
        self.serving = Serving(loop, step_seconds=30.0)
        record: Any = type("Record", (), {"is_closed": lambda *_: False})()
        self.reader = Reader(
            router=self.router,
            wake=None,
            incarnation="i",
            record=record,
            registry={},
            inbox=SimpleQueue(),
            serving=self.serving,
            enqueue=self.outbox.send,
            queues=self.queues,
            budget=budget,
            session_seconds=5.0,
            session_bytes=1 << 20,
            prepared_seconds=30.0,
            clock=self.clock,
        )
        self.serving.deployments["d"] = cast("Deployment", self.engine)
        self.session = Session(b"gateway", 0.0)
        self.reader._sessions[b"gateway"] = self.session

    def clock(self) -> float:
        return self.engine.now

    def close(self) -> None:
        """Let everything end."""
        for event in (self.engine.go, self.engine.grammars.go, self.engine.loaded):
            event.set()
        for queue in self.queues:
            queue.close(WAIT)

    def ask(
        self,
        text: str,
        call: int = 1,
        tenant: str = "tenant",
        size: int = 0,
        weight: int = 1,
        *,
        regex: str = "",
        adapter: str = "",
    ) -> str:
        request = replace(chat(text), tenant=tenant, domain=tenant, weight=weight, adapter=adapter)
        if regex:
            sampling = replace(request.sampling, guidance=Guidance(GuidanceKind.REGEX, regex))
            request = replace(request, sampling=sampling)
        self.reader._handle(self.session, Prepare(call, "d", request), size or len(text))
        self.reader._prepare_next()  # as its run does
        return request.id

    def prepared(self) -> None:
        """Hand one long request's end to the reader, as its run does."""
        result = self.outbox.queue.get(timeout=WAIT)
        assert isinstance(result, PromptResult)
        self.reader._finish_prompt(result)
        self.reader._prepare_next()


@pytest.fixture
def served() -> Iterator[Served]:
    served = Served()
    yield served
    served.close()


def test_a_long_prompt_delays_neither_renewals_nor_short_prompts(served: Served) -> None:
    served.ask("stuck" * SHORT_BYTES)
    assert served.engine.began.wait(WAIT)
    served.reader._handle(served.session, Renew(0), 1)
    served.ask("short", call=2)
    assert len(served.router.frames) == 2
    assert len(served.session.prepared) == 1
    served.engine.go.set()
    served.prepared()
    assert len(served.router.frames) == 3
    assert len(served.session.prepared) == 2
    assert served.engine.own_tokenizer == [False, True]


def test_an_adapter_is_read_beside_what_others_ask(served: Served) -> None:
    adapted = served.ask("hello", adapter="law")
    assert served.engine.loading.wait(WAIT)
    other = served.ask("short", call=2)
    assert list(served.session.prepared) == [other]
    served.engine.loaded.set()
    served.prepared()
    assert list(served.session.prepared) == [other, adapted]
    assert served.session.prepared[adapted].prompt.adapter == "law:digest"
    again = served.ask("hello", call=3, adapter="law")  # at once: it is in memory
    assert again in served.session.prepared


@pytest.mark.parametrize("text", ["broken", "panic"])
def test_a_long_request_that_fails_is_refused_and_the_next_is_prepared(served: Served, text: str) -> None:
    served.ask(text * SHORT_BYTES)
    served.prepared()
    assert b"prepare_failed" in served.router.frames[-1][-1]
    served.ask("whole" * SHORT_BYTES)
    served.prepared()
    assert len(served.session.prepared) == 1


def test_a_short_request_that_panics_is_refused_and_the_end_of_the_process_is_not(served: Served) -> None:
    served.ask("panic")
    assert b"prepare_failed" in served.router.frames[-1][-1]
    with pytest.raises(SystemExit):
        served.ask("ended", call=2)


def test_a_request_whose_guidance_fails_is_refused(served: Served) -> None:
    served.ask("unreadable")
    assert b"prepare_failed" in served.router.frames[-1][-1]


def test_a_session_that_has_left_is_not_answered(served: Served) -> None:
    served.ask("whole" * SHORT_BYTES)
    result = served.outbox.queue.get(timeout=WAIT)
    del served.reader._sessions[b"gateway"]
    served.reader._finish_prompt(result)
    assert served.router.frames == []


def test_a_burst_of_one_tenant_is_prepared_as_a_whole(served: Served) -> None:
    for call in range(12):
        served.ask("whole" * SHORT_BYTES, call=call)
    for _ in range(12):
        served.prepared()
    assert len(served.session.prepared) == 12
    assert b"refused" not in b"".join(frame for frames in served.router.frames for frame in frames)


def test_tenants_with_long_queues_leave_bytes_for_the_next(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_QUEUED_BYTES", 100 * SHORT_BYTES)
    size = SHORT_BYTES + 1
    for number in range(4):
        taken = 0
        while not served.router.frames:
            served.ask("stuck", tenant=f"t{number}", size=size)
            taken += 1
        assert taken > 1, "each found some room"
        assert b"too many long prompts" in served.router.frames.pop()[-1]
    served.ask("stuck", tenant="newcomer", size=size)
    assert served.router.frames == []


def test_what_was_prepared_leaves_its_bytes_to_the_next(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts, "MAX_QUEUED_BYTES", 2 * SHORT_BYTES)
    for _ in range(3):
        served.ask("whole", size=SHORT_BYTES + 1, tenant="one")
        served.prepared()
    assert len(served.session.prepared) == 3


def test_a_tenant_of_more_weight_has_more_turns(served: Served) -> None:
    served.ask("stuck", tenant="first", size=SHORT_BYTES + 1)
    assert served.engine.began.wait(WAIT)
    for number in range(4):
        served.ask(f"light {number}", tenant="light", size=10 * SHORT_BYTES)
        served.ask(f"heavy {number}", tenant="heavy", size=10 * SHORT_BYTES, weight=4)
    served.engine.go.set()
    for _ in range(9):
        served.prepared()
    assert served.engine.order.index("heavy 3") < served.engine.order.index("light 2")


def test_a_prompt_of_a_deployment_that_was_loaded_anew_is_not_run(served: Served) -> None:
    identifier = served.ask("short")
    served.serving.deployments["d"] = cast("Deployment", Engine())
    served.reader._handle(served.session, Submit(identifier, 10, True), 1)
    assert b"loaded anew" in served.router.frames[-1][-1]
    assert served.reader._registry == {}


def test_tenants_take_turns(served: Served) -> None:
    served.ask("stuck", tenant="first", size=SHORT_BYTES + 1)
    assert served.engine.began.wait(WAIT)
    for number in range(3):
        served.ask(f"flood {number}", tenant="first", size=10 * SHORT_BYTES)
    served.ask("other", tenant="second", size=10 * SHORT_BYTES)
    served.engine.go.set()
    for _ in range(5):
        served.prepared()
    assert served.engine.order.index("other") < served.engine.order.index("flood 1")


def test_a_prompt_that_waited_too_long_is_not_tokenised() -> None:
    done: SimpleQueue[PromptResult] = SimpleQueue()
    engine = Engine()
    queue = PromptQueue(long_prompt, done.put, PreparationBudget(), lambda: 100.0, what="long prompts", threads=1)
    message = Prepare(1, "d", chat("whole"))
    queue.put(PromptCall(b"s", message, cast("Deployment", engine), 1, 100.0 - prompts.MAX_WAIT_SECONDS - 1))
    outcome = done.get(timeout=WAIT).outcome
    assert isinstance(outcome, EngineError)
    assert isinstance(outcome, OverloadedError)
    assert engine.own_tokenizer == []
    queue.close(WAIT)


def test_a_grammar_that_compiles_holds_up_nobody_else(served: Served) -> None:
    guided = served.ask("first", regex="stuck")
    assert served.engine.grammars.began.wait(WAIT)
    served.ask("plain", call=2)
    served.ask("whole" * SHORT_BYTES, call=3)
    served.prepared()
    assert len(served.session.prepared) == 2
    served.engine.grammars.go.set()
    served.prepared()
    assert served.session.prepared[guided].prompt.grammar == "grammar of stuck"
    assert len(served.router.frames) == 3


def test_a_known_grammar_is_taken_at_once(served: Served) -> None:
    served.ask("first", regex="a")
    served.prepared()
    again = served.ask("second", call=2, regex="a")
    assert served.session.prepared[again].prompt.grammar == "grammar of a"
    assert served.outbox.queue.empty()


def test_a_long_prompt_with_a_new_grammar_goes_through_both_threads(served: Served) -> None:
    name = served.ask("whole" * SHORT_BYTES, regex="a")
    served.prepared()
    assert not served.session.prepared
    served.prepared()
    assert served.session.prepared[name].prompt.grammar == "grammar of a"
    assert served.engine.own_tokenizer == [False]


@pytest.mark.parametrize(
    ("regex", "code"), [("refused", b"refused before"), ("broken", b"prepare_failed"), ("panic", b"prepare_failed")]
)
def test_a_grammar_that_fails_is_refused_and_the_next_compiled(served: Served, regex: str, code: bytes) -> None:
    served.ask("first", regex=regex)
    if regex != "refused":
        served.prepared()
    assert code in served.router.frames[-1][-1]
    served.ask("second", call=2, regex="a")
    served.prepared()
    assert len(served.session.prepared) == 1


def test_a_tenant_whose_grammars_take_long_waits_for_others_though_they_are_short() -> None:
    """One tenant's grammars take a second each and have a byte, the other's take nothing and have a thousand."""
    now = 0.0
    order: list[str] = []
    began, go = threading.Event(), threading.Event()

    def work(call: PromptCall) -> Any:
        nonlocal now
        began.set()
        assert go.wait(WAIT)
        order.append(call.tenant)
        now += 1.0 if call.tenant == "slow" else 0.0
        return "grammar"

    done: SimpleQueue[PromptResult] = SimpleQueue()
    queue = PromptQueue(work, done.put, PreparationBudget(), lambda: now, what="new grammars", threads=1)
    deployment = cast("Deployment", Engine())
    for tenant, size, count in (("slow", 1, 4), ("quick", 1000, 4)):
        for number in range(count):
            request = replace(chat("x"), tenant=tenant, domain=tenant, weight=1000)
            queue.put(PromptCall(b"s", Prepare(number, "d", request), deployment, size, 0.0))
    assert began.wait(WAIT)
    go.set()
    for _ in range(8):
        done.get(timeout=WAIT)
    queue.close(WAIT)
    assert order == ["slow", *["quick"] * 4, *["slow"] * 3]


def test_a_tenant_has_one_thread_and_leaves_the_others(served: Served) -> None:
    """Two of one tenant's grammars that take long left none of two threads to anybody else."""
    served.ask("first", regex="stuck", tenant="attacker")
    assert served.engine.grammars.began.wait(WAIT)
    served.ask("second", call=2, regex="stuck too", tenant="attacker")
    bystanders = served.ask("third", call=3, regex="a", tenant="bystander")
    served.prepared()
    assert list(served.session.prepared) == [bystanders]


def test_seconds_that_were_prepared_in_vain_are_used_up_for_their_tenant_alone() -> None:
    now = 0.0
    budget = PreparationBudget(lambda: now, per_second=0.5, at_once=2.0)
    served = Served(budget)
    served.queues = served.reader._queues = served.queues._replace(
        grammars=PromptQueue(
            grammar_of,
            served.outbox.prepared,
            budget,
            served.clock,
            what="new grammars",
            threads=1,
            timer=served.clock,
        )
    )
    compiled = served.engine.grammars.compiled

    def slowly(guidance: Guidance) -> str:
        served.engine.now += 3.0
        return compiled(guidance)

    served.engine.grammars.compiled = slowly  # type: ignore[method-assign]
    try:
        served.ask("vain", regex="broken", tenant="attacker")
        served.prepared()
        for call, text, regex in ((2, "short", ""), (3, "long" * SHORT_BYTES, ""), (4, "new", "b")):
            served.ask(text, call=call, regex=regex, tenant="attacker")
            refused = client_inbound().read([numbered(1), served.router.frames[-1][-1]])
            assert isinstance(refused, Refused)
            assert (refused.call, refused.code, refused.seconds) == (call, "preparation_limit_exceeded", 2)
        served.ask("short", call=5, tenant="bystander")
        assert len(served.session.prepared) == 1
        now += 2.5
        served.ask("short", call=6, tenant="attacker")
        assert len(served.session.prepared) == 2
    finally:
        served.close()


def test_a_batch_and_what_waits_for_everybody_take_from_the_budget_of_their_tenant() -> None:
    budget = PreparationBudget(lambda: 0.0, at_once=2.0)
    budget.use("tenant", 3.0)
    served = Served(budget)
    try:
        for call, queue in enumerate(("tenant", "tenant:flex", "tenant:batches"), 1):
            request = replace(chat("short"), tenant=queue, domain="tenant")
            served.reader._handle(served.session, Prepare(call, "d", request), 5)
            served.reader._prepare_next()
        assert served.session.prepared == {}
    finally:
        served.close()


def test_a_wait_for_a_process_or_a_disk_costs_a_tenant_so_much_at_most() -> None:
    budget = PreparationBudget(lambda: 0.0, at_once=10.0)
    moments = iter([0.0, 60.0])
    with budget.spent("slow disk", lambda: next(moments), WAITED):
        pass
    budget.require("slow disk")
    with budget.spent("slow disk", iter([0.0, 60.0]).__next__):
        pass
    with pytest.raises(LimitedError):
        budget.require("slow disk")
