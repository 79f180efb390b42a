"""Guided answers are what their guidance says, and the same alone, in a batch, preempted, drafted, resumed."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from typing import Any

import jsonschema
import pytest

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.core.scheduler import Scheduler
from inference.errors import InvalidRequestError
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.text.byte_tokenizer import END_OF_TURN, VOCABULARY, ByteTokenizer
from inference.types import (
    Finished,
    FinishReason,
    GenerationRequest,
    Guidance,
    GuidanceKind,
    Resumed,
    SamplingParams,
    Usage,
)
from tests.inference.sweeps import first
from tests.inference.tiny import save_tiny

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("one_checker")]

KIND = GuidanceKind
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "rank": {"type": "integer", "minimum": 1, "maximum": 40},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "rank", "tags"],
    "additionalProperties": False,
}
JSON = Guidance(KIND.JSON_SCHEMA, json.dumps(SCHEMA))
GUIDANCES = (
    JSON,
    Guidance(KIND.REGEX, "[ab]{3,9}(xyz)?"),
    Guidance(KIND.CHOICE, choices=("first", "second", "third one")),
    Guidance(KIND.LARK, 'start: (item ",")~1..4 item\nitem: /[0-9]{1,2}/'),
)


@pytest.fixture(scope="module", params=first(["c", "torch"]))
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = save_tiny(
        "llama", tmp_path_factory.mktemp("guidance"), vocab_size=VOCABULARY + 5, eos_token_id=END_OF_TURN
    )
    config = EngineConfig("test", str(folder), dtype="float32", kv_tokens=4096, options={"tier": request.param})
    return load_model(config, threads=1)


def engine_of(loaded: LoadedModel, **settings: Any) -> LocalEngine:
    config = EngineConfig("test", "-", **{"block_size": loaded.block_size, "max_rows": 8, **settings})
    return LocalEngine(config, loaded, ByteTokenizer(), secret=b"s", clock=lambda: 0.0)


def asked(name: str, guidance: Guidance | None, **sampling: Any) -> GenerationRequest:
    params = SamplingParams(**{"max_tokens": 120, "seed": 7, "guidance": guidance, **sampling})
    return GenerationRequest(name, "t", "t", messages=(Message("user", (f"say {name}",)),), sampling=params)


def run(engine: LocalEngine, *requests: GenerationRequest, **given: Any) -> dict[str, dict[str, Any]]:
    """What each request got."""
    got: dict[str, dict[str, Any]] = {}
    for request in requests:
        engine.submit(engine.prepare(request), **given)
        got[request.id] = {"texts": {}, "tokens": [], "logprobs": [], "finished": None}
    while engine.unfinished:
        for output in engine.step():
            each = got[output.request_id]
            each["texts"][output.index] = each["texts"].get(output.index, "") + output.text
            each["tokens"] += output.tokens
            each["logprobs"] += [(p.chosen.token, p.rank) for p in output.logprobs]
            if output.finished is not None:
                assert isinstance(output.finished, Finished)
                each["finished"] = replace(output.finished, queued_ms=0, prefill_ms=0, decode_ms=0, gap_ms=0)
        for scheduler in engine.schedulers:
            assert isinstance(scheduler, Scheduler)
            scheduler.check()
    return got


def mixed(seed: int, count: int = 6) -> list[GenerationRequest]:
    chance = random.Random(seed)
    made = []
    for number in range(count):
        maybe = lambda value, neutral: value if chance.random() < 0.3 else neutral
        made.append(
            asked(
                f"{seed}.{number}",
                chance.choice((*GUIDANCES, None)),
                seed=chance.getrandbits(64),
                temperature=chance.choice((0.0, 0.7, 1.5)),
                top_p=maybe(0.8, 1.0),
                top_k=maybe(5, 0),
                frequency_penalty=maybe(1.0, 0.0),
                repetition_penalty=maybe(1.3, 1.0),
                logit_bias=maybe(((97, 3.0), (34, -2.0)), ()),
                min_tokens=maybe(5, 0),
                logprobs=maybe(2, None),
                max_tokens=chance.choice((8, 120)),
            )
        )
    return made


def is_right(guidance: Guidance, text: str) -> bool:
    match guidance.kind:
        case KIND.JSON_SCHEMA:
            jsonschema.validate(json.loads(text), json.loads(guidance.source))
            return True
        case KIND.CHOICE:
            return text in guidance.choices
        case KIND.REGEX:
            import re

            return re.fullmatch(guidance.source, text) is not None
        case _:
            return 2 <= len(text.split(",")) <= 5


@pytest.mark.parametrize("seed", first(range(6)))
def test_guided_in_a_batch_is_as_alone_and_right(loaded: LoadedModel, seed: int) -> None:
    requests = mixed(seed)
    together = run(engine_of(loaded), *requests)
    for request in requests:
        assert run(engine_of(loaded), request)[request.id] == together[request.id]
        guidance, end = request.sampling.guidance, together[request.id]["finished"]
        assert end.error is None
        if guidance is not None and end.reason is FinishReason.STOP:
            assert is_right(guidance, together[request.id]["texts"][0])


def test_rows_without_guidance_are_as_if_no_other_had_any(loaded: LoadedModel) -> None:
    plain = [request for seed in range(6, 12) for request in mixed(seed) if request.sampling.guidance is None]
    beside = [asked(f"guided {number}", GUIDANCES[number % 4], seed=number) for number in range(4)]
    freely = [replace(request, sampling=replace(request.sampling, guidance=None)) for request in beside]
    with_guided, without = run(engine_of(loaded), *beside, *plain), run(engine_of(loaded), *freely, *plain)
    assert plain
    for request in plain:
        assert with_guided[request.id] == without[request.id]


@pytest.mark.parametrize("seed", first(range(12, 16)))
def test_guided_with_drafts_is_as_without(loaded: LoadedModel, seed: int) -> None:
    requests = mixed(seed, 4)
    wanted = run(engine_of(loaded, max_rows=2), *requests)
    assert run(engine_of(loaded, max_rows=2, speculation=4), *requests) == wanted


def test_guided_and_preempted_is_as_undisturbed(loaded: LoadedModel) -> None:
    long = Guidance(KIND.LARK, 'start: WORD (" " WORD)*\nWORD: /[a-z]{3,9}/')
    requests = [
        asked(f"p{number}", long, seed=number, temperature=1.2, max_tokens=70, frequency_penalty=0.5 * (number % 2))
        for number in range(4)
    ]
    wanted = run(engine_of(loaded), *requests)
    small = engine_of(replace(loaded, kv_blocks=12), max_context=176)
    assert run(small, *requests) == wanted
    assert small.schedulers[0].stats().preemptions


@pytest.mark.parametrize("seed", first(range(20, 23)))
def test_guided_in_steps_that_overlap_is_as_in_turn(
    loaded: LoadedModel, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = {"tier": "c" if loaded.details["tier"].startswith("c") else "torch", "overlap": True}
    overlapping = load_model(
        EngineConfig("test", loaded.details["folder"], dtype="float32", kv_tokens=4096, options=options), threads=1
    )
    assert overlapping.runner.overlaps
    requests = mixed(seed)
    assert run(engine_of(overlapping), *requests) == run(engine_of(loaded), *requests)


@pytest.mark.parametrize("cut", first([9, 1, 20]))
def test_another_engine_goes_on_within_the_guidance(loaded: LoadedModel, cut: int) -> None:
    request = asked("resumed", JSON, temperature=1.0)
    whole = run(engine_of(loaded), request)["resumed"]
    tokens = tuple(whole["tokens"][:cut])
    resumed = Resumed(tokens, Usage(input=12, output=cut), seed=7)
    rest = run(engine_of(loaded), replace(request, resumed=resumed))["resumed"]
    assert rest["tokens"] == whole["tokens"][cut:]
    assert whole["finished"].reason is FinishReason.STOP


def test_tokens_that_the_guidance_does_not_permit_cannot_be_resumed(loaded: LoadedModel) -> None:
    resumed = Resumed(tuple(b"not JSON"), Usage(input=12, output=8), seed=7)
    end = run(engine_of(loaded), replace(asked("r", JSON), resumed=resumed))["r"]["finished"]
    assert end.reason is FinishReason.ERROR
    assert (end.error.code, end.error.param) == ("guidance_failed", None)


@pytest.mark.parametrize("best_of", [None, 4])
def test_each_of_several_answers_is_guided(loaded: LoadedModel, best_of: int | None) -> None:
    got = run(engine_of(loaded), asked("n", JSON, n=3, best_of=best_of, temperature=1.3))["n"]
    assert len(got["texts"]) == 3
    assert len(set(got["texts"].values())) > 1
    for text in got["texts"].values():
        assert is_right(JSON, text)


def test_stop_strings_and_length_cut_a_guided_answer(loaded: LoadedModel) -> None:
    letters = Guidance(KIND.REGEX, "[a-c]{40}")
    whole = run(engine_of(loaded), asked("w", letters))["w"]
    assert len(whole["texts"][0]) == 40
    assert whole["finished"].reason is FinishReason.STOP
    stop = whole["texts"][0][10:13]
    stopped = run(engine_of(loaded), asked("w", letters, stop=(stop,)))["w"]
    assert stopped["texts"][0] == whole["texts"][0].partition(stop)[0]
    assert stopped["finished"].stop == stop
    cut = run(engine_of(loaded), asked("w", letters, max_tokens=7))["w"]
    assert cut["texts"][0] == whole["texts"][0][:7]
    assert cut["finished"].reason is FinishReason.LENGTH


def test_the_end_waits_for_min_tokens_where_it_can(loaded: LoadedModel) -> None:
    open_end, closed_end = Guidance(KIND.REGEX, "[a-c]+"), Guidance(KIND.CHOICE, choices=("abc",))
    bias = ((END_OF_TURN, 100.0),)
    early = run(engine_of(loaded), asked("m", open_end, logit_bias=bias))["m"]
    assert early["finished"].usage.output == 2
    late = run(engine_of(loaded), asked("m", open_end, logit_bias=bias, min_tokens=10))["m"]
    assert late["finished"].usage.output == 11
    forced = run(engine_of(loaded), asked("m", closed_end, min_tokens=10))["m"]
    assert forced["texts"][0] == "abc"
    assert forced["finished"].reason is FinishReason.STOP


def test_allowed_tokens_and_guidance_hold_together(loaded: LoadedModel) -> None:
    letters = Guidance(KIND.REGEX, "[a-c]{4}")
    both = run(engine_of(loaded), asked("b", letters, allowed_token_ids=(97, 98, END_OF_TURN), temperature=2.0))["b"]
    assert set(both["texts"][0]) <= {"a", "b"}
    neither = run(engine_of(loaded), asked("b", letters, allowed_token_ids=(120, END_OF_TURN)))["b"]["finished"]
    assert (neither.error.code, neither.error.param) == ("no_token_left", "allowed_token_ids")
    assert "'allowed_token_ids' and 'guidance'" in neither.error.message


def test_a_pattern_that_cannot_be_followed_is_the_requests_fault(loaded: LoadedModel) -> None:
    """It is compiled, and beyond the limits of a step some bytes later."""
    nested = Guidance(KIND.REGEX, "((a{1,100}){1,100}){1,100}", param="structured_outputs.regex")
    on = {"logit_bias": ((97, 100.0), (END_OF_TURN, -100.0)), "max_tokens": 400}
    end = run(engine_of(loaded, max_context=512), asked("x", nested, temperature=0.0, **on))["x"]["finished"]
    assert end.reason is FinishReason.ERROR
    assert (end.error.code, end.error.param) == ("guidance_failed", "structured_outputs.regex")
    assert "make it simpler" in end.error.message


def test_ignore_eos_is_refused_with_guidance(loaded: LoadedModel) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        engine_of(loaded).prepare(asked("i", JSON, ignore_eos=True))
    assert refused.value.param == "ignore_eos"


def test_an_allowance_pauses_a_guided_answer(loaded: LoadedModel) -> None:
    wanted = run(engine_of(loaded), asked("a", JSON))["a"]["texts"][0]
    engine = engine_of(loaded)
    engine.submit(engine.prepare(asked("a", JSON)), 5, False)
    text, given = "", 5
    while engine.unfinished:
        for output in engine.step():
            text += output.text
            if output.usage.output >= given:
                given += 3
                engine.extend("a", given, False)
    assert text == wanted
