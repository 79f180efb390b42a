"""The one module that knows llguidance, which is imported when the first guided request comes."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from inference.core.grammar import GrammarError, Matcher
from inference.types import Guidance, GuidanceKind

if TYPE_CHECKING:
    from llguidance import LLMatcher
    from llguidance._lib import JsonCompileOptions

# A little, so that a model that likes white space can't go on with it for ever: a space, or a new line with its indent.
WHITESPACE = r" ?|\n {0,40}|\n\t{0,10}"
_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 50_000,  # 3 to 4 ms; what the tests and benchmarks have takes less than a tenth
    "step_max_items": 20_000,  # 1 ms
    "max_lexer_states": 20_000,  # of 1 to 2 kB each
    "max_grammar_size": 200_000,
    "verbose_errors": False,
}
_LONGEST_FORCED = 4096  # bytes that can't be otherwise: they are made tokens anew in each step, 2000 in some 0.5 ms
_TRIED_TOKENS = 4  # of an answer, to find what is too complex before the answer begins
_LONGEST_PROBLEM = 300
_WORN = "lexer error"  # how the library begins to tell of the lexer's limits, which all copies of a matcher share


def options_of(*, strict: bool, whitespace: str | None = None) -> JsonCompileOptions:
    """Return how a schema is compiled, with that white space: where it isn't `strict` without what can't be held."""
    options: JsonCompileOptions = {"lenient": not strict, "coerce_one_of": not strict}
    if pattern := WHITESPACE if whitespace is None else whitespace:
        options["whitespace_pattern"] = pattern
    else:
        options["whitespace_flexible"] = False
    return options


def text_of(guidance: Guidance) -> str:
    """Return what llguidance compiles for `guidance`; raise ValueError for a schema that is no JSON."""
    from llguidance import LLMatcher

    match guidance.kind:
        case GuidanceKind.JSON_SCHEMA | GuidanceKind.JSON_OBJECT:
            schema = '{"type":"object"}' if guidance.kind is GuidanceKind.JSON_OBJECT else guidance.source
            # As overrides, since a schema may bring options of its own, such as to ignore what can't be enforced.
            options = options_of(strict=guidance.strict, whitespace=guidance.whitespace)
            return LLMatcher.grammar_from_json_schema(schema, overrides=options)
        case GuidanceKind.REGEX:
            return LLMatcher.grammar_from_regex(guidance.source)
        case GuidanceKind.CHOICE:
            # One terminal: as alternatives of a rule they would be items of the parser, all looked at in each step.
            texts = (
                json.dumps(choice) for choice in guidance.choices
            )  # in ASCII: Lark reads no other control characters
            return LLMatcher.grammar_from_lark(f"start: CHOICE\nCHOICE: {' | '.join(texts)}")
        case GuidanceKind.LARK:
            return LLMatcher.grammar_from_lark(guidance.source)


class Vocabulary:
    """A tokenizer as llguidance has it: `serialized` in the format of the tokenizers library.

    Its tokens are those below `size` and, if the tokenizer has more, those too; `ends` end an answer. Raise ValueError
    for a tokenizer that llguidance doesn't take.
    """

    def __init__(self, serialized: str, size: int, ends: frozenset[int]) -> None:
        from llguidance import LLTokenizer

        known = json.loads(serialized)
        model = known.get("model", {}).get("vocab", {})
        ids = [*(model.values() if isinstance(model, dict) else range(len(model)))]
        ids += [token["id"] for token in known.get("added_tokens", ())]
        with _raising(ValueError):
            self._tokenizer = LLTokenizer(serialized, n_vocab=max(size, 1 + max(ids)), eos_token=sorted(ends))

    def compile(self, text: str) -> CompiledGrammar:
        """Return the grammar `text`; raise ValueError with the reason why it can't be compiled, or is too complex."""
        with _raising(ValueError):
            return CompiledGrammar(partial(self._compiled, text))

    def _compiled(self, text: str) -> LLMatcher:
        from llguidance import LLMatcher, LLParserLimits

        matcher = LLMatcher(self._tokenizer, text, log_level=0, limits=LLParserLimits(**_LIMITS))
        _require(matcher)
        tried = matcher.deep_copy()
        for _ in range(_TRIED_TOKENS):
            mask = tried.compute_bitmask()
            _require(tried)
            if tried.is_stopped():
                break
            if len(tried.compute_ff_bytes()) > _LONGEST_FORCED:
                raise ValueError(f"it is too large: more than {_LONGEST_FORCED} bytes in a row are given")
            forced = tried.compute_ff_tokens()
            tried.consume_token(forced[0] if forced else _first(mask))
            _require(tried)
        return matcher


