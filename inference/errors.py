"""Errors of the engine seam. Each carries a stable `code` and a sentence for the client."""

from __future__ import annotations


class EngineError(Exception):
    """Root of what an engine raises; `code` is stable, the message is fit for a client."""

    code = "engine_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        if code is not None:
            self.code = code


class InvalidRequestError(EngineError):
    """The request can never succeed on this engine: too long, unknown token id, wrong kind. Nothing ran."""

    code = "invalid_request"


class OverloadedError(EngineError):
    """The engine takes no more work now; trying again later may help. Nothing ran."""

    code = "engine_overloaded"


class DrainingError(OverloadedError):
    """The engine is about to stop and takes no new work."""

    code = "engine_draining"


class UnpreparedError(EngineError):
    """Submit of an id that the worker doesn't know (any more). Nothing ran: prepare again."""

    code = "unprepared"


class UnreachableError(EngineError):
    """No answer from the engine: nothing is known about the request."""

    code = "engine_unreachable"


class ModelRefusedError(EngineError):
    """The model can't be served correctly; the message gives the reason."""

    code = "model_refused"
