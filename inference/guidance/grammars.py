"""The grammars of one deployment: compiled once, and kept for the requests that bring the same guidance."""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from inference.core.grammar import Grammar
from inference.errors import InvalidRequestError
from inference.guidance import library
from inference.guidance.checking import TOO_LONG, Checker
from inference.types import Guidance, GuidanceKind
from inference.validation import check_guidance

MOST_KEPT = 64
MOST_CHARACTERS = 1_048_576  # of all that are kept: compiled, each may take some 300 bytes

_WHAT = {
    GuidanceKind.JSON_SCHEMA: "the schema",
    GuidanceKind.JSON_OBJECT: "the schema",
    GuidanceKind.REGEX: "the regular expression",
    GuidanceKind.CHOICE: "the choices",
    GuidanceKind.LARK: "the grammar",
}
_UNSUPPORTED = re.compile(r"not supported|unsupported|unknown format|failed to generate regex", re.IGNORECASE)
_COMPLEX = re.compile(r"too (big|large|complex|many)|limit exceeded|max is \d+", re.IGNORECASE)


class _Refusal(NamedTuple):
    code: str
    message: str

    def error(self, guidance: Guidance) -> InvalidRequestError:
        return InvalidRequestError(f"'{guidance.param}': {self.message}", code=self.code, param=guidance.param)


class Grammars:
    """A deployment's grammars. `serialized` returns the tokenizer in the format of the tokenizers library, None if it
    has none.

    The model has `vocabulary` tokens, of which `ends` end an answer. The guidances that were used last are kept, those
    that were refused too: `MOST_KEPT`, and `MOST_CHARACTERS` of them. For any threads: equal guidances are compiled
    once, others beside each other.
    """

    def __init__(self, serialized: Callable[[], str | None], *, vocabulary: int, ends: frozenset[int]) -> None:
        self._serialized = serialized
        self._size = vocabulary
        self._ends = ends
        self._loaded: tuple[library.Vocabulary, Checker] | None = None
        self._loading = threading.Lock()
        self._kept: OrderedDict[Guidance, Grammar | _Refusal] = OrderedDict()
        self._characters = 0  # of those
        self._lock = threading.Lock()
        self._compiling: dict[Guidance, threading.Lock] = {}  # those that a thread compiles

    def known(self, guidance: Guidance) -> Grammar | None:
        """Return the grammar if it is kept; raise `InvalidRequestError` if it is known that it can't be enforced."""
        with self._lock:
            found = self._kept.get(guidance)
            if found is None:
                return None
            self._kept.move_to_end(guidance)
        if isinstance(found, _Refusal):
            raise found.error(guidance)
        return found

    def compiled(self, guidance: Guidance) -> Grammar:
        """Return the grammar, compiled if need be, which may take seconds.

        Raise `InvalidRequestError`: ``guidance_invalid`` for what can't be read, ``guidance_unsupported`` for what
        can't be enforced, ``guidance_too_complex`` for what takes too long, ``guidance_unavailable`` for all when this
        model's tokenizer can't be guided. Raise `OverloadedError`, which nothing is kept of, when it can't be told now.
        """
        check_guidance(guidance)
        with self._lock:
            compiling = self._compiling.setdefault(guidance, threading.Lock())
        with compiling:
            found = self.known(guidance)
            if found is not None:
                return found
            try:
                outcome = self._compile(guidance)
                self._keep(guidance, outcome)
            finally:
                with self._lock:
                    self._compiling.pop(guidance, None)
        if isinstance(outcome, _Refusal):
            raise outcome.error(guidance)
        return outcome

    def _keep(self, guidance: Guidance, outcome: Grammar | _Refusal) -> None:
        with self._lock:
            if guidance not in self._kept:
                self._characters += guidance.characters
            self._kept[guidance] = outcome
            while len(self._kept) > MOST_KEPT or self._characters > MOST_CHARACTERS:
                oldest, _ = self._kept.popitem(last=False)
                self._characters -= oldest.characters

    def _compile(self, guidance: Guidance) -> Grammar | _Refusal:
        try:
            with self._loading:
                vocabulary, checker = self._loaded = self._loaded or self._load()
        except (ValueError, ImportError) as error:
            message = f"this model's answers can't be guided: {library.worded(str(error))}"
            return _Refusal("guidance_unavailable", message)
        try:
            text = library.text_of(guidance)
            if (problem := checker.problem(text)) is None:
                return vocabulary.compile(text)
        except ValueError as error:
            problem = str(error)
        return _refused(guidance.kind, problem)

    def _load(self) -> tuple[library.Vocabulary, Checker]:
        serialized = self._serialized()
        if serialized is None:
            raise ValueError("its tokenizer has no form that the tokenizers library reads")
        if not self._ends:
            raise ValueError("no token ends them")
        vocabulary = library.Vocabulary(serialized, self._size, self._ends)
        return vocabulary, Checker(serialized, self._size, self._ends)


def _refused(kind: GuidanceKind, problem: str) -> _Refusal:
    """Return the refusal for a problem in llguidance's words."""
    what, text = _WHAT[kind], library.worded(problem)
    if problem == TOO_LONG or _COMPLEX.search(text):
        return _Refusal("guidance_too_complex", f"{what} is too complex: {text}")
    if "Unimplemented keys" in text:
        names = ", ".join(f"'{name}'" for name in library.keywords_in([text]))
        return _Refusal("guidance_unsupported", f"{what} can't be enforced because of {names}: leave that out")
    if reference := re.match(r"Resource '(.*)' is not present", text):
        message = f"'$ref' to {reference.group(1)!r} isn't supported, only references within the schema are"
        return _Refusal("guidance_unsupported", f"{what} can't be enforced: {message}")
    if _UNSUPPORTED.search(text):
        return _Refusal("guidance_unsupported", f"{what} can't be enforced: {text}")
    return _Refusal("guidance_invalid", f"{what} can't be read: {text}")