class CompiledGrammar:
    """A grammar for one vocabulary. Its matchers share what they learn of it, and a bound of the library's that one of
    them meets stands for all of them: it is `compiled` anew then, for that one and those that begin later.
    """

    is_thought = False

    def __init__(self, compiled: Callable[[], LLMatcher]) -> None:
        self._compiled = compiled
        self._lock = threading.Lock()
        self.shared = compiled()
        self.not_enforced = keywords_in(self.shared.get_grammar_warnings())

    def begin(self) -> Matcher:
        return _LibraryMatcher(self)

    def renewed(self, worn: LLMatcher) -> LLMatcher:
        """Return what matchers share now, instead of what is `worn`."""
        with self._lock:
            if self.shared is worn:
                self.shared = self._compiled()
            return self.shared


class _LibraryMatcher:
    def __init__(self, grammar: CompiledGrammar) -> None:
        self._grammar = grammar
        self._shared = grammar.shared
        self._matcher = self._shared.deep_copy()
        self._tokens: list[int] = []
        self._is_renewed = False

    def mask(self) -> bytes:
        with _raising(GrammarError):
            mask = self._matcher.compute_bitmask()
            if self._renew():
                mask = self._matcher.compute_bitmask()
            _require(self._matcher)  # else the mask may permit the end
            return mask

    def accept(self, token: int) -> None:
        with _raising(GrammarError):
            self._tokens.append(token)
            self._matcher.consume_token(token)
            self._renew()
            _require(self._matcher)

    def _renew(self) -> bool:
        """Where what is shared is worn, go on with a new one and return True, but once: then this answer wears it."""
        if self._is_renewed or not self._matcher.is_error() or _WORN not in self._matcher.get_error():
            return False
        self._is_renewed = True
        self._shared = self._grammar.renewed(self._shared)
        self._matcher = self._shared.deep_copy()
        for each in self._tokens:  # each is a step with its own limits
            self._matcher.consume_token(each)
        return True


def keywords_in(problems: Iterable[str]) -> tuple[str, ...]:
    """Return the keywords of schemas that llguidance's `problems` are about."""
    found: dict[str, None] = {}
    for problem in problems:
        if keys := re.search(r"Unimplemented keys: \[(.*)\]", problem):
            found |= dict.fromkeys(re.findall(r'"([^"]+)"', keys.group(1)))
        elif problem.startswith("Unknown format"):
            found["format"] = None
        elif problem.startswith("oneOf"):
            found["oneOf"] = None
    return tuple(found)


def _require(matcher: Any) -> None:
    if matcher.is_error():
        raise ValueError(worded(matcher.get_error()))


@contextmanager
def _raising(kind: type[Exception]) -> Iterator[None]:
    """Raise whatever the library raises as a `kind`: its panics are no Exceptions, and would end the thread. Too little
    memory stays what it is, since it says nothing of a grammar.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, MemoryError):
        raise
    except BaseException as error:  # noqa: BLE001  see above
        raise kind(worded(str(error))) from None


def _first(mask: bytes) -> int:
    place = next(i for i, byte in enumerate(mask) if byte)
    return place * 8 + (mask[place] & -mask[place]).bit_length() - 1


def worded(problem: str) -> str:
    """Return the problem in one short line."""
    line = " ".join(problem.replace("<non-verbose/>", "").split())
    line = re.sub(r"^at \d+\(\d+\): (failed to compile JSON schema: )?", "", line)  # a place in a grammar of ours
    line = re.sub(r" \d+ \| .*$", "", line)  # the line of the grammar, with a mark below it
    line = line.partition(". Enable 'coerce_one_of'")[0]
    line = line.replace("NoExtensionBias", "no text ever ends it")  # a rule or reference that leads to itself alone
    return line if len(line) <= _LONGEST_PROBLEM else line[: _LONGEST_PROBLEM - 3] + "..."
