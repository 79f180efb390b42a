"""Preparing a request: it is validated, its chat template applied, tokenised, and its prefix keys are hashed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from inference.config import SAMPLING_FIELDS
from inference.core.grammar import Grammar
from inference.core.prefix import PrefixKeys
from inference.errors import InvalidRequestError
from inference.guidance.grammars import Grammars
from inference.guidance.thinking import ThinkingGrammar
from inference.json_files import read_object
from inference.labels import Labels, LabelSet
from inference.messages import Message, Reasoning
from inference.text.answer import Parsing
from inference.text.chats import Chats
from inference.text.tokenizer import Tokenizer
from inference.types import GenerationRequest, Kind, Tokens
from inference.validation import check_held_back, check_ids, check_sampling

_ENDING = 16  # tokens of a prompt, among which a thought may have been opened
MOST_LABEL_TOKENS = 64
MOST_PROBABILITIES = 65_536  # of one classification: they are the answer, and a label of the model's own costs nothing
CHARACTERS_PER_TOKEN = 128  # of the longest tokens in common vocabularies, which are white space
UNCOUNTED = 4  # characters for each token that may be taken: a text of no more is encoded without being counted before
PIECE = 4096  # characters that are counted at once
SEAM = 8  # tokens that a piece may have more than the same characters within their text


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prepared request: a chat's `ids`, prefix `keys` and `grammar`, or the ids of an embedding request's `inputs`.

    Those of a score request are its pairs, whose second texts begin at `seconds`; a classification has `labels`.

    `max_output` is the most tokens that one answer may have, 0 for embeddings. `parsing` is how the answer is read,
    None where it is nothing but text. `adapter` is the key of its adapter in memory, `not_enforced` are the request's
    wishes that are left open.
    """

    request: GenerationRequest
    max_output: int
    ids: tuple[int, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    seconds: tuple[int, ...] = ()
    labels: LabelSet | None = None
    keys: list[bytes] = field(default_factory=list)
    grammar: Grammar | None = None
    parsing: Parsing | None = None
    adapter: str = ""
    not_enforced: tuple[str, ...] = ()

    @property
    def most_output(self) -> int:
        """The most tokens that all of its answers together may have."""
        return self.max_output * self.request.sampling.answers

    @property
    def tokens(self) -> int:
        """How many prompt or input tokens it has."""
        labels = self.labels.tokens if self.labels is not None else 0
        return len(self.ids) + sum(len(item) for item in self.inputs) + labels


class Preparer:
    """Prepares the requests of one model, in any thread.

    `context` bounds a prompt and its output together, `max_input` one prompt or one embedding input. Without `keys` no
    prefix is hashed, without `grammars` none is guided. `recommended` has values for the sampling fields that a client
    doesn't set; `ends` are the ids that end a generation, `chats` what the model's chats look like. `load_adapter`
    returns the key of the adapter that a request of a domain names, which is then in memory; None where the model takes
    none. `labels` are a classifier's.
    """

    def __init__(
        self,
        *,
        kinds: frozenset[Kind],
        vocab_size: int,
        context: int,
        max_input: int,
        keys: PrefixKeys | None,
        recommended: Mapping[str, float],
        ends: frozenset[int] = frozenset(),
        grammars: Grammars | None = None,
        chats: Chats | None = None,
        load_adapter: Callable[[str, str], str] | None = None,
        labels: Labels | None = None,
    ) -> None:
        self._load_adapter = load_adapter
        self._kinds = kinds
        self._vocab_size = vocab_size
        self._context = context
        self._max_input = max_input
        self._keys = keys
        self._recommended = recommended
        self._ends = ends
        self._grammars = grammars
        self._chats = chats if chats is not None else Chats.of("", {})
        self._labels = labels

    def prepare(
        self, request: GenerationRequest, tokenizer: Tokenizer, grammar: Grammar | None = None, adapter: str = ""
    ) -> Prompt:
        """Return the request in tokens; raise `InvalidRequestError` for what this model can't serve.

        `grammar` is that of its guidance where that was compiled before, `adapter` the key of its adapter where that
        was loaded before.
        """
        if request.kind not in self._kinds:
            raise InvalidRequestError(f"this model takes no {request.kind} requests", code="unsupported_task")
        if request.weight < 1:
            raise InvalidRequestError("a tenant's weight is at least 1 thousandth")
        if request.adapter and (self._load_adapter is None or request.kind is not Kind.CHAT):
            raise InvalidRequestError("this model takes no adapters", code="unknown_adapter", param="model")
        if request.kind is Kind.CHAT:
            return self._chat(request, tokenizer, grammar, adapter)
        if request.kind is Kind.SCORE:
            return self._pairs(request, tokenizer)
        if request.kind is Kind.CLASSIFICATION:
            prompt = self._embedding(request, tokenizer)
            labels = self._label_set(request, tokenizer)
            if len(prompt.inputs) * len(labels.ids) > MOST_PROBABILITIES:
                message = f"{len(prompt.inputs)} texts and {len(labels.ids)} labels make more than {MOST_PROBABILITIES}"
                raise InvalidRequestError(f"{message} probabilities: send fewer texts at once", param="input")
            return replace(prompt, labels=labels)
        return self._embedding(request, tokenizer)

    def tokens(
        self, request: GenerationRequest, tokenizer: Tokenizer, *, special: bool = True, with_texts: bool = False
    ) -> Tokens:
        """Return the tokens of the request's messages or raw prompt, which has `special` ones before it if they are
        wanted, `with_texts` of the vocabulary; raise `InvalidRequestError` for what this model can't serve.
        """
        field = "messages" if request.prompt is None else "prompt"
        ids = self._prompt_ids(request, tokenizer, field, special=special)
        return Tokens(ids, tuple(tokenizer.written(ids)) if with_texts else ())

    def text(self, request: GenerationRequest, tokenizer: Tokenizer) -> str:
        """Return the text of the ids in the request's prompt; raise `InvalidRequestError` for what are none."""
        ids = request.prompt
        if ids is None or isinstance(ids, str):
            raise InvalidRequestError("there are no token ids", param="tokens")
        self._check_ids(ids, "tokens")
        if len(ids) > self._context:
            raise self._too_long(ids, "tokens")
        return tokenizer.text(ids)

    def _too_long(self, ids: Sequence[int], field: str) -> InvalidRequestError:
        message = f"the prompt has {len(ids)} tokens, this model's context {self._context} with the answer"
        return InvalidRequestError(message, code="context_length_exceeded", param=field)

    def _chat(self, request: GenerationRequest, tokenizer: Tokenizer, grammar: Grammar | None, adapter: str) -> Prompt:
        field = "messages" if request.prompt is None else "prompt"
        request = replace(request, sampling=request.sampling.with_recommended(self._recommended))
        check_sampling(request.sampling, self._vocab_size, self._ends)
        ids = self._prompt_ids(request, tokenizer, field)
        most = self._context - len(ids)
        if most < 1:
            raise self._too_long(ids, field)
        wanted = request.sampling.max_tokens
        most = most if wanted is None else min(wanted, most)
        check_held_back(request.sampling, most)
        if request.resumed is not None:
            self._check_ids(request.resumed.tokens, field)
        guidance = self._chats.guidance(request)
        wishes = self._chats.open_wishes(request)
        if guidance is None:
            grammar = None
        elif grammar is None:
            if self._grammars is None:
                message = f"'{guidance.param}': this model's answers can't be guided"
                raise InvalidRequestError(message, code="guidance_unavailable", param=guidance.param)
            grammar = self._grammars.compiled(guidance)
        if guidance is not None and grammar is not None:
            wishes += guidance.not_enforced(grammar.not_enforced)
        if request.adapter and not adapter and self._load_adapter is not None:
            adapter = self._load_adapter(request.adapter, request.domain)
        keys = self._keys.keys(request.domain, ids, adapter) if self._keys is not None else []
        parsing = self._parsing(request, tokenizer, ids)
        if parsing is not None and (grammar is not None or request.sampling.thinking_tokens is not None):
            grammar = self._behind_thought(grammar, parsing, tokenizer, request.sampling.thinking_tokens)
        return Prompt(
            request,
            most,
            ids=ids,
            keys=keys,
            grammar=grammar,
            parsing=parsing,
            adapter=adapter,
            not_enforced=wishes,
        )

    def _parsing(self, request: GenerationRequest, tokenizer: Tokenizer, ids: Sequence[int]) -> Parsing | None:
        """Return how the answer behind the prompt `ids` is read."""
        markers = self._chats.markers
        if request.prompt is not None or (markers is None and request.tools is None):
            return None
        ending = ""
        if markers is not None:
            ending = tokenizer.decoding((markers.begin, markers.end))(ids[-_ENDING:])
        return self._chats.parsing(request, ending)

    def _behind_thought(
        self, grammar: Grammar | None, parsing: Parsing, tokenizer: Tokenizer, budget: int | None
    ) -> Grammar | None:
        """Return a grammar that lets the model think before its answer, if it does, within the budget."""
        thought = self._chats.thought(
            tokenizer, thinks=parsing.thinks, budget=budget, ends=self._ends, vocabulary=self._vocab_size
        )
        return grammar if thought is None else ThinkingGrammar(thought, grammar)

    def _prompt_ids(
        self, request: GenerationRequest, tokenizer: Tokenizer, field: str, *, special: bool = True
    ) -> tuple[int, ...]:
        """Return the ids of the messages in their template, or of the raw prompt, which has at least one; no more than
        a prompt may have.
        """
        prompt = request.prompt
        if prompt is None and not request.messages:
            raise InvalidRequestError("there are no messages", param=field)
        if any(message.images for message in request.messages):
            raise InvalidRequestError("this model takes no images", code="images_not_supported", param=field)
        if prompt is None:
            self._bounded(tokenizer, "".join(_texts_of(request)), "the prompt", field)
            ids = tuple(tokenizer.prompt(request.messages, self._chats.rendering(request)))
        elif isinstance(prompt, str):
            ids = tuple(tokenizer.raw(self._bounded(tokenizer, prompt, "the prompt", field), special=special))
        else:
            ids = prompt
        if not ids:
            raise InvalidRequestError("the prompt is empty", param=field)
        self._check_ids(ids, field)  # a tokenizer may have added tokens that its model lacks
        if len(ids) > self._max_input:
            raise self._too_long(ids, field)
        return ids

    def _embedding(self, request: GenerationRequest, tokenizer: Tokenizer) -> Prompt:
        if not request.inputs:
            raise InvalidRequestError("there is no input", param="input")
        inputs: list[tuple[int, ...]] = []
        limit = self._max_input if request.truncate else None
        for number, item in enumerate(request.inputs):
            if isinstance(item, str):
                text = self._bounded(tokenizer, item, f"input {number}", "input", cut=request.truncate)
                ids = tuple(tokenizer.encode(text, limit or 0))
            else:
                ids = tuple(item)
            self._check_ids(ids, "input")
            ids = ids[:limit]
            if not ids:
                raise InvalidRequestError(f"input {number} is empty", param="input")
            if len(ids) > self._max_input:
                raise InvalidRequestError(
                    f"input {number} has {len(ids)} tokens, this model takes {self._max_input}",
                    code="context_length_exceeded",
                    param="input",
                )
            inputs.append(ids)
        return Prompt(request, 0, inputs=tuple(inputs))

    def _label_set(self, request: GenerationRequest, tokenizer: Tokenizer) -> LabelSet:
        """Return the labels that the request names, or the model's own."""
        names, labels = request.labels, self._labels
        assert labels is not None, "a model that classifies has labels"
        if len(set(names)) != len(names):
            raise InvalidRequestError("a label stands twice among the labels", param="labels")
        if not labels.is_open:
            if unknown := [name for name in names if name not in labels.names]:
                message = f"this model knows no label {unknown[0][:100]!r}: it has {', '.join(labels.names)[:500]}"
                raise InvalidRequestError(message, code="unknown_label", param="labels")
            return LabelSet(names or labels.names, tuple((labels.names.index(name),) for name in names or labels.names))
        chosen = tuple(name for name in names or labels.names if name != labels.none)
        if not chosen:
            raise InvalidRequestError(f"'{labels.none}' needs at least one label beside it", param="labels")
        ids = tuple(tuple(tokenizer.encode(name)) for name in chosen)
        for number, given in enumerate(ids):
            self._check_ids(given, "labels")
            if len(given) > MOST_LABEL_TOKENS:
                message = f"label {number} has {len(given)} tokens, and {MOST_LABEL_TOKENS} are the most"
                raise InvalidRequestError(message, param="labels")
        return LabelSet((*chosen, labels.none), ids, sum(map(len, ids)), request.domain)

    def _pairs(self, request: GenerationRequest, tokenizer: Tokenizer) -> Prompt:
        count, queries = len(request.inputs), request.queries
        if not count or len(queries) not in {1, count}:
            raise InvalidRequestError(
                "there is one query, or one for each of the texts, of which there is at least one"
            )
        inputs: list[tuple[int, ...]] = []
        seconds: list[int] = []
        for number, text in enumerate(request.inputs):
            query = queries[number if len(queries) > 1 else 0]
            if not isinstance(text, str):
                raise InvalidRequestError(f"pair {number}: a score is of texts, not of token ids")
            limit = self._max_input if request.truncate else 0
            first = self._bounded(tokenizer, query, f"the query of pair {number}", "input")
            second = self._bounded(tokenizer, text, f"the text of pair {number}", "input", cut=request.truncate)
            pair = tokenizer.pair(first, second, limit)
            if pair is None or len(pair.ids) > self._max_input:
                size = f"{len(query) + len(text)} characters" if pair is None else f"{len(pair.ids)} tokens"
                raise InvalidRequestError(
                    f"pair {number} has {size}, and this model takes {self._max_input} tokens",
                    code="context_length_exceeded",
                    param="input",
                )
            self._check_ids(pair.ids, "input")
            inputs.append(pair.ids)
            seconds.append(pair.second)
        return Prompt(request, 0, inputs=tuple(inputs), seconds=tuple(seconds))

    def _bounded(self, tokenizer: Tokenizer, text: str, what: str, param: str, *, cut: bool = False) -> str:
        """Return the text, or where it is to be `cut` a beginning with all tokens that may be taken; raise
        `InvalidRequestError` for one that surely has more. However long it is, that costs what those tokens do.
        """
        if len(text) <= UNCOUNTED * self._max_input:
            return text
        place = count = 0
        most = min(len(text), CHARACTERS_PER_TOKEN * self._max_input)
        while place < most and count <= self._max_input:
            piece = text[place : min(place + PIECE, most)]
            count += max(0, len(tokenizer.raw(piece, special=False)) - SEAM)
            place += len(piece)
        if cut:
            return text[:place]
        if place == len(text) and count <= self._max_input:
            return text
        raise InvalidRequestError(
            f"{what} has {len(text)} characters, more than this model's {self._max_input} tokens",
            code="context_length_exceeded",
            param=param,
        )

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self._vocab_size:
            check_ids(ids, self._vocab_size, param)


def _texts_of(request: GenerationRequest) -> Iterator[str]:
    """Yield what every chat template renders of the request: it may leave thoughts out."""
    if request.tools is not None:
        yield from request.tools.texts
    for message in request.messages:
        spoken = (part for part in message.parts if not isinstance(part, Reasoning))
        yield from Message(message.role, tuple(spoken)).texts


def recommended_sampling(folder: Path) -> dict[str, float]:
    """Return the sampling fields in the folder's generation_config.json that can be meant; empty without that file."""
    path = folder / "generation_config.json"
    stated = read_object(path) if path.is_file() else {}
    return {name: stated[name] for name, (fits, _) in SAMPLING_FIELDS.items() if fits(stated.get(name))}
