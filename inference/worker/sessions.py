"""The reader thread: owns the socket, keeps the sessions, prepares short prompts, and never waits for a step.

It handles every message of a gateway. What concerns running requests goes on to the step thread's inbox; what the step
thread sends comes through the outbox, which wakes the reader by an in-process socket, and leaves in that order, each
frame with its session's next number. Between two short prompts it sends and reads what has come meanwhile; long ones
are prepared in threads of their own (`prompts.py`), whose results come the same way.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import zmq

from inference.conversion import evidence_reply, refusal_of
from inference.errors import EngineError, InvalidRequestError, OverloadedError, UnpreparedError
from inference.protocol import (
    VERSION,
    Batch,
    Cancel,
    Detokenize,
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
    TextReply,
    Tokenize,
    TokensReply,
    ToWorker,
    UsageOf,
    WireFinished,
    worker_inbound,
)
from inference.text.prepare import Prompt
from inference.types import Evidence, Running, Tokens
from inference.worker.budget import PreparationBudget
from inference.worker.prompts import (
    SHORT_BYTES,
    LoadedAdapter,
    Outcome,
    PromptCall,
    PromptResult,
    Queues,
    Text,
    guidance_of,
    outcome_of,
)
from inference.worker.record import Record
from inference.worker.requests import CancelCommand, Command, DrainCommand, ExtendCommand, Request, SubmitCommand
from inference.worker.serving import Serving
from inference.worker.session import PeerGoneError, PreparedPrompt, Sender, Session

log = logging.getLogger(__name__)

Outgoing = tuple[bytes, FromWorker | None] | PromptResult | None
"""An entry of the outbox: a message for a session (None: announce to all), a prepared long prompt, or None: stop."""

_MOST_FRAMES = 64  # that are read in one go
_MOST_SECONDS = 0.05  # that it may take, but for its last frame
BYTES_PER_TOKEN = 40  # of a Python int and its reference in a tuple


class Reader:
    """`run` is the thread's function; `enqueue` is the outbox's `send`, for other threads."""

    def __init__(
        self,
        *,
        router: Any,
        wake: Any,
        incarnation: str,
        record: Record,
        registry: dict[str, Request],
        inbox: SimpleQueue[Command],
        serving: Serving,
        enqueue: Callable[[bytes, FromWorker], None],
        queues: Queues,
        budget: PreparationBudget,
        session_seconds: float,
        session_bytes: int,
        prepared_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._router = router
        self._wake = wake
        self._sender = Sender(router)
        self._incarnation = incarnation
        self._record = record
        self._registry = registry
        self._inbox = inbox
        self._serving = serving
        self._session_seconds = session_seconds
        self._session_bytes = session_bytes
        self._prepared_seconds = prepared_seconds
        self._clock = clock
        self._enqueue = enqueue
        self._queues = queues
        self._budget = budget
        self._short: deque[PromptCall] = deque()  # short prompts that wait to be prepared here
        self._sessions: dict[bytes, Session] = {}
        self._stopped = False
        self.busy_since: float | None = None

    def run(self, outgoing: SimpleQueue[Outgoing]) -> None:
        """Serve until None comes out of `outgoing`; what was put there before it has been sent then.

        A message for a session that has ended is dropped: the record has how its request ended.
        """
        poller = zmq.Poller()
        poller.register(self._router, zmq.POLLIN)
        poller.register(self._wake, zmq.POLLIN)
        tick = int(min(1.0, self._session_seconds / 10) * 1000)
        while not self._stopped:
            self.busy_since = None
            ready = dict(poller.poll(0 if self._short else tick))
            self.busy_since = self._clock()
            if self._wake in ready:
                self._send_outgoing(outgoing)
            # A frame that waits to be read may be a renewal: sessions expire only when none does.
            if self._router not in ready or self._receive():
                self._expire()
            self._prepare_next()
        for session in list(self._sessions.values()):
            self._sender.send_fatal(session.identity, Fatal(self._incarnation, "the worker stops"))

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
                self._finish_prompt(entry)
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
        """Read frames that have arrived, for as long as may pass before what the steps brought is sent; True when none
        is left.
        """
        until = self._clock() + _MOST_SECONDS
        for _ in range(_MOST_FRAMES):
            try:
                identity, *parts = self._router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return True
            self._read(identity, parts)
            if self._clock() >= until:
                return False
        return False

    def _read(self, identity: bytes, parts: list[bytes]) -> None:
        session = self._sessions.get(identity)
        try:
            if session is None:
                self._open_session(identity, parts)
                return
            message = session.inbound.read(parts)
            self._handle(session, message, len(parts[1]))
        except ProtocolError as error:
            self._fail_session(identity, str(error))

    def _send(self, session: Session, message: FromWorker) -> None:
        try:
            self._sender.send(session, message)
        except PeerGoneError:
            self._end_session(session, "its gateway has left")
            return
        if session.unread > self._session_bytes:
            self._fail_session(session.identity, f"{session.unread} bytes are unread: the gateway is too slow")

    # -- sessions -----------------------------------------------------------------------------------------------

    def _open_session(self, identity: bytes, parts: list[bytes]) -> None:
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
        return Ready(self._incarnation, self._serving.infos())

    def _announce(self) -> None:
        """Send every session the deployments and their health."""
        for session in list(self._sessions.values()):
            self._send(session, self._ready())
        for session in list(self._sessions.values()):
            self._send(session, self._stats())

    def _stats(self) -> Stats:
        return Stats(self._incarnation, self._serving.steps, self._serving.health())

    def _fail_session(self, identity: bytes, reason: str) -> None:
        """End a session that broke the protocol or a limit, and tell its gateway why."""
        log.warning("session %s failed: %s", identity.hex(), reason)
        session = self._sessions.get(identity)
        if session is not None:
            self._end_session(session, reason)
        self._sender.send_fatal(identity, Fatal(self._incarnation, reason))

    def _end_session(self, session: Session, reason: str) -> None:
        """Forget a session and cancel its requests; the record keeps how each ended."""
        if self._sessions.pop(session.identity, None) is None:
            return
        if session.requests:
            log.warning("session %s: %s; %d requests cancelled", session.identity.hex(), reason, len(session.requests))
            self._inbox.put(CancelCommand(tuple(session.requests.values())))
        session.prepared.clear()

    def _expire(self) -> None:
        now = self._clock()
        for session in list(self._sessions.values()):
            if now - session.renewed_at > self._session_seconds:
                self._fail_session(session.identity, f"not renewed for {self._session_seconds:g} s")
                continue
            while session.prepared:
                oldest = next(iter(session.prepared))
                if session.prepared[oldest].expires_at > now:
                    break
                session.pop_prepared(oldest)

    # -- messages -----------------------------------------------------------------------------------------------

    def _handle(self, session: Session, message: ToWorker, size: int) -> None:  # noqa: C901  one arm per message
        match message:
            case Prepare() | Tokenize() | Detokenize():
                self._prepare(session, message, size)
            case Submit():
                self._submit(session, message)
            case Extend(request_id, allowance, is_final):
                if (request := session.requests.get(request_id)) is not None:
                    self._inbox.put(ExtendCommand(request, allowance, is_final))
            case Cancel(request_id):
                session.pop_prepared(request_id)
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
                self._end_session(session, "its gateway closed it")
            case Hello():
                raise ProtocolError("a second hello")

    def _prepare(self, session: Session, message: Prepare | Tokenize | Detokenize, size: int) -> None:
        try:
            deployment = self._serving.find(message.deployment)
            call = PromptCall(session.identity, message, deployment, size, self._clock())
            if not isinstance(message, Prepare):
                self._queue(call)
            elif (adapter := deployment.adapter_in_memory(message.request)) is None:
                self._queues.adapters.put(call)
            else:
                self._find_grammar(replace(call, adapter=adapter))
        except EngineError as error:
            self._send(session, refusal_of(error, call=message.call))

    def _find_grammar(self, call: PromptCall) -> None:
        """Queue the call of a request whose adapter is in memory; one that is guided with its grammar."""
        grammars = call.deployment.grammars
        guidance = None if grammars is None else guidance_of(call)
        if guidance is None or grammars is None:
            self._queue(call)
        elif (grammar := grammars.known(guidance)) is not None:
            self._queue(replace(call, grammar=grammar))
        else:
            self._queues.grammars.put(call)

    def _queue(self, call: PromptCall) -> None:
        """Have a short prompt prepared here, a long one in a thread for those."""
        if call.size > SHORT_BYTES:
            self._queues.prompts.put(call)
        else:
            self._short.append(call)

    def _prepare_next(self) -> None:
        """Prepare one short prompt, if any waits: tokens and submitted requests needn't wait for more than one."""
        call = self._short.popleft() if self._short else None
        if call is None or call.session not in self._sessions:
            return
        outcome: Outcome | EngineError
        try:
            with self._budget.spent(call.payer):
                outcome = outcome_of(call)
        except EngineError as error:
            outcome = error
        self._finish_prompt(PromptResult(call, outcome))

    def _finish_prompt(self, result: PromptResult) -> None:
        """Answer the call of a prompt, or go on with one whose adapter is loaded or whose grammar is compiled, if its
        session still exists.
        """
        call, outcome = result.call, result.outcome
        session = self._sessions.get(call.session)
        if session is None:
            return
        try:
            match outcome:
                case EngineError():
                    raise outcome
                case Prompt():
                    self._keep_prompt(session, call, outcome)
                case Tokens():
                    self._send(session, TokensReply(call.message.call, outcome.ids, outcome.texts))
                case Text():
                    self._send(session, TextReply(call.message.call, outcome.text))
                case LoadedAdapter():
                    self._find_grammar(replace(call, adapter=outcome.key))
                case _:
                    self._queue(replace(call, grammar=outcome))
        except EngineError as error:
            self._send(session, refusal_of(error, call=call.message.call))

    def _keep_prompt(self, session: Session, call: PromptCall, prompt: Prompt) -> None:
        """Keep the prompt until its Submit and answer the call; raise `OverloadedError` for too many bytes."""
        message, deployment = call.message, call.deployment
        size = call.size + BYTES_PER_TOKEN * prompt.tokens
        if session.prepared_bytes + size > self._session_bytes:
            raise OverloadedError("the gateway has too many prepared requests here")
        prepared = PreparedPrompt(deployment, prompt, self._clock() + self._prepared_seconds, size)
        session.add_prepared(message.request.id, prepared)
        self._send(session, PreparedReply(message.call, prompt.tokens, prompt.most_output, prompt.not_enforced))

    def _submit(self, session: Session, message: Submit) -> None:
        prepared = session.pop_prepared(message.id)
        try:
            if message.id in self._registry:
                raise InvalidRequestError("the request is running already")
            if self._record.is_closed(message.id):
                raise UnpreparedError("the request has ended, or was declared as never run", code="request_closed")
            if prepared is None or prepared.expires_at <= self._clock():
                raise UnpreparedError("the request is not prepared here")
            if self._serving.find(prepared.deployment.id) is not prepared.deployment:
                raise UnpreparedError("the deployment was loaded anew")
        except EngineError as error:
            self._send(session, refusal_of(error, request_id=message.id))
            return
        request = Request(
            message.id, session.identity, prepared.deployment, prepared.prompt, message.allowance, message.is_final
        )
        if (resumed := prepared.prompt.request.resumed) is not None:
            request.usage = resumed.usage
        # Before the command, so that `usage_of` answers Running until the record has the end.
        self._registry[message.id] = request
        session.requests[message.id] = request
        self._inbox.put(SubmitCommand(request))

    def _evidence(self, request_id: str) -> Evidence:
        # The step thread records an end before it removes the request from the registry: what is in neither never ran.
        request = self._registry.get(request_id)
        return Running(request.usage) if request is not None else self._record.evidence(request_id)

    def _drain(self, session: Session, message: Drain) -> None:
        deployment = self._serving.deployments.get(message.deployment)
        deployments = (deployment,) if deployment is not None else ()
        deadline = self._clock() + message.seconds
        done = partial(self._enqueue, session.identity, Drained(message.call))
        self._inbox.put(DrainCommand(deployments, deadline, done))
