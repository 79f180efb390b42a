"""Calls and thought through a worker process, a byte at a time, so that markers and characters are cut everywhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.engine import Engine
from inference.tools import Function, ToolMode, Tools
from inference.types import Delta, Event, FinishReason, GenerationRequest
from tests.inference.engine_contract import chat, end_of, run
from tests.inference.worker.processes import WorkerProcess

pytestmark = pytest.mark.slow  # a real process

TEXT = (
    "<think>Zoë – 🙂?</think>Ich schaue…<tool_call>\n"
    '{"name": "look", "arguments": {"at": "Zoë </tool_call> 🙂"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
)
OPTIONS = {"text": TEXT}
SCHEMA = '{"type": "object", "properties": {"at": {"enum": ["é"]}}, "required": ["at"], "additionalProperties": false}'
LOOK = Tools((Function("look", parameters=SCHEMA),))


@pytest.fixture(scope="module")
def worker() -> Iterator[WorkerProcess]:
    process = WorkerProcess(EngineConfig("tools", "fake", architecture="fake", options=OPTIONS))
    yield process.start()
    process.close()


@pytest.fixture
async def engine(worker: WorkerProcess) -> Any:
    opened = await worker.open("tools")
    yield opened
    await opened.close()


def told(events: list[Event]) -> dict[int, tuple[str, list[tuple[str, str]]]]:
    """The text and the calls of each answer."""
    answers: dict[int, Any] = {}
    for event in events:
        if isinstance(event, Delta):
            text, calls = answers.get(event.index, ("", []))
            for piece in event.calls:
                if piece.name:
                    assert piece.id
                    calls.append((piece.name, ""))
                calls[-1] = calls[-1][0], calls[-1][1] + piece.arguments
            answers[event.index] = text + event.text, calls
    return answers


def asked(tools: Tools | None = LOOK, **sampling: Any) -> GenerationRequest:
    return replace(chat("x", **sampling), tools=tools)


FIRST = ("look", '{"at": "Zoë </tool_call> 🙂"}')


async def test_calls_come_whole_wherever_the_text_is_cut(engine: Engine) -> None:
    events = await run(engine, asked())
    [(text, calls)] = told(events).values()
    assert text == "<think>Zoë – 🙂?</think>Ich schaue…"  # the fake model's template has no thought
    assert calls == [FIRST, ("look", "{}")]
    assert end_of(events).usage.output == len(TEXT.encode()) + 1


async def test_each_of_several_answers_has_its_own_calls(engine: Engine) -> None:
    events = await run(engine, asked(n=3))
    answers = told(events)
    assert set(answers) == {0, 1, 2}
    assert all(calls == [FIRST, ("look", "{}")] for _, calls in answers.values())
    names = [piece.id for event in events if isinstance(event, Delta) for piece in event.calls if piece.name]
    assert len(set(names)) == len(names) == 6


async def test_an_answer_ends_behind_its_only_call(engine: Engine) -> None:
    events = await run(engine, asked(replace(LOOK, parallel=False)))
    [(_, calls)] = told(events).values()
    assert calls == [FIRST]
    assert end_of(events).reason is FinishReason.STOP
    assert end_of(events).usage.output < len(TEXT.encode())


@pytest.mark.parametrize(("stop", "calls"), [("</tool_call>\n<", 1), ("schaue", 0), ('", "arg', 0), ("🙂?", 0)])
async def test_a_stop_string_ends_an_answer_inside_marks_too(engine: Engine, stop: str, calls: int) -> None:
    events = await run(engine, asked(stop=(stop,)))
    [(_, found)] = told(events).values() or [("", [])]
    assert len(found) == calls
    assert end_of(events).stop == stop


async def test_a_required_call_is_held_to_its_schema(engine: Engine) -> None:
    events = await run(engine, asked(replace(LOOK, mode=ToolMode.REQUIRED, parallel=False), max_tokens=200))
    [(text, calls)] = told(events).values()
    assert text == ""
    assert [(name, json.loads(arguments)) for name, arguments in calls] == [("look", {"at": "é"})]
