"""What a grammar permits, what is refused and by which name, and what bounds compiling."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

from inference.core.grammar import Grammar, GrammarError
from inference.errors import InvalidRequestError, OverloadedError
from inference.guidance import checking, library
from inference.guidance import grammars as room
from inference.guidance.checking import Checker
from inference.guidance.grammars import Grammars
from inference.guidance.schemas import loosened_guidance
from inference.text.byte_tokenizer import END_OF_TURN, VOCABULARY, ByteTokenizer
from inference.types import Guidance, GuidanceKind

KIND = GuidanceKind


def schema(value: object, **changes: Any) -> Guidance:
    return Guidance(KIND.JSON_SCHEMA, json.dumps(value), **changes)


@pytest.fixture(scope="module")
def made() -> Grammars:
    return Grammars(ByteTokenizer().serialized, vocabulary=VOCABULARY, ends=frozenset({END_OF_TURN}))


def is_whole(grammar: Grammar, text: str) -> bool:
    """Whether `text` is permitted and may be the whole answer."""
    matcher = grammar.begin()
    for byte in text.encode():
        mask = matcher.mask()
        if not mask[byte // 8] >> byte % 8 & 1:
            return False
        matcher.accept(byte)
    mask = matcher.mask()
    return bool(mask[END_OF_TURN // 8] >> END_OF_TURN % 8 & 1)


@pytest.mark.parametrize(
    ("guidance", "right", "wrong"),
    [
        (schema({"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}), '{"a": 1}', "{}"),
        (Guidance(KIND.JSON_OBJECT), '{"any": [1, null]}', "[1]"),
        (Guidance(KIND.REGEX, r"[a-z]{2}\d"), "ab1", "ab"),
        (Guidance(KIND.CHOICE, choices=("yes", 'no "way" \\ \x7f😀')), 'no "way" \\ \x7f😀', "no"),
        (Guidance(KIND.LARK, 'start: "<" word ">"\nword: /[a-z]+/'), "<word>", "<>"),
        (schema({"$defs": {"n": {"type": "null"}}, "$ref": "#/$defs/n"}), "null", "1"),
    ],
)
def test_an_answer_is_what_its_guidance_says(made: Grammars, guidance: Guidance, right: str, wrong: str) -> None:
    grammar = made.compiled(guidance)
    assert is_whole(grammar, right)
    assert not is_whole(grammar, wrong)


@pytest.mark.parametrize(
    ("value", "keywords", "right"),
    [
        ({"type": "string", "format": "zip-code"}, ("format",), '"x"'),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True}, ("uniqueItems",), "[1, 1]"),
        ({"oneOf": [{"type": "string"}, {"type": "string", "maxLength": 2}]}, ("oneOf",), '"x"'),
        ({"type": "integer", "not": {"const": 1}, "if": {}, "then": {}}, ("if", "then", "not"), "1"),
        ({"type": "string", "pattern": "^(?!x)[a-z]+$"}, ("pattern",), '"x"'),
        ({"properties": {"pattern": {"pattern": "(?=a)", "format": "zip"}}}, ("pattern", "format"), '{"pattern": "x"}'),
        ({"properties": {"enum": {"pattern": "(?=a)"}}}, ("pattern",), '{"enum": "x"}'),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, (), '{"a": 1}'),
    ],
)
def test_of_a_schema_that_is_not_strict_what_cannot_be_held_is_left_out_and_named(
    made: Grammars, value: dict[str, Any], keywords: tuple[str, ...], right: str
) -> None:
    at = "text.format.schema"
    guidance = loosened_guidance(schema(value, strict=False, schema_at=at))
    grammar = made.compiled(guidance)
    assert sorted(guidance.not_enforced(grammar.not_enforced)) == sorted(f"{at}.{keyword}" for keyword in keywords)
    assert is_whole(grammar, right)
    assert not is_whole(grammar, "nul")  # it is JSON all the same
    strict = schema(value)
    assert loosened_guidance(strict) == strict
    if keywords:
        with pytest.raises(InvalidRequestError):
            made.compiled(strict)
    else:
        assert not is_whole(grammar, '{"a": "x"}')


def test_values_that_look_like_keywords_stay(made: Grammars) -> None:
    value = {"const": {"pattern": "(?=a)"}}
    assert is_whole(made.compiled(loosened_guidance(schema(value, strict=False))), json.dumps(value["const"]))


def test_behind_a_whole_answer_only_its_end_is_permitted(made: Grammars) -> None:
    matcher = made.compiled(Guidance(KIND.CHOICE, choices=("a", "b"))).begin()
    matcher.accept(ord("a"))
    mask = int.from_bytes(matcher.mask(), "little")
    assert mask == 1 << END_OF_TURN
    matcher.accept(END_OF_TURN)


def test_a_token_that_is_not_permitted_ends_the_matcher(made: Grammars) -> None:
    matcher = made.compiled(Guidance(KIND.REGEX, "a+")).begin()
    with pytest.raises(GrammarError):
        matcher.accept(ord("b"))
    with pytest.raises(GrammarError):
        matcher.mask()


def test_white_space_between_tokens_of_json_is_bounded(made: Grammars) -> None:
    value = {"a": [1, {"b": "x"}]}
    texts = [json.dumps(value), json.dumps(value, indent=2), json.dumps(value, indent=4)]
    compact = json.dumps(value, separators=(",", ":"))
    usual, none = Guidance(KIND.JSON_OBJECT), Guidance(KIND.JSON_OBJECT, whitespace="")
    own = Guidance(KIND.JSON_OBJECT, whitespace="[ ]{0,3}")
    assert all(is_whole(made.compiled(usual), text) for text in [*texts, compact])
    assert not is_whole(made.compiled(usual), '{  "a": 1}')
    assert not is_whole(made.compiled(usual), '{\n\n"a": 1}')
    assert not is_whole(made.compiled(usual), '{"a": 1}\n')
    assert is_whole(made.compiled(none), compact)
    assert not is_whole(made.compiled(none), texts[0])
    assert is_whole(made.compiled(own), '{   "a": 1}')
    assert not is_whole(made.compiled(own), '{    "a": 1}')
    # However long a model goes on with it: at no place more than 41 characters are permitted.
    matcher = made.compiled(usual).begin()
    matcher.accept(ord("{"))
    longest = 0
    for byte in [ord("\n"), *[ord(" ")] * 60]:
        mask = matcher.mask()
        if not mask[byte // 8] >> byte % 8 & 1:
            break
        matcher.accept(byte)
        longest += 1
    assert longest == 41


@pytest.mark.parametrize(
    ("guidance", "code", "names"),
    [
        (schema({"not": {"type": "string"}}), "guidance_unsupported", "'not'"),
        (schema({"type": "array", "uniqueItems": True}), "guidance_unsupported", "'uniqueItems'"),
        (schema({"type": "array", "contains": {}, "minContains": 2}), "guidance_unsupported", "'contains'"),
        (schema({"type": "object", "propertyNames": {"pattern": "a"}}), "guidance_unsupported", "'propertyNames'"),
        (schema({"type": "object", "dependentRequired": {"a": ["b"]}}), "guidance_unsupported", "'dependentRequired'"),
        (schema({"if": {}, "then": {}}), "guidance_unsupported", "'if', 'then'"),
        (schema({"type": "object", "unevaluatedProperties": False}), "guidance_unsupported", "'unevaluatedProperties'"),
        (schema({"not": {}, "x-guidance": {"lenient": True}}), "guidance_unsupported", "'not'"),
        (schema({"type": "string", "format": "iri"}), "guidance_unsupported", "iri"),
        (schema({"$ref": "https://example.com/schema"}), "guidance_unsupported", "$ref"),
        (schema({"oneOf": [{"type": "integer"}, {"type": "number"}]}), "guidance_unsupported", "oneOf"),
        (schema({"type": "string", "pattern": "(?=a)b"}), "guidance_unsupported", "look-around"),
        (Guidance(KIND.REGEX, r"(a)\1"), "guidance_unsupported", "backreferences"),
        (Guidance(KIND.REGEX, "(a"), "guidance_invalid", "unclosed group"),
        (Guidance(KIND.JSON_SCHEMA, '{"type":'), "guidance_invalid", "EOF"),
        (Guidance(KIND.JSON_SCHEMA, '{"type": "strnig"}'), "guidance_invalid", "strnig"),
        (Guidance(KIND.LARK, "start: missing"), "guidance_invalid", "missing"),
        (Guidance(KIND.LARK, "start: start"), "guidance_invalid", "no text ever ends it"),
        (schema({"$ref": "#"}), "guidance_invalid", "no text ever ends it"),
        (Guidance(KIND.LARK, ""), "guidance_invalid", "empty"),
        (Guidance(KIND.CHOICE), "guidance_invalid", "choices"),
        (Guidance(KIND.CHOICE, choices=("a", "")), "guidance_invalid", "choices"),
        (Guidance(KIND.CHOICE, choices=("a", "a")), "guidance_invalid", "same"),
    ],
)
def test_what_cannot_be_enforced_is_refused_by_name(made: Grammars, guidance: Guidance, code: str, names: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        made.compiled(guidance)
    assert refused.value.code == code
    assert names in refused.value.message
    assert refused.value.param == guidance.param
    assert "\n" not in refused.value.message


def optional(count: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(count)}}


def nested(count: int) -> str:
    return '{"properties": {"a":' * count + "{}" + "}}" * count


@pytest.mark.parametrize(
    "guidance",
    [
        schema({"enum": ["x" * 100 + str(i) for i in range(5000)]}),
        Guidance(KIND.JSON_SCHEMA, nested(5000)),
        schema(optional(3000)),
        schema({"allOf": [{"anyOf": [optional(1), {"required": [f"q{i}"]}]} for i in range(16)]}),
        Guidance(KIND.REGEX, "|".join("[ab]*" + "x" * 8 for _ in range(30_000))),
        Guidance(KIND.CHOICE, choices=tuple(f"choice number {i}" for i in range(10_000))),
        Guidance(KIND.LARK, "start: " + " ".join('("a"|"b")?' for _ in range(30_000))),
        Guidance(KIND.LARK, f'start: "{"a" * 100_000}"'),  # each step took 45 ms, with which others' tokens waited
        Guidance(KIND.CHOICE, choices=("x" + "a" * 5000, "y" + "a" * 5000)),
    ],
    ids=["enum", "nested", "optional", "all of any", "regex", "choices", "lark", "given", "given behind a choice"],
)
def test_what_is_too_large_is_refused(made: Grammars, guidance: Guidance) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        made.compiled(guidance)
    assert refused.value.code == "guidance_too_complex"


def test_what_takes_too_long_is_ended_and_remembered(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = count(monkeypatch, Checker, "problem")
    endless = schema({"type": "integer", "multipleOf": 99_999_989})  # a regular expression with as many states
    for _ in range(2):
        with pytest.raises(InvalidRequestError) as refused:
            made.compiled(endless)
        assert refused.value.code == "guidance_too_complex"
    with pytest.raises(InvalidRequestError):
        made.known(endless)
    assert len(asked) == 1
    assert is_whole(made.compiled(Guidance(KIND.REGEX, "behind it")), "behind it")  # in a new process


@pytest.mark.parametrize("stops", [signal.SIGSTOP, signal.SIGKILL], ids=["silent", "gone"])
def test_a_busy_moment_refuses_no_grammar_for_good(
    made: Grammars, monkeypatch: pytest.MonkeyPatch, stops: signal.Signals
) -> None:
    """A process that was stopped while it checked a small schema had the schema called too complex ever after."""
    running, guidance = Checker._running, schema({"type": "object", "title": stops.name})

    def stopped(checker: Checker) -> subprocess.Popen[bytes]:
        process = running(checker)
        process.send_signal(stops)
        return process

    made.compiled(Guidance(KIND.REGEX, "it runs"))
    with monkeypatch.context() as patch, pytest.raises(OverloadedError):
        patch.setattr(Checker, "_running", stopped)
        if stops is signal.SIGSTOP:
            patch.setattr(checking, "WALL_SECONDS", 0.01)
        made.compiled(guidance)
    assert made.known(guidance) is None
    assert is_whole(made.compiled(guidance), "{}")


def test_a_grammar_is_checked_beside_one_that_takes_long(made: Grammars) -> None:
    """One tenant's endless schemas kept everybody else's new ones waiting, and each cost them a new process."""
    endless, small = schema({"type": "integer", "multipleOf": 99_999_959}), Guidance(KIND.REGEX, "beside it")
    made.compiled(Guidance(KIND.REGEX, "it runs"))
    assert made._loaded is not None
    checker = made._loaded[1]
    process = checker._process
    with pytest.raises(InvalidRequestError, match="takes more than"):
        made.compiled(endless)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert checker._calls is not None
        socket.send_fds(checker._calls, [b"."], [theirs.fileno()])  # a check that goes on: its grammar doesn't come
        assert is_whole(made.compiled(small), "beside it")
    assert checker._process is process


@pytest.mark.parametrize(
    "pattern", ["(a|b|ab)*c" * 50, "(.*a.{20}){3}", "(((a{1,100}){1,100}){1,100}){1,100}", "(a?){99}a{99}"]
)
def test_an_exponential_regex_has_bounded_steps(made: Grammars, pattern: str) -> None:
    """Those that compile, since states are made as they are needed, end at a step's limits at the latest."""
    matcher = made.compiled(Guidance(KIND.REGEX, pattern)).begin()
    with suppress(GrammarError):
        for _ in range(60):
            mask = int.from_bytes(matcher.mask(), "little")
            matcher.accept(ord("a") if mask >> ord("a") & 1 else END_OF_TURN)


