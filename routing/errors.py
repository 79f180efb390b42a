"""Why a request can't be routed."""

from __future__ import annotations


class RoutingError(Exception):
    """No route. `status` and `code` are the API's, `model` what was asked for; 503 may pass later."""

    def __init__(self, status: int, code: str, message: str, *, model: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.model = model
