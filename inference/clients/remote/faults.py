"""Whose fault it is that a server refused a request, or failed at it."""

from __future__ import annotations

from typing import Any

import msgspec

from inference.errors import EngineError, InvalidRequestError, OverloadedError, UnreachableError
from inference.types import EngineFault

_LONGEST = 300  # characters of a server's own words
_NOT_THE_REQUEST = frozenset({401, 403, 404, 405, 407})  # the deployment is set up wrongly: key, path or model
_BUSY = frozenset({408, 425, 429, 503})

STOPPED = EngineFault("engine_stopped", "The engine stopped before the answer was complete.", retryable=True)
SILENT = EngineFault("engine_unreachable", "The engine fell silent before the answer was complete.", retryable=True)
UNREADABLE = EngineFault("engine_error", "The engine sent what can't be read.", retryable=True)
FAILED = EngineFault("row_failed", "The engine failed on this request.")


class AskError(Exception):
    """The endpoint didn't answer a question: `status` is what it said instead, 0 for nothing at all."""

    def __init__(self, status: int, path: str, body: bytes = b"", reason: str = "") -> None:
        super().__init__(reason or f"{path} answers with status {status}")
        self.status = status
        self.refusal: EngineError = refusal_of(status, body) if status else not_connected()


class SetUpError(OverloadedError):
    """The server refuses the deployment as it is set up. Nothing ran, and trying again doesn't help."""

    code = "engine_unavailable"


def refusal_of(status: int, body: bytes) -> EngineError:
    """Return the error for an answer with this status instead of a stream or result.

    What a server says of a request that is wrong is passed on; whatever else it says may name its inside.
    """
    if 400 <= status < 500 and status not in _NOT_THE_REQUEST | _BUSY:
        message = _words(body) or "The engine refused the request."
        is_too_long = "context length" in message or "max_total_tokens" in message or "exceed_context_size" in message
        return InvalidRequestError(message, code="context_length_exceeded" if is_too_long else None)
    if status in _BUSY:
        return OverloadedError("The engine takes no more requests now.")
    if status >= 500:
        return UnreachableError("The engine failed before it began to answer.")
    return SetUpError("The engine can't be used as it is set up.")


def not_connected() -> OverloadedError:
    """Return the error for an endpoint that takes no connection: nothing ran."""
    return OverloadedError("The engine can't be reached.", code="engine_unreachable")


def _words(body: bytes) -> str:
    """Return the message of an error's JSON in any of its usual forms."""
    try:
        answer: Any = msgspec.json.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
    return answer[:_LONGEST] if isinstance(answer, str) else ""
