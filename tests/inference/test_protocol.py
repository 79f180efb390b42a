"""What is sent is what is read, and what can't be is noticed."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from hashlib import sha256
from typing import Any

import msgspec
import pytest

from inference.conversion import error_of, event_of, evidence_of, evidence_reply, refusal_of
from inference.errors import DrainingError, EngineError, InvalidRequestError, OverloadedError, UnpreparedError
from inference.messages import Image, Message, Reasoning, ToolCall, ToolResult
from inference.protocol import (
    PARTS,
    VERSION,
    Batch,
    Cancel,
    Drain,
    Drained,
    Extend,
    Fatal,
    FromWorker,
    Goodbye,
    Hello,
    Prepare,
    PreparedReply,
    ProtocolError,
    Ready,
    Refused,
    Renew,
    Stats,
    Submit,
    ToWorker,
    UsageOf,
    UsageReply,
    WireDelta,
    WireFinished,
    WireStarted,
    WireVector,
    client_inbound,
    encode,
    encode_any,
    numbered,
    worker_inbound,
)
from inference.types import (
    BOUNDS,
    CallPiece,
    Delta,
    EngineFault,
    EngineInfo,
    Evidence,
    Finished,
    FinishReason,
    GenerationRequest,
    Health,
    Histogram,
    Kind,
    Lost,
    NothingRan,
    Running,
    SamplingParams,
    Started,
    Usage,
    Vector,
    Work,
)

REQUEST = GenerationRequest(
    "a",
    "t",
    "d",
    messages=(
        Message("user", ("é", Image("https://h/i.png", 3, 4, "low"), "and")),
        Message("assistant", (Reasoning("so"), ToolCall("c", "f", "{}"))),
        Message("tool", (ToolResult("c", ("it", Image("data:image/png;base64,AA=="))),)),
    ),
    inputs=("x", (1, 2)),
    sampling=SamplingParams(stop=("s",), seed=7),
)
END = Finished(FinishReason.ERROR, Usage(1, 2, 3, 4), EngineFault("c", "m", True), stop=5, exact=False, queued_ms=0.5)
TO_WORKER: list[ToWorker] = [
    Hello(),
    Prepare(1, "d", REQUEST),
    Submit("a", 5, True),
    Extend("a", 9, False),
    Cancel("a"),
    UsageOf(2, "a"),
    Drain(3, "d", 1.5),
    Renew(10**12),
    Goodbye(),
]
INFO = EngineInfo("d", "m", frozenset({Kind.CHAT}), 10, 9, details={"dtype": "float32"})
FROM_WORKER: list[FromWorker] = [
    Ready("i", {"d": INFO}),
    PreparedReply(1, 5, 6),
    Refused("c", "m", "invalid", 1, param="p"),
    Batch(
        [WireStarted("a", 1), WireDelta("a", "é", 1, 2, 3, 4), WireVector("a", 0, b"v", ("l",)), WireFinished("a", END)]
    ),
    evidence_reply(1, END),
    Drained(1),
    Stats("i", 5, {"d": Health(ready=True, running=2)}),
    Fatal("i", "why"),
]


def test_messages_travel_both_ways() -> None:
    worker, client = worker_inbound(), client_inbound()
    for number, message in enumerate(TO_WORKER, 1):
        assert worker.read([numbered(number), encode(message)]) == message
    for number, answer in enumerate(FROM_WORKER, 1):
        assert client.read([numbered(number), encode(answer)]) == answer


@pytest.mark.parametrize("part", [["Sound", {}], ["Image", {}], ["Image", {"url": 1}], ["Image"], 5])
def test_a_part_of_no_known_kind_breaks_the_protocol(part: object) -> None:
    whole = msgspec.msgpack.decode(encode(Prepare(1, "d", REQUEST)))
    whole["request"]["messages"] = [["user", ["so", part]]]
    with pytest.raises(ProtocolError, match="frame 1"):
        worker_inbound().read([numbered(1), msgspec.msgpack.encode(whole)])


def test_whatever_a_worker_says_can_be_sent() -> None:
    calls = (CallPiece("call_1", "f", '{"a": "\ud800"}'),)
    batch = Batch([WireDelta("r", "ö\udc00", 1, 0, 1, 0, calls=calls), WireVector("r", 0, b"\xff", ("\udfff",))])
    read = client_inbound().read([numbered(1), encode_any(batch)])
    called = (CallPiece("call_1", "f", '{"a": "\ufffd"}'),)
    assert read == Batch(
        [WireDelta("r", "ö\ufffd", 1, 0, 1, 0, calls=called), WireVector("r", 0, b"\xff", ("\ufffd",))]
    )
    info = EngineInfo("d", "m", frozenset({Kind.CHAT}), 2**70, -(2**70), details={"\ud800": "\ud800"})
    ready = client_inbound().read([numbered(1), encode_any(Ready("i", {"d": info}))])
    assert ready.engines["d"] == replace(info, max_context=2**64 - 1, max_input=-(2**63), details={"\ufffd": "\ufffd"})


def test_what_a_gateway_says_is_never_changed() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode(Cancel("\ud800"))


@pytest.mark.parametrize("number", [1, 3])
def test_a_repeat_and_a_gap_are_noticed(number: int) -> None:
    inbound = worker_inbound()
    inbound.read([numbered(1), encode(Hello())])
    with pytest.raises(ProtocolError, match="where 2 was due"):
        inbound.read([numbered(number), encode(Goodbye())])


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [b""],
        [numbered(1)],
        [numbered(1), b"", b""],
        [b"123", encode(Hello())],
        [numbered(1), b"\xc1"],
        [numbered(1), encode(Drained(1))],
        [numbered(1), b"\x91" * 100_000],
    ],
)
def test_malformed_frames_are_refused(parts: list[bytes]) -> None:
    with pytest.raises(ProtocolError):
        worker_inbound().read(parts)


def test_only_fatal_comes_without_a_number() -> None:
    inbound = client_inbound()
    assert inbound.read([numbered(0), encode(Fatal("i", "why"))]) == Fatal("i", "why")
    with pytest.raises(ProtocolError):
        inbound.read([numbered(0), encode(Drained(1))])
    assert inbound.read([numbered(1), encode(Drained(1))]) == Drained(1)


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("m", code="context_length_exceeded", param="messages"),
        OverloadedError("m"),
        DrainingError("m"),
        UnpreparedError("m"),
        EngineError("m", code="prepare_failed"),
    ],
)
def test_errors_keep_their_type_and_code(error: EngineError) -> None:
    again = error_of(refusal_of(error, call=1))
    assert type(again) is type(error)
    assert (again.code, again.message, again.param) == (error.code, error.message, error.param)


def test_events_travel_unchanged() -> None:
    assert event_of(WireStarted("a", 3)) == Started(3)
    assert event_of(WireDelta("a", "t", 1, 2, 3, 4)) == Delta("t", Usage(1, 2, 3, 4))
    ended = {"index": 1, "ended": FinishReason.STOP, "stop": "x"}
    assert event_of(WireDelta("a", "t", 1, 2, 3, 4, **ended)) == Delta("t", Usage(1, 2, 3, 4), **ended)
    assert event_of(WireVector("a", 1, b"v", ("x", "y"))) == Vector(1, b"v", ("x", "y"))
    assert event_of(WireFinished("a", END)) == END


@pytest.mark.parametrize("count", [-1, -(2**63), 2**31, 2**40])
def test_an_impossible_usage_is_refused_in_events_and_evidence(count: int) -> None:
    """Such a count was kept as a checkpoint, and then no lease of the whole gateway could be renewed."""
    usage = Usage(3, output=count)
    for wire in (
        WireDelta("a", "t", 1, 2, count, 4),
        WireStarted("a", count),
        WireFinished("a", Finished(FinishReason.STOP, usage)),
    ):
        with pytest.raises(EngineError, match="counted what can't be"):
            event_of(wire)
    for evidence in (Finished(FinishReason.STOP, usage), Running(usage)):
        with pytest.raises(EngineError, match="counted what can't be"):
            evidence_of(evidence_reply(1, evidence))


def test_evidence_of_an_unknown_state_is_refused() -> None:
    """As an error of the engine, so that the sweep still gives up after its window."""
    with pytest.raises(EngineError, match="unknown kind"):
        evidence_of(UsageReply(1, "perhaps"))


@pytest.mark.parametrize("evidence", [END, Running(Usage(1)), NothingRan(), Lost()])
def test_evidence_travels_unchanged(evidence: Evidence) -> None:
    assert evidence_of(evidence_reply(1, evidence)) == evidence


def described(schema: Any) -> Any:
    """The schema without what stands there for readers."""
    if isinstance(schema, dict):
        return {name: described(value) for name, value in schema.items() if name not in {"description", "title"}}
    return [described(value) for value in schema] if isinstance(schema, list) else schema


def test_an_engines_work_travels_and_is_read_without_the_durations_of_a_worker_that_tells_none() -> None:
    durations = Histogram((1, 0, 2, *(0 for _ in BOUNDS[2:])), 0.5)
    work = Work(steps=3, tenants={"t": 1.5}, queued=durations, first_tokens=durations, gaps=Histogram())
    told = Stats("i", 5, {"d": Health(ready=True, work=work)})
    assert client_inbound().read([numbered(1), encode(told)]) == told
    older = msgspec.msgpack.decode(encode(told))
    for name in ("queued", "first_tokens", "gaps"):
        del older["health"]["d"]["work"][name]
    expected = Stats("i", 5, {"d": Health(ready=True, work=Work(steps=3, tenants={"t": 1.5}))})
    assert client_inbound().read([numbered(1), msgspec.msgpack.encode(older)]) == expected


@pytest.mark.parametrize(
    "health",
    [
        Health(ready=True, running=-1),
        Health(ready=True, waiting=-1),
        Health(ready=True, steps=-1),
        Health(ready=True, kv_used=1.5),
        Health(ready=True, kv_cached=math.nan),
        *(
            Health(ready=True, work=work)
            for work in (
                Work(steps=-1),
                Work(rows=-1),
                Work(seconds=math.nan),
                Work(prefill_seconds=-0.5),
                Work(prompt_tokens=-1),
                Work(cached_tokens=-1),
                Work(output_tokens=-1),
                Work(preemptions={"blocks": -5}),
                Work(preemptions=dict.fromkeys(map(str, range(17)), 1)),
                Work(tenants={"t": math.inf}),
                Work(queued=Histogram((1, 2), 0.5)),
                Work(first_tokens=Histogram((-1, *(0 for _ in BOUNDS)), 0.5)),
                Work(gaps=Histogram((0, *(0 for _ in BOUNDS)), math.nan)),
            )
        ),
    ],
)
def test_a_state_that_cant_be_breaks_the_protocol(health: Health) -> None:
    """One negative count kept the gateway from looking at any engine, and a series of infinity from being read."""
    with pytest.raises(ProtocolError, match="can't be"):
        client_inbound().read([numbered(1), encode(Stats("i", 5, {"d": health}))])


def test_a_change_of_the_messages_is_a_new_version() -> None:
    """A peer of the same version reads every field: an older worker would ignore a new one, such as a penalty."""
    kinds = [ToWorker, FromWorker, *PARTS.values()]
    schemas, components = msgspec.json.schema_components(kinds, schema_hook=lambda kind: {"title": kind.__name__})
    text = json.dumps(described([schemas, components]), sort_keys=True)
    found = (VERSION, sha256(text.encode()).hexdigest()[:16])
    assert found == (25, "30190055addcd2cf"), "raise VERSION in inference/protocol.py, and write both here"
