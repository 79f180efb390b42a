"""The reader thread: owns the socket, keeps the sessions, tokenises, and never waits for a step.

Everything a gateway says passes here; what concerns running requests goes on to the step thread's inbox, and what
the step thread says comes back through an in-process socket and leaves in order, one number per frame. Long prompts
are tokenised in a thread of their own (`prompts.py`), whose results come back the same way.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import zmq

from inference.errors import DrainingError, EngineError, InvalidRequestError, OverloadedError, UnpreparedError
from inference.protocol import (
    VERSION,
    Batch,
    Cancel,
    Drain,
    Drained,
    Extend,
    Fatal,
    FromWorker,
    Goodbye,
    Hello,
    Prepare,
    PreparedReply,
    ProtocolError,
    Ready,
    Refused,
    Renew,
    Stats,
    Submit,
    ToWorker,
    UsageOf,
    WireFinished,
    evidence_reply,
    refusal_of,
    worker_inbound,
)
from inference.text.prepare import Prompt
from inference.types import EngineInfo, Evidence, Health, Running
from inference.worker.deployment import Deployment
from inference.worker.prompts import SHORT_BYTES, PromptCall, PromptQueue, PromptResult, prompt_of
from inference.worker.record import Record
from inference.worker.requests import CancelCommand, Command, DrainCommand, ExtendCommand, Request, SubmitCommand
from inference.worker.session import Kept, PeerGoneError, Sender, Session
from inference.worker.step_loop import StepLoop

log = logging.getLogger(__name__)

# A session and its message; no message: announce; what became of a long prompt: keep it, answer; None: stop.
Outgoing = tuple[bytes, FromWorker | None] | PromptResult | None

BYTES_PER_TOKEN = 40  # an integer and its place in a tuple


class Reader:
    """See the module. `deployments` and `unready` (why not) are the loader's to fill; `run` is the thread."""

    def __init__(
        self,
        *,
        router: Any,
        wake: Any,
        incarnation: str,
        record: Record,
        registry: dict[str, Request],
        inbox: SimpleQueue[Command],
        loop: StepLoop,
        tell: Callable[[bytes, FromWorker], None],
        prompts: PromptQueue,
        session_seconds: float,
        session_bytes: int,
        prepared_seconds: float,
        step_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.deployments: dict[str, Deployment] = {}
        self.unready: dict[str, Health] = {}
        self.draining = False
        self._router = router
        self._wake = wake
        self._sender = Sender(router)
        self._incarnation = incarnation
        self._record = record
        self._registry = registry
        self._inbox = inbox
        self._loop = loop
        self._session_seconds = session_seconds
        self._session_bytes = session_bytes
        self._prepared_seconds = prepared_seconds
        self._step_seconds = step_seconds
        self._clock = clock
        self._tell = tell
        self._prompts = prompts
        self._sessions: dict[bytes, Session] = {}
        self._stopped = False
        self.turn_began: float | None = None

    def run(self, outgoing: SimpleQueue[Outgoing]) -> None:
        """Serve until None comes out of `outgoing`; what was put there before it has been sent then.

        `loop` may put messages for sessions that have ended: they are dropped, the record has what matters.
        """
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        tick = int(min(1.0, self._session_seconds / 10) * 1000)
        while not self._stopped:
            self.turn_began = None
            ready = dict(poller.poll(tick))
            self.turn_began = self._clock()
            if self._wake in ready:
                self._send_outgoing(outgoing)
            # What waits to be read may be a renewal: silence is judged only when nothing does.
            if self._router not in ready or self._receive():
                self._expire()
        for session in list(self._sessions.values()):
            self._sender.farewell(session.identity, Fatal(self._incarnation, "the worker stops"))

    # -- sockets ------------------------------------------------------------------------------------------------

    def _send_outgoing(self, outgoing: SimpleQueue[Outgoing]) -> None:
        while not self._stopped:
            try:
                self._wake.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            entry = outgoing.get_nowait()
            if entry is None:
                self._stopped = True
            elif isinstance(entry, PromptResult):
                self._keep_result(entry)
            elif entry[1] is None:
                self._announce()
            elif (session := self._sessions.get(entry[0])) is not None:
                self._forget_ended(session, entry[1])
                self._send(session, entry[1])

    def _forget_ended(self, session: Session, message: FromWorker) -> None:
        if isinstance(message, Batch):
            for event in message.events:
                if isinstance(event, WireFinished):
                    session.requests.pop(event.id, None)
        elif isinstance(message, Refused):
            session.requests.pop(message.id, None)

    def _receive(self) -> bool:
        """Read what has come; True when nothing is left."""
        # A bounded number of frames between two looks at what the steps brought.
        for _ in range(64):
            try:
                identity, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._read(identity, parts)
        return False

    def _read(self, identity: bytes, parts: list[bytes]) -> None:
        session = self._sessions.get(identity)
        try:
            if session is None:
                self._open(identity, parts)
                return
            message = session.inbound.read(parts)
            self._obey(session, message, len(parts[1]))
        except ProtocolError as error:
            self._fail(identity, str(error))

    def _send(self, session: Session, message: FromWorker) -> None:
        try:
            self._sender.send(session, message)
        except PeerGoneError:
            self._end(session, "its gateway has left")
            return
        if session.unread > self._session_bytes:
            self._fail(session.identity, f"{session.unread} bytes are unread: the gateway is too slow")

    # -- sessions -----------------------------------------------------------------------------------------------

    def _open(self, identity: bytes, parts: list[bytes]) -> None:
        inbound = worker_inbound()
        try:
            message = inbound.read(parts)
        except ProtocolError:
            message = None
        if not isinstance(message, Hello):
            raise ProtocolError("this worker doesn't know the session")
        if message.version != VERSION:
            raise ProtocolError(f"the gateway speaks version {message.version}, this worker {VERSION}")
        session = Session(identity, self._clock(), inbound)
        self._sessions[identity] = session
        self._send(session, self._ready())

    def _ready(self) -> Ready:
        # A copy: the loading thread adds deployments meanwhile.
        infos: dict[str, EngineInfo] = {name: deployment.info for name, deployment in dict(self.deployments).items()}
        return Ready(self._incarnation, infos)

    def _announce(self) -> None:
        """Tell every session what is served now, and in what state."""
        for session in list(self._sessions.values()):
            self._send(session, self._ready())
        for session in list(self._sessions.values()):
            self._send(session, self._stats())

    def _stats(self) -> Stats:
        health = dict(self.unready)
        hung = self._hung()
        for name in list(self.deployments):
            state = self._loop.health.get(name, Health(ready=True))
            if hung:
                state = replace(state, ready=False, reason=hung)
            elif self.draining and not state.draining:
                state = replace(state, ready=False, reason="draining", draining=True)
            health[name] = state
        return Stats(self._incarnation, self._loop.steps, health)

    def _hung(self) -> str:
        """Return why the step thread counts as hung, or nothing: its turn has lasted longer than a step may."""
        since = self._loop.turn_began
        seconds = 0.0 if since is None else self._clock() - since
        return f"a step has not ended for {seconds:.0f} s" if seconds > self._step_seconds else ""

    def _fail(self, identity: bytes, reason: str) -> None:
        """End a session that can't go on, and tell its gateway why."""
        log.warning("session %s failed: %s", identity.hex(), reason)
        session = self._sessions.get(identity)
        if session is not None:
            self._end(session, reason)
        self._sender.farewell(identity, Fatal(self._incarnation, reason))

    def _end(self, session: Session, reason: str) -> None:
        """Forget a session and cancel all that it asked for; the record keeps how each request ended."""
        if self._sessions.pop(session.identity, None) is None:
            return
        if session.requests:
            log.warning("session %s: %s; %d requests cancelled", session.identity.hex(), reason, len(session.requests))
            self._inbox.put(CancelCommand(tuple(session.requests.values())))
        session.kept.clear()

    def _expire(self) -> None:
        now = self._clock()
        for session in list(self._sessions.values()):
            if now - session.renewed_at > self._session_seconds:
                self._fail(session.identity, f"not renewed for {self._session_seconds:g} s")
                continue
            while session.kept:
                oldest = next(iter(session.kept))
                if session.kept[oldest].until > now:
                    break
                session.take(oldest)

    # -- messages -----------------------------------------------------------------------------------------------

    def _obey(self, session: Session, message: ToWorker, size: int) -> None:  # noqa: C901  one arm per message
        match message:
            case Prepare():
                self._prepare(session, message, size)
            case Submit():
                self._submit(session, message)
            case Extend(request_id, allowance, is_final):
                if (request := session.requests.get(request_id)) is not None:
                    self._inbox.put(ExtendCommand(request, allowance, is_final))
            case Cancel(request_id):
                session.take(request_id)
                if (request := session.requests.get(request_id)) is not None:
                    self._inbox.put(CancelCommand((request,)))
            case UsageOf(call, request_id):
                self._send(session, evidence_reply(call, self._evidence(request_id)))
            case Renew(received):
                session.renewed_at = self._clock()
                session.received = received
                self._send(session, self._stats())
            case Drain():
                self._drain(session, message)
            case Goodbye():
                self._end(session, "its gateway said goodbye")
            case Hello():
                raise ProtocolError("a second hello")

    def _prepare(self, session: Session, message: Prepare, size: int) -> None:
        try:
            deployment = self._deployment(message.deployment)
            if size > SHORT_BYTES:
                self._prompts.put(PromptCall(session.identity, message, deployment, size, self._clock()))
                return
            self._keep(session, message, deployment, prompt_of(deployment, message.request), size)
        except EngineError as error:
            self._send(session, refusal_of(error, call=message.call))

    def _keep_result(self, result: PromptResult) -> None:
        call, outcome = result.call, result.outcome
        session = self._sessions.get(call.session)
        if session is None:
            return
        try:
            if isinstance(outcome, EngineError):
                raise outcome
            self._keep(session, call.message, call.deployment, outcome, call.size)
        except EngineError as error:
            self._send(session, refusal_of(error, call=call.message.call))

    def _keep(self, session: Session, message: Prepare, deployment: Deployment, prompt: Prompt, size: int) -> None:
        size += BYTES_PER_TOKEN * prompt.tokens
        self._check_room(session, size)
        session.keep(message.request.id, Kept(deployment, prompt, self._clock() + self._prepared_seconds, size))
        self._send(session, PreparedReply(message.call, prompt.tokens, prompt.max_output))

    def _check_room(self, session: Session, size: int) -> None:
        if session.kept_bytes + size > self._session_bytes:
            raise OverloadedError("the gateway has too many prepared requests here")

    def _deployment(self, name: str) -> Deployment:
        deployment = self.deployments.get(name)
        if deployment is None:
            state = self.unready.get(name)
            reason = state.reason if state is not None else "unknown to this worker"
            raise OverloadedError(f"the deployment is not ready: {reason}", code="deployment_not_ready")
        if reason := self._hung():
            raise OverloadedError(f"the deployment is not ready: {reason}", code="deployment_not_ready")
        if self.draining or deployment.draining:
            raise DrainingError("the engine is about to stop")
        return deployment

    def _submit(self, session: Session, message: Submit) -> None:
        kept = session.take(message.id)
        try:
            if message.id in self._registry:
                raise InvalidRequestError("the request is running already")
            if self._record.is_closed(message.id):
                raise UnpreparedError("the request has ended, or was declared as never run", code="request_closed")
            if kept is None or kept.until <= self._clock():
                raise UnpreparedError("the request is not prepared here")
            if self._deployment(kept.deployment.id) is not kept.deployment:
                raise UnpreparedError("the deployment was loaded anew")
        except EngineError as error:
            self._send(session, refusal_of(error, request_id=message.id))
            return
        request = Request(
            message.id, session.identity, kept.deployment, kept.prompt, message.allowance, message.is_final
        )
        # Before the command: from here on `usage_of` says Running until the record has the end.
        self._registry[message.id] = request
        session.requests[message.id] = request
        self._inbox.put(SubmitCommand(request))

    def _evidence(self, request_id: str) -> Evidence:
        # The step thread records an end before it leaves the registry, so what is in neither never ran.
        request = self._registry.get(request_id)
        return Running(request.usage) if request is not None else self._record.evidence(request_id)

    def _drain(self, session: Session, message: Drain) -> None:
        deployment = self.deployments.get(message.deployment)
        deployments = (deployment,) if deployment is not None else ()
        deadline = self._clock() + message.seconds
        done = partial(self._tell, session.identity, Drained(message.call))
        self._inbox.put(DrainCommand(deployments, deadline, done))
