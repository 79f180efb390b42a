"""Whose fault it is that a server refused a request, or failed at it."""

from __future__ import annotations

import os
import socket
import ssl
from typing import Any

import msgspec

from inference.errors import EngineError, InvalidRequestError, OverloadedError, UnreachableError
from inference.types import EngineFault

_LONGEST = 300  # characters of a server's own words
_SAYS_WHY = frozenset({400, 409, 413, 415, 422, 431, 451})  # the request's fault, in words for its client
_SET_UP = frozenset({401, 403, 404, 405, 407})  # the deployment is set up wrongly: key, path or model
_BUSY = frozenset({408, 425, 429, 503})
_OPERATORS = frozenset({402, 410, 421, 423, 426})  # what the server has against its operator
_FAILED = 424  # what TGI says of a generation that failed

_REFUSED = "The engine refused the request."
_BAD_REQUEST = ("BadRequestError", "invalid_request_error")  # types of an error

# What servers say of a prompt that is too long, alone or with its answer.
_TOO_LONG = (
    "context length",
    "max_total_tokens",
    "exceed_context_size",
    "available context size",
    "`inputs` must have less than",
    "`inputs` tokens + `max_new_tokens` must be",
)

STOPPED = EngineFault("engine_stopped", "The engine stopped before the answer was complete.", retryable=True)
SILENT = EngineFault("engine_unreachable", "The engine fell silent before the answer was complete.", retryable=True)
UNREADABLE = EngineFault("engine_error", "The engine sent what can't be read.", retryable=True)
FAILED = EngineFault("row_failed", "The engine failed on this request.")


class AskError(Exception):
    """The endpoint didn't answer a question: `status` is what it said instead, 0 for nothing at all."""

    def __init__(self, status: int, path: str, body: bytes = b"", reason: str = "") -> None:
        super().__init__(reason or f"{path} answers with status {status}")
        self.status = status
        self.refusal: EngineError = refusal_of(status, words(body)) if status else not_connected()


def reason_of(error: OSError) -> str:
    """Return in words why a server wasn't reached, or what became of the connection."""
    match error:
        case ConnectionRefusedError():
            return "nothing listens at its address"
        case socket.gaierror():
            return f"its name isn't known: {error.strerror}"
        case ssl.SSLCertVerificationError():
            return f"its certificate isn't trusted: {error.verify_message}"
        case ConnectionError():
            return "it closed the connection"
        case OSError(errno=int() as number) if not isinstance(error, ssl.SSLError):
            return os.strerror(number).lower()
    text = str(error) or type(error).__name__
    return "none of its addresses answers" if text.startswith("Multiple exceptions") else text


class SetUpError(OverloadedError):
    """The server refuses the deployment as it is set up. Nothing ran, and trying again doesn't help."""

    code = "engine_unavailable"


class DeniedError(EngineError):
    """The server takes nothing for a reason of its operator's, such as credit that is used up there. Nothing ran."""

    code = "engine_unavailable"


class UnclearError(OverloadedError):
    """The server gave a request up and doesn't say whose fault that is. It may have read it.

    Neither its client is told that it did wrong, nor is it held against the endpoint: else requests that a server can't
    take would keep it from everybody.
    """

    code = "engine_unavailable"
    may_have_run = True


def refusal_of(status: int, message: str) -> EngineError:
    """Return the error for an answer with this status, and the server's `message`, instead of a stream or result.

    What a server says of a request that is wrong is passed on; whatever else it says may name its inside, or what its
    operator has there.
    """
    if status in _SAYS_WHY:
        is_too_long = any(sign in message for sign in _TOO_LONG)
        code = "context_length_exceeded" if is_too_long else None
        return InvalidRequestError(message or _REFUSED, code=code)
    if status in _BUSY:
        return OverloadedError("The engine takes no more requests now.")
    if status == _FAILED or status >= 500:
        return UnreachableError("The engine failed before it began to answer.")
    if status in _SET_UP or status < 400:
        return SetUpError("The engine can't be used as it is set up.")
    if status in _OPERATORS:
        return DeniedError("The engine takes no requests now.")
    return InvalidRequestError(_REFUSED)  # as a filter in front of it may: held against it, it would be kept from all


def refusal_in(error: Any) -> EngineError | None:
    """Return the error for what a stream says instead of an answer; None where it doesn't say whose fault that is."""
    status = _status_in(error)
    return refusal_of(status, message_in(error)) if status else None


def failed() -> UnreachableError:
    """Return the error for a server that failed, as far as is known."""
    return UnreachableError("The engine failed before it began to answer.", code=FAILED.code)


def not_connected() -> OverloadedError:
    """Return the error for an endpoint that takes no connection: nothing ran."""
    return OverloadedError("The engine can't be reached.", code="engine_unreachable")


def words(body: bytes) -> str:
    """Return the message of an error's JSON in any of its usual forms."""
    try:
        return message_in(msgspec.json.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return ""


def message_in(answer: Any) -> str:
    """Return the message of an error as it was decoded."""
    for name in ("error", "message", "detail"):
        if isinstance(answer, dict) and name in answer:
            answer = answer[name]
    return answer[:_LONGEST] if isinstance(answer, str) else ""


def _status_in(error: Any) -> int:
    """Return the status that an error's JSON names, 0 for none."""
    if not isinstance(error, dict):
        return 0
    for name in ("code", "status"):
        status = error.get(name)
        if isinstance(status, int) and 400 <= status < 600:
            return status
    return 400 if error.get("type") in _BAD_REQUEST else 0
