"""The engine of a deployment that a worker process serves. All deployments of one worker share a session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from weakref import WeakKeyDictionary

from inference.clients.session import ANSWER_SECONDS, EventStream, WorkerSession
from inference.conversion import evidence_of
from inference.engine import EngineSpec
from inference.errors import EngineError
from inference.protocol import (
    Detokenize,
    Drain,
    Prepare,
    PreparedReply,
    TextReply,
    Tokenize,
    TokensReply,
    UsageOf,
    UsageReply,
)
from inference.types import EngineInfo, Event, Evidence, Finished, GenerationRequest, Health, Prepared, Tokens


class WorkerEngine:
    """One deployment of a worker; see `inference.engine.Engine` for what its calls promise."""

    def __init__(self, deployment: str, session: WorkerSession) -> None:
        self.deployment = deployment
        self._session = session
        self._closed = False
        session.users += 1

    @property
    def info(self) -> EngineInfo | None:
        return self._session.infos.get(self.deployment)

    async def prepare(self, request: GenerationRequest) -> Prepared:
        session = self._session
        reply: PreparedReply = await session.call(Prepare(session.next_call(), self.deployment, request))
        return Prepared(request, reply.prompt_tokens, reply.max_output, not_enforced=reply.not_enforced)

    async def tokenize(self, request: GenerationRequest, *, special: bool = True, with_texts: bool = False) -> Tokens:
        session = self._session
        message = Tokenize(session.next_call(), self.deployment, request, special, with_texts)
        reply: TokensReply = await session.call(message)
        return Tokens(reply.ids, reply.texts)

    async def detokenize(self, request: GenerationRequest) -> str:
        session = self._session
        reply: TextReply = await session.call(Detokenize(session.next_call(), self.deployment, request))
        return reply.text

    async def generate(self, prepared: Prepared, allowance: int, is_final: bool) -> AsyncIterator[Event]:
        request_id = prepared.request.id
        stream = EventStream(prepared.prompt_tokens)
        self._session.submit(request_id, stream, allowance, is_final)
        has_ended = False
        try:
            while not has_ended:
                event = await stream.get()
                has_ended = isinstance(event, Finished)
                yield event
        except EngineError:
            has_ended = True  # the worker has refused it
            raise
        finally:
            if not has_ended:
                self._session.cancel(request_id)

    async def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        self._session.extend(request_id, allowance, is_final)

    async def cancel(self, request_id: str) -> None:
        self._session.cancel(request_id)

    async def usage_of(self, request_id: str) -> Evidence:
        reply: UsageReply = await self._session.call(UsageOf(self._session.next_call(), request_id))
        return evidence_of(reply)

    async def health(self) -> Health:
        session = self._session
        if not session.is_up:
            return Health(ready=False, reason=session.unreachable_reason)
        state = session.health.get(self.deployment)
        if state is None:
            known = self.deployment in session.infos
            state = Health(ready=known, reason="" if known else "the worker does not serve this deployment")
        return replace(state, process=session.incarnation)

    async def drain(self, seconds: float) -> None:
        message = Drain(self._session.next_call(), self.deployment, seconds)
        await self._session.call(message, seconds + ANSWER_SECONDS)

    async def close(self) -> None:
        """Leave the session; the last deployment that leaves closes it."""
        if self._closed:
            return
        self._closed = True
        self._session.users -= 1
        if self._session.users == 0:
            _forget(self._session)
            self._session.close()


_Keys = tuple[str, str, str]  # endpoint, the worker's public key, the gateway's secret key
_sessions: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[_Keys, WorkerSession]] = WeakKeyDictionary()


def open_worker_engine(spec: EngineSpec) -> WorkerEngine:
    """Return the engine of `spec`, on the running event loop's session with the worker at its endpoint.

    Options: `renew_seconds` (1.0) and `silence_seconds` (5.0), as the first deployment of an endpoint has them. Raise
    ValueError for others, and for tcp without keys.
    """
    options = dict(spec.options)
    renew, silence = float(options.pop("renew_seconds", 1.0)), float(options.pop("silence_seconds", 5.0))
    if options:
        raise ValueError(f"deployment {spec.deployment}: unknown options {sorted(options)}")
    if not spec.endpoint.startswith("ipc://") and not (spec.server_key and spec.secret_key):
        raise ValueError(f"deployment {spec.deployment}: {spec.endpoint} needs the keys of both ends")
    sessions = _sessions.setdefault(asyncio.get_running_loop(), {})
    keys = (spec.endpoint, spec.server_key, spec.secret_key)
    session = sessions.get(keys)
    if session is None:
        session = WorkerSession(*keys, renew_seconds=renew, silence_seconds=silence)
        sessions[keys] = session
    return WorkerEngine(spec.deployment, session)


def _forget(session: WorkerSession) -> None:
    for sessions in _sessions.values():
        for keys, known in list(sessions.items()):
            if known is session:
                del sessions[keys]
