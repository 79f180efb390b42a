"""An endpoint of the API, declared at its function: its method and path, the scope that a key needs, its request and
its answer. Routes, `Idempotency-Key`, the OpenAPI document and the reference are made from the declarations.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Generic, TypeVar
from uuid import UUID

import msgspec

from base.http import Receive, Scope, Send, header_of, send_json
from gateway.errors.refusal import ErrorBody, openai_error
from gateway.http.access import note_model, principal_of
from gateway.http.request import query_of, read_body, request_id_of, runtime_of
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime
from gateway.wire.common import TASK_HEADER
from gateway.wire.decode import decode
from tenancy.services import scopes

Struct = type[msgspec.Struct]
T = TypeVar("T")
R = TypeVar("R")

_VARIABLE = re.compile(r"\{(\w+):\w+\}")


class Work(Enum):
    """An engine's work for a request."""

    NOTHING = auto()
    COUNTS = auto()
    """It is routed and takes one of the tenant's requests; nothing runs or is charged."""
    QUOTES = auto()
    """It is routed and priced and takes one of the tenant's requests; nothing runs or is charged."""
    GENERATES = auto()
    """It is routed, runs and is charged."""


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """A request to an endpoint by a caller whose key may make it, its body or query decoded."""

    scope: Scope
    receive: Receive
    send: Send
    principal: Principal
    request: T

    @property
    def id(self) -> UUID:
        """The request's id."""
        return request_id_of(self.scope)

    @property
    def named(self) -> str:
        """The path's variable, percent-decoded."""
        found: str = self.scope["url_route"]["kwargs"]["id"]
        return found

    @property
    def runtime(self) -> Runtime:
        """The runtime of this process."""
        return runtime_of(self.scope)

    @property
    def task_header(self) -> str | None:
        """The task that the client names in a header."""
        return header_of(self.scope, TASK_HEADER)

    async def in_database(self, work: Callable[[], R]) -> R:
        """Return what `work` does with the database, on a thread, in the tenant's turn."""
        return await self.runtime.threads.run(work, owner=self.principal.tenant)


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One method of a path, and an ASGI application for its requests."""

    method: str
    path: str
    """Its variable, if any, is ``{id}``, or ``{id:path}`` where it may have slashes."""
    scope: str
    function: Callable[[Call[Any]], Awaitable[object]]
    summary: str
    takes: Struct | None
    form: Struct | None
    gives: Struct | None
    streams: Struct | None
    work: Work
    keeps: bool
    example: Mapping[str, Any] | None
    error_body: ErrorBody
    caller: Callable[[Scope], Awaitable[Principal]] = principal_of

    @property
    def name(self) -> str:
        """The operation's id."""
        return self.function.__name__

    @property
    def description(self) -> str:
        """The function's docstring, which is written for clients."""
        return " ".join(inspect.cleandoc(self.function.__doc__ or "").split())

    @property
    def shown_path(self) -> str:
        """The path as documents, logs and metrics have it."""
        return _VARIABLE.sub(r"{\1}", self.path)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.answer(await self.caller(scope), scope, receive, send)

    async def answer(self, principal: Principal, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request of that caller, who may make it."""
        request = None
        if self.takes is not None and self.method == "POST":
            request = decode(self.takes, await read_body(scope, receive, principal.tenant))
            note_model(scope, getattr(request, "model", ""))
        elif self.takes is not None:
            request = query_of(scope, self.takes)
        answer = await self.function(Call(scope, receive, send, principal, request))
        if answer is not None:
            await send_json(send, 200, answer)


def endpoint(
    method: str,
    path: str,
    *,
    scope: str,
    summary: str,
    takes: type[T] | None = None,
    gives: type[R] | None = None,
    streams: Struct | None = None,
    form: Struct | None = None,
    work: Work = Work.NOTHING,
    keeps: bool | None = None,
    example: Mapping[str, Any] | None = None,
    error_body: ErrorBody = openai_error,
) -> Callable[[Callable[[Call[T]], Awaitable[R | None]]], Endpoint]:
    """Declare an endpoint at its function, which returns the answer, or None where it has sent one itself.

    `takes` is the body of a POST, else the query. An upload has a `form` instead, the fields beside its `file`, and its
    function reads it. `gives` is the answer's JSON, None for a file's bytes, and `streams` an event's. A POST `keeps`
    its answer under an ``Idempotency-Key`` unless it says otherwise. Any installation with a chat model answers
    `example`; those of a batch and an adapter need a file.

    Raise ValueError for a scope that there isn't.
    """
    if scope not in scopes.INFERENCE:
        raise ValueError(f"{method} {path}: say which scope a key needs; '{scope}' is none")

    def declared(function: Callable[[Call[T]], Awaitable[R | None]]) -> Endpoint:
        return Endpoint(
            method=method,
            path=path,
            scope=scope,
            function=function,
            summary=summary,
            takes=takes,  # type: ignore[arg-type] # a struct
            form=form,
            gives=gives,  # type: ignore[arg-type] # a struct
            streams=streams,
            work=work,
            keeps=method == "POST" if keeps is None else keeps,
            example=example,
            error_body=error_body,
        )

    return declared
