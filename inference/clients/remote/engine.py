"""A deployment that a foreign server runs, as an engine.

It keeps the contract of `inference.engine` but for what a foreign server can't:

- A running request can't be extended (`EngineInfo.can_extend` is False): the allowance that it begins with is all that
  it gets. At its end it ends with ``allowance``, or with ``length`` where that was all that was asked for.
- Nobody keeps a record of requests but this process. `usage_of` an id that it doesn't know is `Lost`, since another
  process may have run it: what its hold's gateway noted last is then charged, as an estimate.
- How much of the prompt was cached may be known only at the end, so `Started` may say less.
- `Finished.is_estimate` where the server hadn't counted all that arrived, not yet told how much was cached, or said
  what can't be, which `Finished.findings` names.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from inference.clients.remote.answers import RemoteAnswers, each_of
from inference.clients.remote.dialects import DIALECTS
from inference.clients.remote.dialects.base import salt_of
from inference.clients.remote.faults import AskError
from inference.clients.remote.messages import prompt_texts
from inference.clients.remote.options import RemoteOptions, base_of
from inference.clients.remote.pool import pool_of
from inference.clients.remote.probe import Probe
from inference.clients.remote.run import CancelledRunError, RemoteRun
from inference.clients.remote.tokens import Count, estimated
from inference.engine import EngineSpec
from inference.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    OverloadedError,
    UnpreparedError,
    UnreachableError,
)
from inference.types import (
    EngineFault,
    EngineInfo,
    Event,
    Evidence,
    Finished,
    FinishReason,
    GenerationRequest,
    Health,
    Kind,
    Lost,
    NothingRan,
    Prepared,
    Running,
    Tokens,
    Vector,
)

PREPARED_SECONDS = 30.0
MOST_ENDED = 1 << 16  # requests that are remembered after their end
_REQUESTS_FAULT = frozenset({400, 413, 422})
_NO_ENDPOINT = frozenset({404, 405, 501})


class RemoteEngine:
    """One deployment at a remote endpoint."""

    def __init__(self, spec: EngineSpec) -> None:
        self.deployment = spec.deployment
        self._options = RemoteOptions.of(spec)
        self._dialect = DIALECTS[self._options.dialect]
        self._pool = pool_of(base_of(spec.endpoint), self._options.networks)
        self._pool.join(self, self._options)
        self._credential = spec.credential
        self._headers = {"authorization": f"Bearer {spec.credential}"} if spec.credential else {}
        self._probe = Probe(spec.deployment, self._dialect, self._options, self._ask)
        self._prepared: OrderedDict[str, tuple[float, int, int]] = OrderedDict()  # when, likely and least size
        self._runs: dict[str, RemoteRun | RemoteAnswers] = {}
        self._ended: OrderedDict[str, Evidence] = OrderedDict()
        self._idle = asyncio.Event()
        self._idle.set()
        self._is_draining = False

    @property
    def info(self) -> EngineInfo | None:
        return self._probe.info

    async def prepare(self, request: GenerationRequest) -> Prepared:
        info = self._checked(request)
        self._dialect.check(request.sampling)
        self._dialect.check_prompt(request)
        self._check_images(request)
        self._check_stops(request)
        count = await self._count(request)
        most = self._most_output(request, count, info)
        wishes = self._dialect.open_wishes(request.sampling)
        answers = request.sampling.n  # each of which computes the prompt
        prepared = Prepared(
            request,
            answers * count.tokens,
            answers * most,
            exact=count.is_exact,
            not_enforced=wishes,
            prompts=answers,
        )
        now = time.monotonic()
        while self._prepared and next(iter(self._prepared.values()))[0] < now - PREPARED_SECONDS:
            self._prepared.popitem(last=False)
        is_whole = not request.truncate and not any(message.images for message in request.messages)
        self._prepared[request.id] = (now, count.likely, count.least if is_whole else 0)
        self._prepared.move_to_end(request.id)
        return prepared

    async def tokenize(self, request: GenerationRequest, *, special: bool = True, with_texts: bool = False) -> Tokens:
        self._checked(request)
        with _telling():
            tokens = await self._dialect.tokens(
                self._ask, request, self._options.model, special=special, with_texts=with_texts
            )
        if tokens is None:
            raise _untold("which tokens a prompt has")
        return tokens

    async def detokenize(self, request: GenerationRequest) -> str:
        self._checked(request)
        ids = request.prompt if isinstance(request.prompt, tuple) else ()
        with _telling():
            text = await self._dialect.text(self._ask, ids, self._options.model)
        if text is None:
            raise _untold("the text of tokens")
        return text

    async def generate(self, prepared: Prepared, allowance: int, is_final: bool) -> AsyncIterator[Event]:
        request = prepared.request
        likely, least = self._admit(request.id)
        is_shared = self._options.shared_prefixes or not self._options.salt_key
        single = partial(
            RemoteRun,
            likely_prompt=likely,
            least_prompt=least,
            pool=self._pool,
            dialect=self._dialect,
            headers=self._headers,
            salt="" if is_shared else salt_of(request.domain, self._options.salt_key),
        )
        run: RemoteRun | RemoteAnswers
        if request.sampling.n == 1:
            run = single(prepared, allowance, options=self._options)
        else:
            # The first waits for a place as a request does; the others only for those of what is answered already.
            patient = replace(self._options, queue_seconds=self._options.first_seconds + self._options.queue_seconds)
            first, *others = each_of(prepared, min(allowance, prepared.max_output))
            parts = [single(*one, options=patient, is_part=True) for one in others]
            run = RemoteAnswers([single(*first, options=self._options), *parts])
        self._runs[request.id] = run
        self._idle.clear()
        end: Finished | None = None
        has_run = True
        try:
            events = run.embed() if isinstance(run, RemoteRun) and request.kind is not Kind.CHAT else run.chat()
            async with aclosing(events):
                async for event in events:
                    if isinstance(event, Finished):
                        end = event
                        self._heed(run, event, request.kind)
                        break
                    if isinstance(event, Vector) and request.kind is Kind.EMBEDDING:
                        self._probe.learn_width(len(event.data) // 4)
                    yield event
        except CancelledRunError:
            end = run.end(FinishReason.CANCELLED)
        except EngineError as error:
            has_run = error.may_have_run
            self._look_soon(run, error)
            self._hide_credential(error)
            raise
        finally:
            # Without an end the iterator was closed, its task cancelled, or the server took nothing.
            evidence: Evidence = (end or run.end(FinishReason.CANCELLED)) if has_run else NothingRan()
            self._note(request.id, Lost() if isinstance(evidence, Finished) and not evidence.exact else evidence)
            del self._runs[request.id]
            if not self._runs:
                self._idle.set()
        if end is not None:
            yield end

    async def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Do nothing: what a foreign server generates was settled when the request was sent."""

    async def cancel(self, request_id: str) -> None:
        self._prepared.pop(request_id, None)
        if (run := self._runs.get(request_id)) is not None:
            run.cancel()

    async def usage_of(self, request_id: str) -> Evidence:
        run = self._runs.get(request_id)
        if run is not None:
            return Running(run.usage)
        if request_id in self._ended:
            return self._ended[request_id]
        if self._prepared.pop(request_id, None) is None:
            return Lost()
        self._note(request_id, NothingRan())
        return NothingRan()

    async def health(self) -> Health:
        reason = "draining" if self._is_draining else self._probe.reason
        return Health(
            not reason,
            reason,
            running=len(self._runs),
            waiting=self._pool.places.waiting,
            draining=self._is_draining,
            detail=self._probe.detail,
        )

    async def drain(self, seconds: float) -> None:
        self._is_draining = True
        with suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), seconds)
        await self.close()

    async def close(self) -> None:
        self._is_draining = True
        for run in list(self._runs.values()):
            run.cancel()
        await self._probe.close()
        await self._pool.leave(self)

    # -- inside -------------------------------------------------------------------------------------------------

    def _admit(self, request_id: str) -> tuple[int, int]:
        """Return how many tokens a prepared request's prompt is likely to have, and has at least; raise what a worker
        would.
        """
        at, likely, least = self._prepared.pop(request_id, (float("-inf"), 0, 0))
        if request_id in self._runs:
            raise InvalidRequestError("The request is running already.")
        if request_id in self._ended:
            raise UnpreparedError("The request has ended, or was declared as never run.", code="request_closed")
        if time.monotonic() - at > PREPARED_SECONDS:
            raise UnpreparedError("The request is not prepared here.")
        if self._is_draining:
            raise DrainingError("The engine is about to be closed.")
        return likely, least

    def _heed(self, run: RemoteRun | RemoteAnswers, end: Finished, kind: Kind) -> None:
        """Have the probe note what an end shows of the server."""
        if kind is Kind.CHAT:
            self._probe.note_end(end, tells_cached=run.tells_cached)
        if end.error is not None:
            self._look_soon(run, end.error)

    def _look_soon(self, run: RemoteRun | RemoteAnswers, failure: EngineError | EngineFault) -> None:
        """Have the probe look at the server, unless the request itself was at fault, or was refused here."""
        if run.has_place and not isinstance(failure, InvalidRequestError):
            self._probe.look_soon(is_doubted=failure.code != OverloadedError.code)  # what is only busy is what it was

    def _note(self, request_id: str, evidence: Evidence) -> None:
        self._ended[request_id] = evidence
        if len(self._ended) > MOST_ENDED:
            self._ended.popitem(last=False)

    async def _count(self, request: GenerationRequest) -> Count:
        """Return the prompt's tokens: as the server counts them, or an estimate where it can't just now, with an
        estimate of its images.
        """
        count = await self._count_texts(request)
        for message in request.messages:
            for image in message.images:
                count = count.plus_image(image, self._options.image_tokens)
        return count

    async def _count_texts(self, request: GenerationRequest) -> Count:
        is_chat = request.kind is Kind.CHAT
        count = self._dialect.count_chat if is_chat else self._dialect.count_inputs
        prompt = request.prompt
        is_asked = False

        async def ask(path: str, body: dict[str, Any] | None = None) -> Any:
            nonlocal is_asked
            is_asked = True
            return await self._ask(path, body)

        try:
            if prompt is not None:
                counted = await self._dialect.count_prompt(ask, prompt, self._options.model)
            else:
                counted = await count(ask, request, self._options.model)
        except AskError as error:
            if error.status in _REQUESTS_FAULT:
                raise error.refusal from error
            self._probe.note_uncounted(str(error))
        else:
            if is_asked:  # else it says nothing of the server that this one could be counted
                self._probe.note_uncounted("")
            return counted
        if isinstance(prompt, str):
            return estimated([prompt], template=False)
        if is_chat:
            return estimated(prompt_texts(request), template=True)
        texts = [item for item in request.inputs if isinstance(item, str)]
        return estimated(texts, template=False).plus(sum(len(i) for i in request.inputs if not isinstance(i, str)))

    def _checked(self, request: GenerationRequest) -> EngineInfo:
        """Return what the server can do; raise why it doesn't take the request."""
        info = self.info
        if info is None:
            raise UnreachableError("The engine hasn't been reached yet.")
        if self._is_draining:
            raise DrainingError("The engine is about to be closed.")
        if request.kind not in info.kinds:
            raise InvalidRequestError(f"This model doesn't take {request.kind} requests.")
        if request.adapter:
            raise InvalidRequestError("This model takes no adapters.", code="unknown_adapter", param="model")
        return info

    def _check_images(self, request: GenerationRequest) -> None:
        """Raise `InvalidRequestError` for an image that the model's server doesn't take."""
        images = [image for message in request.messages for image in message.images]
        if images and self._options.images == "none":
            raise InvalidRequestError("This model takes no images.", code="images_not_supported", param="messages")
        if self._options.images != "urls" and not all(image.url.startswith("data:") for image in images):
            message = "This model takes images as data: URLs only."
            raise InvalidRequestError(message, code="images_not_supported", param="messages")

    def _check_stops(self, request: GenerationRequest) -> None:
        """Raise `InvalidRequestError` for more stop sequences than the model's server takes."""
        most = self._probe.limits.stops
        if most is not None and len(request.sampling.stop) > most:
            message = f"'stop': the engine of this model takes {most} stop sequences at most."
            raise InvalidRequestError(message, code="invalid_value", param="stop")

    def _most_output(self, request: GenerationRequest, count: Count, info: EngineInfo) -> int:
        if request.kind is not Kind.CHAT:
            return 0
        room = info.max_context - count.least
        if room < 1:
            message = f"The prompt has {count.least} tokens, the context of the model {info.max_context}."
            raise InvalidRequestError(message, code="context_length_exceeded", param="messages")
        if count.least > info.max_input:
            message = f"The prompt has {count.least} tokens, and this model takes {info.max_input}."
            raise InvalidRequestError(message, code="context_length_exceeded", param="messages")
        wanted = request.sampling.max_tokens
        return min(self._options.max_output if wanted is None else wanted, self._options.max_output, room)

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        try:
            return await self._pool.ask(self._headers, path, body)
        except AskError as error:
            self._hide_credential(error.refusal)
            raise

    def _hide_credential(self, error: EngineError) -> None:
        """Take the deployment's own key out of what its server says to a client."""
        if self._credential and self._credential in error.message:
            error.message = error.message.replace(self._credential, "…")
            error.args = (error.message,)


@contextmanager
def _telling() -> Iterator[None]:
    """Raise as an `EngineError` what a server answers that doesn't tell tokens."""
    try:
        yield
    except AskError as error:
        if error.status in _REQUESTS_FAULT:
            raise error.refusal from error
        if error.status in _NO_ENDPOINT:
            raise _untold("its tokens") from error
        raise UnreachableError("The server didn't say its tokens.") from error


def _untold(what: str) -> InvalidRequestError:
    message = f"The server of this model doesn't say {what}."
    return InvalidRequestError(message, code="tokenize_not_supported", param="model")
