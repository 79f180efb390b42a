"""The engine in process, as a person uses it from Python."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from inference.architectures.fake import load_fake_model
from inference.config import EngineConfig
from inference.errors import DeviceLostError, EngineError, InvalidRequestError
from inference.execution.backend import LoadedModel
from inference.local import engine as local
from inference.local.engine import LocalEngine
from inference.text.byte_tokenizer import ByteTokenizer
from inference.text.prepare import Prompt
from inference.types import FinishReason, GenerationRequest, Kind, Resumed, Usage
from tests.inference.engine_contract import chat


def load_fake(config: EngineConfig) -> LoadedModel:
    return load_fake_model(EngineConfig("d", "fake", architecture="fake"))


def test_the_documented_example_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.architectures.load.load_model", load_fake)
    monkeypatch.setattr("inference.text.tokenizer.FolderTokenizer", lambda _: ByteTokenizer())
    assert local.__doc__ is not None
    lines = local.__doc__.partition("worker:\n")[2].replace("print(answers)", "")
    names: dict[str, Any] = {}
    exec("\n".join(line.removeprefix("    ") for line in lines.splitlines()), names)
    assert names["answers"] == {"a": "What is a ledger?", "b": "Name three rivers."}


def engine(**config: Any) -> LocalEngine:
    spec = EngineConfig("d", "fake", **{"architecture": "fake", **config})
    return LocalEngine(spec, load_fake_model(spec), ByteTokenizer(), clock=lambda: 0.0)


def test_begin_gets_each_request_once_before_its_first_step() -> None:
    served = engine(prefill_chunk=4)
    begun: list[tuple[str, ...]] = []
    request = chat("hello")
    served.submit(served.prepare(request))
    while served.unfinished:
        served.step(lambda ids: begun.append((*ids, str(served.steps))))
    assert begun == [(request.id, "0")]
    assert served.steps > 3


@pytest.mark.parametrize("drafts", [0, 8])
@pytest.mark.parametrize("overlaps", [False, True])
def test_its_details_say_when_the_drafts_that_were_asked_for_are_off(
    drafts: int, overlaps: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.architectures.fake.FakeRunner.overlaps", overlaps)
    details = engine(speculation=drafts).info.details
    assert details["architecture"] == "fake"
    assert details.get("speculation") == ("off, steps overlap" if drafts and overlaps else None)


def test_a_stop_string_ends_within_its_step() -> None:
    served = engine()
    served.submit(served.prepare(chat("abcdef", stop=("cd",))))
    outputs = []
    while served.unfinished:
        outputs += served.step()
    assert "".join(output.text for output in outputs) == "ab"
    finished = outputs[-1].finished
    assert finished is not None
    assert (finished.reason, finished.stop, served.steps) == (FinishReason.STOP, "cd", 4)


def test_a_lost_device_is_no_failure_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retried row by row it would fail every request one after the other: the worker has to end instead."""
    served = engine()
    served.submit(served.prepare(chat("abc")))

    def launch(plan: Any) -> Any:
        raise DeviceLostError("gone")

    monkeypatch.setattr(served.model.runner, "launch", launch)
    with pytest.raises(DeviceLostError):
        served.step()
    assert served.unfinished == 1


def test_without_a_tokenizer_it_takes_ids_and_gives_no_text() -> None:
    spec = EngineConfig("d", "fake", architecture="fake", options={"text": "xy"})
    served = LocalEngine(spec, load_fake_model(spec))
    with pytest.raises(InvalidRequestError, match="no tokenizer"):
        served.prepare(chat("hi"))
    served.submit(Prompt(GenerationRequest("r", "t", "d"), 2, ids=(1, 2, 3)))
    outputs = []
    while served.unfinished:
        outputs += served.step()
    assert [token for output in outputs for token in output.tokens] == list(b"xy")
    assert "".join(output.text for output in outputs) == ""
    assert outputs[-1].usage == Usage(input=3, output=2)


def test_cancelled_requests_end_without_a_step() -> None:
    served = engine()
    for number in range(3):
        served.submit(served.prepare(chat(f"text {number}")))
    served.step()
    served.cancel_all()
    ended = served.take_outputs()
    assert [output.finished.reason for output in ended if output.finished] == [FinishReason.CANCELLED] * 3
    assert served.step() == []
    assert (served.steps, served.unfinished, served.health().running) == (1, 0, 0)


def test_the_rate_cards_ratios_decide_whose_turn_it_is() -> None:
    def charged(rates: dict[str, int], repriced: dict[str, int] | None = None) -> int:
        served = engine(rates=rates, prefix_cache=False)
        if repriced is not None:
            served.reprice(repriced)
        served.submit(served.prepare(chat("abcd", ignore_eos=True, max_tokens=10)))
        while served.unfinished:
            served.step()
        (scheduler,) = served.schedulers
        return scheduler.waiting.queue.counter("tenant")

    usual, dear = charged({}), charged({"input": 10, "output": 80})
    assert dear - usual == 10 * (8000 - 2000) * 1000
    assert charged({}, {"input": 10, "output": 80}) == dear


