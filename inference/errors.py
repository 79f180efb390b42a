"""Errors of the engine seam. Each carries a stable `code`, a sentence for the client and the field at fault, if any."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error that an engine raises. `param` names the request's field at fault; `may_have_run` says that
    the engine may have computed something for the request.
    """

    code = "engine_error"
    may_have_run = False

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


class LimitedError(OverloadedError):
    """The request's tenant has used up what one tenant may take here, for `seconds` to come. Nothing ran."""

    code = "preparation_limit_exceeded"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None, seconds: int = 1) -> None:
        super().__init__(message, code=code, param=param)
        self.seconds = seconds


class DrainingError(OverloadedError):
    """The engine is about to stop and takes no new work."""

    code = "engine_draining"


class UnpreparedError(EngineError):
    """The worker has no prepared request of this id (any more). Nothing ran: prepare it again."""

    code = "unprepared"


class UnreachableError(EngineError):
    """The engine doesn't answer: whether the request ran is unknown."""

    code = "engine_unreachable"
    may_have_run = True


class ModelRefusedError(EngineError):
    """The model can't be loaded or served correctly; the message gives the reason, for operators."""

    code = "model_refused"


class DeviceLostError(EngineError):
    """The device can't be used any more by this process: the worker ends, and a new one may go on."""

    code = "device_lost"