def steps(grammar: Grammar, seed: int) -> int:
    """Return how many tokens of an answer of a's and b's the grammar follows, 300 at most."""
    matcher, drawn = grammar.begin(), random.Random(seed)
    for number in range(300):
        try:
            mask = int.from_bytes(matcher.mask(), "little")
            matcher.accept(drawn.choice([token for token in b"ab" if mask >> token & 1]))
        except GrammarError:
            return number
    return 300


def test_a_grammar_is_worn_out_for_nobody(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library bounds what all answers together learn of a grammar: from some answer on it failed for everybody."""
    monkeypatch.setitem(library._LIMITS, "max_lexer_states", 500)
    compiled = count(monkeypatch, library.Vocabulary, "_compiled")
    grammar = made.compiled(Guidance(KIND.REGEX, "[ab]*a[ab]{8}c"))
    assert [steps(grammar, seed) for seed in range(20)] == [300] * 20
    assert 1 < len(compiled) < 20


def test_an_answer_beyond_the_limits_leaves_its_grammar_to_others(made: Grammars) -> None:
    """Behind one such step no answer of anybody's began any more."""
    grammar = made.compiled(Guidance(KIND.REGEX, "((a{1,100}){1,100}){1,100}"))
    first, *later = (steps(grammar, 0) for _ in range(3))
    assert 0 < first < 300
    assert later == [first, first]


def count(monkeypatch: pytest.MonkeyPatch, of: Any, name: str) -> list[Any]:
    calls: list[Any] = []
    inner: Callable[..., Any] = getattr(of, name)
    monkeypatch.setattr(of, name, lambda *given: (calls.append(given), inner(*given))[1])
    return calls


def test_a_grammar_is_compiled_once_and_the_oldest_are_dropped(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "MOST_KEPT", 3)
    compiled = count(monkeypatch, library.Vocabulary, "compile")
    guidances = [Guidance(KIND.REGEX, f"[a-z]{{{n}}}", param=f"field {n}") for n in range(1, 5)]
    for guidance in guidances[:3]:
        made.compiled(guidance)
    made.compiled(Guidance(KIND.REGEX, "[a-z]{1}", param="another name for it"))
    assert len(compiled) == 3
    made.compiled(guidances[3])
    assert made.known(guidances[0]) is not None
    assert made.known(guidances[1]) is None
    assert len(compiled) == 4


def test_large_grammars_are_kept_as_far_as_their_characters_go(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixty-four of the largest took four gigabytes of a worker."""
    monkeypatch.setattr(room, "MOST_CHARACTERS", 250)
    guidances = [Guidance(KIND.CHOICE, choices=("a" * 50, f"{n}" * 50)) for n in range(3)]
    for guidance in guidances:
        made.compiled(guidance)
    assert [made.known(guidance) is not None for guidance in guidances] == [False, True, True]


def test_many_threads_compile_a_grammar_once(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = count(monkeypatch, library.Vocabulary, "compile")
    guidance = Guidance(KIND.REGEX, "threads")
    threads = [threading.Thread(target=made.compiled, args=(guidance,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(compiled) == 1


@pytest.mark.parametrize(
    ("serialized", "ends"),
    [(None, frozenset({1})), ("{}", frozenset({1})), (ByteTokenizer().serialized(), frozenset())],
    ids=["no form", "another form", "no end"],
)
def test_a_model_that_cannot_be_guided_says_so(serialized: str | None, ends: frozenset[int]) -> None:
    made = Grammars(lambda: serialized, vocabulary=VOCABULARY, ends=ends)
    with pytest.raises(InvalidRequestError) as refused:
        made.compiled(Guidance(KIND.JSON_OBJECT, param="response_format"))
    assert refused.value.code == "guidance_unavailable"
    assert refused.value.param == "response_format"


def test_tokens_beyond_the_tokenizer_are_never_permitted() -> None:
    made = Grammars(ByteTokenizer().serialized, vocabulary=300, ends=frozenset({END_OF_TURN}))
    mask = made.compiled(Guidance(KIND.REGEX, "(?s:.)*")).begin().mask()
    assert len(mask) >= 300 / 8
    assert int.from_bytes(mask, "little") >> VOCABULARY == 0


class Panic(BaseException):
    """As the library's panics reach Python."""


def test_a_panic_of_the_library_is_one_requests_error(made: Grammars, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: Any) -> None:
        raise Panic("index out of bounds")

    monkeypatch.setattr(library.Vocabulary, "_compiled", panic)
    with pytest.raises(InvalidRequestError, match="index out of bounds"):
        made.compiled(Guidance(KIND.REGEX, "a panic while it is compiled"))
    parts = {
        "deep_copy": lambda self: self,
        "get_grammar_warnings": lambda *_: [],
        "compute_bitmask": panic,
        "consume_token": panic,
    }
    matcher = library.CompiledGrammar(type("Broken", (), parts)).begin()
    with pytest.raises(GrammarError, match="index out of bounds"):
        matcher.mask()
    with pytest.raises(GrammarError, match="index out of bounds"):
        matcher.accept(1)


def test_the_checking_process_ends_with_the_one_that_needs_it() -> None:
    code = """
import os
from inference.guidance.checking import Checker
from inference.text.byte_tokenizer import ByteTokenizer
checker = Checker(ByteTokenizer().serialized(), 258, frozenset({256}))
assert checker.problem('start: "a"') is None
print(checker._process.pid, flush=True)
input()
os._exit(9)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    checking = os.pidfd_open(int(parent.stdout.readline()))
    try:
        parent.communicate("\n")
        assert select.select([checking], [], [], 30)[0]
    finally:
        os.close(checking)


def test_a_checking_process_that_was_killed_is_started_again() -> None:
    checker = Checker(ByteTokenizer().serialized(), VOCABULARY, frozenset({END_OF_TURN}))
    assert checker.problem('start: "a"') is None
    process = checker._process
    assert process is not None
    process.kill()
    process.wait()
    assert checker.problem('start: "b"') is None
    assert checker._process is not process


def test_without_the_library_guidance_is_refused_and_nothing_else_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    made = Grammars(ByteTokenizer().serialized, vocabulary=VOCABULARY, ends=frozenset({END_OF_TURN}))
    with pytest.raises(InvalidRequestError, match="llguidance") as refused:
        made.compiled(Guidance(KIND.JSON_OBJECT))
    assert refused.value.code == "guidance_unavailable"
