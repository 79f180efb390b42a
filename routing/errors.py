"""Why a request can't be routed."""

from __future__ import annotations


class RoutingError(Exception):
    """No deployment can serve the request. `code` is one of docs/errors.md, `model` is what the client asked for."""

    def __init__(self, code: str, message: str, *, model: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.model = model
