"""A generation as events of the Responses API: for SSE and websockets; the last event's response is the JSON answer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.edge.answer import failure_of
from gateway.edge.wire.response_object import (
    Account,
    IncompleteDetails,
    OutputMessage,
    OutputText,
    Response,
    ResponseFault,
    Status,
    begun,
)
from gateway.edge.wire.responses import ResponseRequest
from gateway.edge.wire.usage import credits_text, response_usage
from gateway.generation.events import Outcome
from gateway.generation.generation import Generation
from inference.types import FinishReason, Usage

Event = dict[str, Any]


class ResponseEvents:
    """The events of one response: `opening`, `delta` for each piece of text, `closing`. They are numbered in this
    order.

    `with_account` adds the `sluice` block to the last event and makes `usage` events possible.
    """

    def __init__(self, request: ResponseRequest, generation: Generation, *, with_account: bool = False) -> None:
        self._generation = generation
        self._with_account = with_account
        self._response = begun(
            request, identifier=response_id(generation), created=generation.created, model=generation.route.model
        )
        self._item = f"msg_{generation.id.hex}"
        self._texts: list[str] = []
        self._number = 0

    @property
    def response_id(self) -> str:
        """The id that clients know the response by."""
        return self._response.id

    @property
    def text(self) -> str:
        """All text so far."""
        return "".join(self._texts)

    def opening(self) -> Iterator[Event]:
        """Return the events that create the response and begin its one message."""
        yield self._event("response.created", response=msgspec.structs.replace(self._response))
        yield self._event("response.in_progress", response=msgspec.structs.replace(self._response))
        message = OutputMessage(id=self._item, status="in_progress", content=[])
        yield self._event("response.output_item.added", output_index=0, item=message)
        yield self._part_event("response.content_part.added", part=OutputText(""))

    def delta(self, text: str) -> Event:
        """Return the event of a piece of text."""
        self._texts.append(text)
        return self._part_event("response.output_text.delta", delta=text, logprobs=[])

    def usage(self, usage: Usage) -> Event:
        """Return Sluice's own event with tokens and credits so far. For clients that asked for it: SDKs don't know
        it.
        """
        counted = response_usage(usage, self._generation.charge_so_far(usage))
        return self._event("sluice.usage", response_id=self.response_id, usage=counted)

    def closing(self, outcome: Outcome) -> Iterator[Event]:
        """Return the events that end the message and the response: completed, incomplete or failed."""
        response = self._ended(outcome)
        if response.status != "failed":
            text = self.text
            yield self._part_event("response.output_text.done", text=text, logprobs=[])
            yield self._part_event("response.content_part.done", part=OutputText(text))
            yield self._event("response.output_item.done", output_index=0, item=response.output[0])
        kind = "incomplete" if response.status == "cancelled" else response.status
        yield self._event(f"response.{kind}", response=response)

    def whole(self, text: str, outcome: Outcome) -> Response:
        """Return the ended response as a whole, for an answer without events."""
        self._texts = [text]
        return self._ended(outcome)

    def _ended(self, outcome: Outcome) -> Response:
        response = self._response
        response.usage = response_usage(outcome.usage, outcome.charge)
        response.model = self._generation.route.model  # a request may have moved to another before its first token
        if self._with_account:
            response.sluice = Account(
                route=self._generation.explain(),
                prompt_tokens=self._generation.prompt_tokens,
                ttft_ms=outcome.ttft_ms,
                duration_ms=outcome.duration_ms,
                waived=outcome.is_waived,
                available=credits_text(outcome.available),
                available_micro=outcome.available,
            )
        failure = None if _is_stopped(outcome) else failure_of(outcome)
        if failure is not None:
            response.status = "failed"
            response.error = ResponseFault(failure.code, failure.message)
            response.output = [self._message("incomplete")] if self._texts else []
            return response
        if outcome.reason is FinishReason.STOP:
            response.status = "completed"
            response.completed_at = int(time.time())
        elif _is_stopped(outcome):
            response.status = "cancelled"
            response.incomplete_details = IncompleteDetails("cancelled")
        else:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails("max_output_tokens", outcome.sluice_reason or UNSET)
        response.output = [self._message("completed" if response.status == "completed" else "incomplete")]
        return response

    def _message(self, status: Status) -> OutputMessage:
        return OutputMessage(id=self._item, status=status, content=[OutputText(self.text)])

    def _part_event(self, kind: str, **fields: Any) -> Event:
        return self._event(kind, item_id=self._item, output_index=0, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def _is_stopped(outcome: Outcome) -> bool:
    """Whether the client itself stopped the generation."""
    return outcome.reason is FinishReason.CANCELLED and outcome.error is None


def response_id(generation: Generation) -> str:
    """The request's id as Responses shows it."""
    return f"resp_{generation.id.hex}"
