"""A deterministic engine in process without a model, for tests and benchmarks of the gateway.

It keeps the whole contract of `inference.engine`: one `Finished` on every path, allowance and extension, cancellation,
embeddings, drain, and a record that `usage_of` answers from. `FakeOptions` decide what it generates and where it fails;
a test may replace `FakeEngine.options` at any time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, suppress
from dataclasses import fields

from inference.clients.fake_run import REFUSALS, FakeOptions, FakeRun, FakeState, input_tokens
from inference.engine import EngineSpec
from inference.errors import DrainingError, InvalidRequestError, UnpreparedError, UnreachableError
from inference.messages import Message
from inference.tools import ToolMode
from inference.types import (
    Delta,
    EngineInfo,
    Event,
    Evidence,
    Feature,
    Finished,
    FinishReason,
    GenerationRequest,
    Health,
    Kind,
    Lost,
    NothingRan,
    Prepared,
    Running,
    Started,
    Tokens,
    Usage,
)


class FakeRecord:
    """Evidence by request id. Two engines with one record (option ``record``) act as a worker and its restart."""

    def __init__(self) -> None:
        self.entries: dict[str, Evidence] = {}

    def usage(self) -> Usage:
        """Return the sum over every finished request, to compare what was billed with what ran."""
        finished = [entry.usage for entry in self.entries.values() if isinstance(entry, Finished)]
        return Usage(*(sum(getattr(usage, part.name) for usage in finished) for part in fields(Usage)))


class FakeEngine:
    """One fake deployment; see `FakeOptions`. `prepares`, `extensions` and `cancellations` record its calls."""

    def __init__(self, spec: EngineSpec) -> None:
        given = dict(spec.options)
        record = given.pop("record", None)
        self.record: FakeRecord = record if record is not None else FakeRecord()
        self.deployment = spec.deployment
        self.prepares = 0
        self.extensions: list[tuple[str, int, bool]] = []
        self.cancellations: list[str] = []
        self._state = FakeState(FakeOptions(**given))
        self._info: tuple[FakeOptions, EngineInfo] | None = None
        self._prepared: dict[str, tuple[float, Prepared]] = {}
        self._runs: dict[str, FakeRun] = {}
        self._vocabulary = [chr(token) for token in range(128)]  # and each piece of text that was tokenised
        self._token_ids = {piece: token for token, piece in enumerate(self._vocabulary)}
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False

    @property
    def options(self) -> FakeOptions:
        """The options in force; setting them affects running requests too."""
        return self._state.options

    @options.setter
    def options(self, options: FakeOptions) -> None:
        self._state.options = options

    @property
    def info(self) -> EngineInfo | None:
        options = self.options
        if not options.ready:
            return None
        if self._info is None or self._info[0] is not options:
            self._info = options, self._info_of(options)
        return self._info[1]

    def _info_of(self, options: FakeOptions) -> EngineInfo:
        return EngineInfo(
            deployment=self.deployment,
            model=options.model,
            kinds=frozenset(Kind(kind) for kind in options.kinds),
            max_context=options.max_context,
            max_input=options.max_context,
            vector_width=options.vector_width,
            details={"backend": "fake"},
            features=_features(options),
            adapters={**dict.fromkeys(options.adapters, ""), **options.refused_adapters},
        )

    # -- the contract --------------------------------------------------------------------------------------------

    async def prepare(self, request: GenerationRequest) -> Prepared:
        options = self.options
        self.prepares += 1
        if options.unreachable or not options.ready:
            raise UnreachableError("the fake engine is set to be unreachable")
        if self._draining:
            raise DrainingError("the engine is draining")
        if options.prepare_error:
            raise REFUSALS[options.prepare_error](f"the fake engine refuses to prepare: {options.prepare_error}")
        if request.kind not in options.kinds:
            raise InvalidRequestError(f"{options.model} does not take {request.kind} requests")
        _check(options, request)
        if request.kind is not Kind.CHAT:
            prepared = Prepared(request, sum(input_tokens(options, request)), 0)
        elif options.images == "none" and any(message.images for message in request.messages):
            raise InvalidRequestError("this model takes no images", code="images_not_supported", param="messages")
        else:
            count = sum(sum(map(options.count, message.texts)) + 4 for message in request.messages)
            count += options.count("".join(request.tools.texts)) if request.tools is not None else 0
            if request.prompt is not None:
                count += options.count(request.prompt) if isinstance(request.prompt, str) else len(request.prompt)
            if not count:
                raise InvalidRequestError("the prompt is empty", param="prompt")
            most = options.max_context - count
            if most < 1:
                raise InvalidRequestError(
                    f"the prompt has {count} tokens, the context {options.max_context}",
                    code="context_length_exceeded",
                    param="messages",
                )
            wanted = request.sampling.max_tokens
            each = most if wanted is None else min(wanted, most)
            leaves_open = request.sampling.wishes_thought and not options.thinks
            wishes = (request.sampling.thinking_param,) if leaves_open else ()
            prepared = Prepared(request, count, each * request.sampling.n, not_enforced=wishes)
        self._prepared[request.id] = (time.monotonic(), prepared)
        return prepared

    async def tokenize(self, request: GenerationRequest, *, special: bool = True, with_texts: bool = False) -> Tokens:
        await self.prepare(request)
        await self.cancel(request.id)
        prompt = request.prompt
        if prompt is None:
            pieces = [piece for message in request.messages for piece in _pieces(self.options, message)]
            pieces += self.options.pieces("".join(request.tools.texts)) if request.tools is not None else []
        else:
            pieces = self.options.pieces(prompt) if isinstance(prompt, str) else [self._vocabulary[i] for i in prompt]
        ids = tuple(self._token_ids.setdefault(piece, len(self._token_ids)) for piece in pieces)
        self._vocabulary = list(self._token_ids)
        return Tokens(ids, tuple(pieces) if with_texts else ())

    async def detokenize(self, request: GenerationRequest) -> str:
        await self.prepare(request)
        await self.cancel(request.id)
        ids = request.prompt if isinstance(request.prompt, tuple) else ()
        if any(token >= len(self._vocabulary) for token in ids):
            raise InvalidRequestError("there is no such token", param="tokens")
        return "".join(self._vocabulary[token] for token in ids)

    async def generate(self, prepared: Prepared, allowance: int, is_final: bool) -> AsyncIterator[Event]:
        request_id = prepared.request.id
        self._admit(request_id)
        resumed = prepared.request.resumed
        if resumed is not None and len(resumed.tokens) >= allowance:
            raise InvalidRequestError("a resumed generation needs room for one more token")
        run = FakeRun(self._state, prepared, allowance, is_final=is_final)
        self._runs[request_id] = run
        self.record.entries[request_id] = Running(run.usage)
        self._idle.clear()
        final: Finished | None = None
        try:
            async with aclosing(run.events()) as events:
                yield Started(run.cached, prepared.request.sampling.seed or 0)
                async for event in events:
                    if isinstance(event, Finished):
                        final = event
                        break
                    if isinstance(event, Delta):
                        run.reported = event.usage
                    yield event
        finally:
            # Without a final event the iterator was closed or its task cancelled.
            end = final or run.end(FinishReason.CANCELLED)
            self.record.entries[request_id] = end if end.exact else Lost()
            del self._runs[request_id]
            if not self._runs:
                self._idle.set()
        if final is not None:
            yield final

    async def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        self.extensions.append((request_id, allowance, is_final))
        if (run := self._runs.get(request_id)) is not None:
            run.extend(allowance, is_final=is_final)

    async def cancel(self, request_id: str) -> None:
        self.cancellations.append(request_id)
        self._prepared.pop(request_id, None)
        if (run := self._runs.get(request_id)) is not None:
            run.cancel()

    async def usage_of(self, request_id: str) -> Evidence:
        if self.options.unreachable:
            raise UnreachableError("the fake engine is set to be unreachable")
        run = self._runs.get(request_id)
        if run is not None:
            return Running(run.usage)
        return self.record.entries.setdefault(request_id, NothingRan())

    async def health(self) -> Health:
        ready = self.options.ready and not self._draining and not self.options.unreachable
        reason = "" if ready else "draining" if self._draining else "unreachable"
        running, adapters = len(self._runs), tuple(self.options.adapters)
        return Health(
            ready, reason, running=running, steps=self._state.steps, draining=self._draining, adapters=adapters
        )

    async def drain(self, seconds: float) -> None:
        self._draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        await self.close()

    async def close(self) -> None:
        for run in list(self._runs.values()):
            run.cancel()

    # -- for tests ----------------------------------------------------------------------------------------------

    async def hanging(self) -> None:
        """Return as soon as a request waits at `hang_at`."""
        await self._state.hanging.wait()

    def release(self) -> None:
        """Let requests at `hang_at` go on, now and later."""
        self._state.released.set()

    # -- inside -------------------------------------------------------------------------------------------------

    def _admit(self, request_id: str) -> None:
        """Raise what a worker refuses a Submit with, in the same order and with the same codes."""
        at, _ = self._prepared.pop(request_id, (float("-inf"), None))
        if request_id in self._runs:
            raise InvalidRequestError("the request is running already")
        if request_id in self.record.entries:
            raise UnpreparedError("the request has ended, or was declared as never run", code="request_closed")
        if refusal := self.options.generate_error:
            raise REFUSALS[refusal](f"the fake engine refuses to generate: {refusal}")
        if time.monotonic() - at > self.options.prepared_seconds:
            raise UnpreparedError("the request is not prepared here")
        if self._draining:
            raise DrainingError("the engine is draining")


def _features(options: FakeOptions) -> frozenset[Feature]:
    if Kind.CHAT not in options.kinds:
        return frozenset()
    has = {Feature.TOOLS: True, Feature.REASONING: options.thinks, Feature.STRUCTURED_OUTPUTS: options.guides}
    return frozenset(feature for feature, it_has in has.items() if it_has)


def _pieces(options: FakeOptions, message: Message) -> list[str]:
    """Return the tokens of a message: four for its template, and those of its texts."""
    return ["<m>"] * 4 + [piece for text in message.texts for piece in options.pieces(text)]


def _check(options: FakeOptions, request: GenerationRequest) -> None:
    """Raise `InvalidRequestError` for what an engine without adapters, guidance or thought refuses."""
    if refusal := options.refused_adapters.get(request.adapter):
        raise InvalidRequestError(f"the adapter can't be served: {refusal}", code="adapter_refused", param="model")
    if request.adapter and request.adapter not in options.adapters:
        raise InvalidRequestError("this model takes no adapters", code="unknown_adapter", param="model")
    if request.sampling.demands_thought and not options.thinks:
        message = f"{options.model} doesn't reason: leave '{request.sampling.thinking_param}' out, or set it to 0"
        raise InvalidRequestError(message, code="reasoning_not_supported", param=request.sampling.thinking_param)
    if request.tools is not None and request.tools.mode is ToolMode.REQUIRED and not options.guides:
        message = f"'{request.tools.param}': {options.model} can't guide its answers"
        raise InvalidRequestError(message, code="guidance_unavailable", param=request.tools.param)
    if (guidance := request.sampling.guidance) is not None and not options.guides:
        message = f"'{guidance.param}': {options.model} can't guide its answers"
        raise InvalidRequestError(message, code="guidance_unavailable", param=guidance.param)
