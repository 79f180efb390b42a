"""``Idempotency-Key``: an endpoint whose answer is kept for 24 hours, so that asking again gets it again.

Around an endpoint, so that none has to know of it; a request without the header pays one look for it.
"""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator, Awaitable, Collection, Iterable, Iterator
from contextlib import aclosing

from base.http import Application, EventStream, Receive, Scope, Send, encode, event, header_of, send_bytes, watching
from billing.limits.types import BucketState, Take, Taken, rate_headers
from gateway.durable.answers import Claim
from gateway.durable.log import Batch, EventLog
from gateway.durable.replays import Answer, DurableRequest
from gateway.errors.faults import READER_TOO_SLOW, refusal_of_limit
from gateway.errors.refusal import Refusal
from gateway.http.access import principal_of
from gateway.http.request import read_body, request_id_of, runtime_of
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime
from gateway.wire.common import TASK_HEADER

MOST_CHARACTERS = 255
MOST_BEHIND = 1 << 20  # bytes
PIECE = 1 << 16
REPLAYED = {"idempotency-replayed": "true"}

_DEPENDS_ON = (TASK_HEADER,)  # headers that change the answer


def durable(endpoint: Application) -> Application:
    """Return `endpoint`, whose answers to POSTs with an ``Idempotency-Key`` are kept.

    The same request under the same key attaches to the answer while it is made, or gets it again; it is generated and
    charged once. With ``Last-Event-ID`` a stream goes on behind that event.
    """

    def keeping(scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        key = header_of(scope, b"idempotency-key")
        if key is None or scope["method"] != "POST":
            return endpoint(scope, receive, send)
        return _answer(endpoint, scope, receive, send, key)

    return keeping


async def _answer(endpoint: Application, scope: Scope, receive: Receive, send: Send, key: str) -> None:
    check_key(key)
    after = last_event_of(scope)
    principal = await principal_of(scope)
    body = await read_body(scope, receive, principal.tenant)
    asked = Claim(principal.tenant, name_of(principal, key), digest_of(scope, body, principal.key_models))
    await runtime_of(scope).replays.require_room(asked)
    async with watching(scope, receive) as client:
        request = DurableRequest(asked, request_id_of(scope), endpoint, scope, body, grace=principal.resume_s)
        answer = await runtime_of(scope).replays.answer(request)
        await write_answer(answer, scope, principal, client, send, after=after)


async def write_answer(
    answer: Answer, scope: Scope, principal: Principal, client: watching, send: Send, *, after: int | None = None
) -> None:
    """Write a kept answer: a stream from behind number `after` on, anything else whole. To have one again takes a
    request of the rate of `principal`, before anything of it is read; a 429 Refusal where there is none left.
    """
    states = () if answer.is_new else await take_request(runtime_of(scope), principal)
    again = {} if answer.is_new else {**REPLAYED, **dict(rate_headers(states))}
    async with answer.reading() as log:
        head = await log.begun()
        headers = {**dict(head.headers), **again}
        if not head.is_stream:
            body = await log.whole()
            client.stop()
            await send_bytes(send, head.status, body, headers.pop("content-type", "application/octet-stream"), headers)
            return
        await check_resumable(log, after)
        own = {name: value for name, value in headers.items() if name not in EventStream.HEADERS}
        async with EventStream(send, own) as stream, aclosing(log.read(after)) as batches:
            is_behind = await _write_batches(batches, stream)
            client.stop()
            await stream.finish(_too_slow(scope) if is_behind else b"")


async def take_request(runtime: Runtime, principal: Principal) -> tuple[BucketState, ...]:
    """Take one request of the rates of `principal` and return them; raise the 429.

    A generation takes its own: this is for answers that are had again, and for what runs without a model.
    """
    decision = await runtime.rates.take([Take(bucket, 1) for bucket in principal.request_buckets])
    if not isinstance(decision, Taken):
        raise refusal_of_limit(decision)
    return decision.states


def name_of(principal: Principal, key: str) -> str:
    """Return the name under which the answer of a client's key is kept: the key is its project's."""
    return f"key:{principal.project.hex}:{key}"


def check_key(key: str) -> None:
    """Raise the 400 for a key that is none."""
    if not 0 < len(key) <= MOST_CHARACTERS or not key.isascii() or not key.isprintable():
        text = f"An idempotency key has 1 to {MOST_CHARACTERS} printable ASCII characters."
        raise Refusal(400, "invalid_idempotency_key", text, param="idempotency-key")


def last_event_of(scope: Scope) -> int | None:
    """Return the number of the last event that the client has, None without one; raise the 400 for other text."""
    text = header_of(scope, b"last-event-id")
    if text is None:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 15:
        raise Refusal(400, "invalid_value", "Last-Event-ID is not an event of this stream.", param="last-event-id")
    return int(text)


def digest_of(scope: Scope, body: bytes, models: Collection[str] = ()) -> bytes:
    """Return a digest of all that the answer depends on: `models` are those that the caller's key is limited to."""
    digest = hashlib.sha256()
    parts = [scope["method"].encode(), scope["path"].encode(), scope["query_string"]]
    parts += [(header_of(scope, name) or "").encode() for name in _DEPENDS_ON]
    for part in (*parts, body, *(name.encode() for name in sorted(models))):
        digest.update(len(part).to_bytes(8) + part)
    return digest.digest()


async def _write_batches(batches: AsyncIterator[Batch], stream: EventStream) -> bool:
    """Write all events; True when the reader fell so far behind those that came meanwhile that it was left there.

    What there was before it came it may read as slowly as the server lets anybody.
    """
    is_first = True
    async for batch in batches:
        if not is_first and sum(map(len, batch.events)) > MOST_BEHIND:
            return True
        is_first = False
        for piece in _pieces(batch):
            await stream.write(piece)
    return False


def _pieces(batch: Batch) -> Iterator[bytes]:
    """Yield the events under their numbers, in pieces of about `PIECE` bytes, for connections to pass on in turn."""
    begun, size = 0, 0
    for place, told in enumerate(batch.events):
        size += len(told)
        if size >= PIECE:
            yield numbered(batch.first + begun, batch.events[begun : place + 1])
            begun, size = place + 1, 0
    if begun < len(batch.events):
        yield numbered(batch.first + begun, batch.events[begun:])


def _too_slow(scope: Scope) -> bytes:
    text = "This answer was read too slowly: go on with Last-Event-ID."
    refusal = Refusal(500, READER_TOO_SLOW.code, text)
    return event(encode(scope["exchange"].route.error_body(refusal, request_id_of(scope))), "error")


async def check_resumable(log: EventLog, after: int | None) -> None:
    """Raise the Refusal for a stream that can't be gone on with behind event `after`; a log that lags gets that event
    first.
    """
    if after is None:
        return
    if log.lags:
        await log.reached(after)
    if log.first - 1 <= after < log.next:
        return
    if after < log.first:
        text = "The stream that had this event was lost with its gateway and isn't charged: ask without Last-Event-ID."
        raise Refusal(409, "stream_restarted", text, param="last-event-id", should_retry=False)
    if log.failure is not None:
        raise log.failure
    raise Refusal(400, "invalid_value", "This stream has no such event yet.", param="last-event-id")


def numbered(first: int, events: Iterable[bytes]) -> bytes:
    """Return server-sent events under their numbers."""
    return b"".join([b"id: %d\n%b" % (first + place, told) for place, told in enumerate(events)])