def test_stop_strings_are_not_looked_for_below_min_tokens() -> None:
    served = engine()
    served.submit(served.prepare(chat("abcdabcd", stop=("cd",), min_tokens=4)))
    text = ""
    while served.unfinished:
        text += "".join(output.text for output in served.step())
    assert text == "abcdab"


def test_the_prompts_text_stands_before_the_answer_if_it_is_asked_for() -> None:
    served = engine()
    prompt = served.prepare(chat("abc", echo=True))
    served.submit(prompt)
    outputs = []
    while served.unfinished:
        outputs += served.step()
    text = ByteTokenizer().decode(prompt.ids)
    assert "abc" in text
    assert "".join(output.text for output in outputs) == text + "abc"
    assert outputs[-1].usage.output == len("abc") + 1


def test_a_stop_string_is_not_found_in_the_prompt() -> None:
    served = engine()
    served.submit(served.prepare(chat("abc", echo=True, stop=("b",))))
    outputs = []
    while served.unfinished:
        outputs += served.step()
    assert outputs[-1].usage.output == 2


class PanicError(BaseException):
    """As a library in Rust raises one: no Exception."""


class Broken(ByteTokenizer):
    """Knows no token of its answers."""

    def __init__(self, error: BaseException) -> None:
        super().__init__()
        self.error = error

    def copy(self) -> Broken:
        return self

    def decode(self, ids: Sequence[int]) -> str:
        raise self.error


@pytest.mark.parametrize("error", [LookupError("no such token"), PanicError("index out of bounds")])
def test_what_cannot_be_decoded_is_refused_alone(error: BaseException) -> None:
    """Raised as anything else than an engine's error it would end the worker, and the next one that takes it over."""
    spec = EngineConfig("d", "fake", architecture="fake")
    served = LocalEngine(spec, load_fake_model(spec), Broken(error), clock=lambda: 0.0)
    request = chat("abc")
    for beginning in (
        replace(request, resumed=Resumed((97,), Usage(input=3, output=1), 7)),
        replace(request, sampling=replace(request.sampling, echo=True)),
    ):
        with pytest.raises(EngineError, match="can't be decoded"):
            served.submit(served.prepare(beginning))
        assert served.unfinished == 0
    served.submit(served.prepare(request))
    outputs = []
    while served.unfinished:
        outputs += served.step()
    (finished,) = [output.finished for output in outputs if output.finished]
    assert finished.error is not None
    assert finished.error.code == "text_failed"


def test_a_request_that_is_here_already_keeps_its_text() -> None:
    served = engine()
    prompt = served.prepare(chat("abcdef"))
    served.submit(prompt)
    served.step()
    with pytest.raises(InvalidRequestError, match="here already"):
        served.submit(prompt)
    text = ""
    while served.unfinished:
        text += "".join(output.text for output in served.step())
    assert text.endswith("bcdef")


def test_ends_that_only_the_tokenizer_knows_ban_nothing() -> None:
    """Tokenizers have tokens past their models' vocabularies; a logit of one would be looked for in vain."""
    spec = EngineConfig("d", "fake", architecture="fake")
    model = replace(load_fake_model(spec), vocab_size=200)
    served = LocalEngine(spec, model, ByteTokenizer(), clock=lambda: 0.0)
    assert min(ByteTokenizer().end_ids) > 200
    served.submit(Prompt(chat("", max_tokens=3, min_tokens=2), 3, ids=(65, 66)))
    (scheduler,) = served.schedulers
    plan = scheduler.plan()
    assert plan is not None
    assert all(token < 200 for row in plan.rows for token in row.banned)


def test_a_request_for_vectors_may_wait_too_long_as_well() -> None:
    now = [0.0]
    spec = EngineConfig("d", "fake", architecture="fake", max_rows=1, options={"kinds": ["embedding"]})
    served = LocalEngine(spec, load_fake_model(spec), ByteTokenizer(), clock=lambda: now[0])
    for name, inputs in (("runs", ("a", "b", "c")), ("waits", ("d",))):
        request = GenerationRequest(name, "t", "d", kind=Kind.EMBEDDING, inputs=inputs, queue_seconds=1.0)
        served.submit(served.prepare(request))
    ends = {}
    while served.unfinished:
        for output in served.step():
            if output.finished is not None:
                ends[output.request_id] = output.finished.error
        now[0] += 1.0
    assert ends["runs"] is None
    assert ends["waits"] is not None
    assert ends["waits"].code == "queue_timeout"
