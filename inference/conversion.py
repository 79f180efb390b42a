"""Between the protocol's messages and what the engine seam knows: errors, events and evidence."""

from __future__ import annotations

from inference.errors import (
    DrainingError,
    EngineError,
    InvalidRequestError,
    LimitedError,
    OverloadedError,
    UnpreparedError,
    UnreachableError,
)
from inference.protocol import Refused, UsageReply, WireDelta, WireEvent, WireFinished, WireStarted, WireVector
from inference.types import (
    Delta,
    Event,
    Evidence,
    Finished,
    Lost,
    NothingRan,
    Running,
    Started,
    Usage,
    Vector,
)

TOKEN_LIMIT = 2**31  # a usage record holds a count of one token class below this

_KINDS: dict[str, type[EngineError]] = {
    "invalid": InvalidRequestError,
    "draining": DrainingError,
    "overloaded": OverloadedError,
    "limited": LimitedError,
    "unprepared": UnpreparedError,
    "unreachable": UnreachableError,
}


def refusal_of(error: EngineError, *, call: int = 0, request_id: str = "") -> Refused:
    """Return the message that refuses a call or a submitted request with `error`."""
    kind = next((name for name, cls in _KINDS.items() if type(error) is cls), "error")
    seconds = error.seconds if isinstance(error, LimitedError) else 0
    return Refused(error.code, error.message, kind, call, request_id, error.param, seconds)


def error_of(refused: Refused) -> EngineError:
    """Return the exception that `refused` stands for."""
    kind = _KINDS.get(refused.kind, EngineError)
    if kind is LimitedError:
        return LimitedError(refused.message, code=refused.code, param=refused.param, seconds=refused.seconds)
    return kind(refused.message, code=refused.code, param=refused.param)


def event_of(wire: WireEvent) -> Event:
    """Return the seam's event; raise `EngineError` for an impossible usage."""
    match wire:
        case WireDelta():
            usage = _checked(Usage(wire.input, wire.cache_read, wire.output, wire.reasoning))
            return Delta(
                wire.text,
                usage,
                wire.tokens,
                wire.index,
                wire.ended,
                wire.logprobs,
                wire.prompt_logprobs,
                wire.thought,
                wire.calls,
                wire.stop,
            )
        case WireStarted():
            return Started(_checked(Usage(cache_read=wire.cached)).cache_read, wire.seed)
        case WireVector():
            return Vector(wire.index, wire.data, wire.labels)
        case WireFinished():
            _checked(wire.finished.usage)
            return wire.finished


def _checked(usage: Usage) -> Usage:
    """Return `usage`; raise `EngineError` when a count is negative or reaches `TOKEN_LIMIT`."""
    # The bitwise or is negative if one count is, and at least as large as the largest.
    if not 0 <= usage.input | usage.cache_read | usage.output | usage.reasoning < TOKEN_LIMIT:
        raise EngineError(f"The engine counted what can't be: {usage}.", code="usage_impossible")
    return usage


def evidence_reply(call: int, evidence: Evidence) -> UsageReply:
    """Return the answer to call number `call`."""
    match evidence:
        case Finished():
            return UsageReply(call, "finished", finished=evidence)
        case Running():
            return UsageReply(call, "running", usage=evidence.usage)
        case NothingRan():
            return UsageReply(call, "nothing_ran")
        case Lost():
            return UsageReply(call, "lost")


def evidence_of(reply: UsageReply) -> Evidence:
    """Return the evidence in `reply`; raise `EngineError` for an unknown state or an impossible usage."""
    if reply.state == "finished" and reply.finished is not None:
        _checked(reply.finished.usage)
        return reply.finished
    if reply.state == "running":
        return Running(_checked(reply.usage or Usage()))
    if reply.state == "nothing_ran":
        return NothingRan()
    if reply.state == "lost":
        return Lost()
    raise EngineError(f"The engine gave evidence of an unknown kind: {reply.state!r}.")
