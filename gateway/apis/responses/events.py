"""A generation as events of the Responses API: for SSE and websockets; the last event's response is the JSON answer."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
from msgspec import UNSET

from gateway.apis.responses.response_object import (
    Account,
    FunctionCallOutput,
    IncompleteDetails,
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningOutput,
    ReasoningText,
    Response,
    ResponseFault,
    Status,
    begun,
)
from gateway.apis.responses.wire import ResponseRequest
from gateway.apis.shared.answer import failure_of
from gateway.durable.delivery import Outcome
from gateway.generation.generation import Generation
from gateway.generation.items import Answer, Change, Item, ItemKind, Narrator, What
from gateway.wire.logprobs import token_logprobs
from gateway.wire.usage import credits_text, response_usage
from inference.types import Delta, FinishReason, Usage

Event = dict[str, Any]

QUEUED_EVENTS = 2

_PREFIXES = {ItemKind.MESSAGE: "msg", ItemKind.REASONING: "rs", ItemKind.CALL: "fc"}


def queued(response: Response) -> Iterator[Event]:
    """Return the events of a response that is to be made in the background: those before any of `ResponseEvents`."""
    yield {"type": "response.created", "sequence_number": 0, "response": response}
    yield {"type": "response.queued", "sequence_number": 1, "response": response}


def only_end(status: str, response: object, number: int = QUEUED_EVENTS) -> Event:
    """Return the event that ends a response of that status of which no other is known: one that couldn't begin, or
    whose events are gone.
    """
    kind = "incomplete" if status == "cancelled" else status
    return {"type": f"response.{kind}", "sequence_number": number, "response": response}


def unanswered(response: Response) -> Iterator[Event]:
    """Return the events of a response that is complete without an answer, since none was asked for."""
    yield {"type": "response.created", "sequence_number": 0, "response": msgspec.structs.replace(response)}
    yield {"type": "response.in_progress", "sequence_number": 1, "response": msgspec.structs.replace(response)}
    response.status, response.completed_at = "completed", int(time.time())
    response.usage = response_usage(Usage(), 0)
    yield {"type": "response.completed", "sequence_number": 2, "response": response}


class ResponseEvents:
    """The events of one response: `opening`, `delta` for each piece of the answer, `closing`. They are numbered in this
    order.

    `with_account` adds the `sluice` block to the last event and makes `usage` events possible.
    """

    def __init__(
        self,
        request: ResponseRequest,
        generation: Generation,
        *,
        with_account: bool = False,
        is_stored: bool = False,
        in_background: bool = False,
    ) -> None:
        self._generation = generation
        self._with_account = with_account
        self._response = begun(
            request,
            identifier=response_id(generation),
            created=generation.created,
            model=generation.route.model,
            is_stored=is_stored,
            in_background=in_background,
            not_enforced=generation.not_enforced,
        )
        tools = generation.intent.tools
        self._functions = {} if tools is None else {function.name: function for function in tools.functions}
        self._is_ended = False
        self._narrator = Narrator()
        self._number = QUEUED_EVENTS if in_background else 0

    @property
    def response_id(self) -> str:
        """The id that clients know the response by."""
        return self._response.id

    @property
    def response(self) -> Response:
        """The response as far as it is known."""
        return self._response

    @property
    def answer(self) -> Answer:
        """The answer so far."""
        return self._narrator.answers[0]

    def opening(self) -> Iterator[Event]:
        """Return the events that create the response; one in the background is created already."""
        if not self._number:
            yield self._event("response.created", response=msgspec.structs.replace(self._response))
        yield self._event("response.in_progress", response=msgspec.structs.replace(self._response))

    def delta(self, delta: Delta) -> list[Event]:
        """Return the events of a piece of the answer; an item that it begins or ends is told too."""
        return [event for change in self._narrator.take(delta) for event in self._told(change)]

    def usage(self, usage: Usage) -> Event:
        """Return Sluice's own event with tokens and credits so far. For clients that asked for it: SDKs don't know
        it.
        """
        counted = response_usage(usage, self._generation.charge_so_far(usage))
        return self._event("sluice.usage", response_id=self.response_id, usage=counted)

    def closing(self, outcome: Outcome) -> Iterator[Event]:
        """Return the events that end the last item and the response: completed, incomplete or failed."""
        response = self.ended(outcome)
        if response.status != "failed":
            for change in self._narrator.close(with_message=True):
                yield from self._told(change)
            yield from self._item_ended(self.answer.items[-1], response.output[-1])
        kind = "incomplete" if response.status == "cancelled" else response.status
        yield self._event(f"response.{kind}", response=response)

    def collect(self, delta: Delta) -> None:
        """Take a piece of an answer without events."""
        if not self._narrator.extend(delta):
            self._narrator.take(delta)

    def ended(self, outcome: Outcome) -> Response:
        """Return the response as a whole, once it has been told or has collected all pieces; always the same object."""
        if not self._is_ended:
            self._is_ended = True
            self._end(outcome)
        return self._response

    def _end(self, outcome: Outcome) -> None:
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
            response.output = self._output("incomplete")
            return
        if outcome.reason is FinishReason.STOP:
            response.status = "completed"
            response.completed_at = int(time.time())
        elif _is_stopped(outcome):
            response.status = "cancelled"
            response.incomplete_details = IncompleteDetails("cancelled")
        else:
            response.status = "incomplete"
            response.incomplete_details = IncompleteDetails("max_output_tokens", outcome.sluice_reason or UNSET)
        last: Status = "completed" if response.status == "completed" else "incomplete"
        response.output = self._output(last) or [self._rendered(Item(ItemKind.MESSAGE), last)]

    def _output(self, last: Status) -> list[OutputItem]:
        """Return all items; those before the last are complete."""
        items = self.answer.items
        return [self._rendered(item, last if item is items[-1] else "completed") for item in items]

    # -- one item -------------------------------------------------------------------------------------------------

    def _told(self, change: Change) -> Iterable[Event]:
        item = change.item
        match change.what:
            case What.GREW:
                return (self._grown(change),)
            case What.BEGAN:
                return self._item_begun(item)
            case What.ENDED:
                return self._item_ended(item, self._rendered(item, "completed"))

    def _grown(self, change: Change) -> Event:
        item = change.item
        match item.kind:
            case ItemKind.MESSAGE:
                logprobs = token_logprobs(change.logprobs)
                return self._part_event("response.output_text.delta", item, delta=change.text, logprobs=logprobs)
            case ItemKind.REASONING:
                return self._part_event("response.reasoning_text.delta", item, delta=change.text)
            case ItemKind.CALL:
                kind = "response.function_call_arguments.delta"
                return self._event(kind, item_id=self._id(item), output_index=item.number, delta=change.text)

    def _item_begun(self, item: Item) -> Iterator[Event]:
        yield self._event(
            "response.output_item.added", output_index=item.number, item=self._rendered(item, "in_progress")
        )
        if item.kind is not ItemKind.CALL:
            yield self._part_event("response.content_part.added", item, part=_content(item, ""))

    def _item_ended(self, item: Item, rendered: OutputItem) -> Iterator[Event]:
        text = item.text
        match item.kind:
            case ItemKind.MESSAGE:
                logprobs = token_logprobs(item.logprobs)
                yield self._part_event("response.output_text.done", item, text=text, logprobs=logprobs)
            case ItemKind.REASONING:
                yield self._part_event("response.reasoning_text.done", item, text=text)
            case ItemKind.CALL:
                yield self._event(
                    "response.function_call_arguments.done",
                    item_id=self._id(item),
                    output_index=item.number,
                    name=self._name(item)[0],
                    arguments=text,
                )
        if item.kind is not ItemKind.CALL:
            yield self._part_event("response.content_part.done", item, part=_content(item, text))
        yield self._event("response.output_item.done", output_index=item.number, item=rendered)

    def _rendered(self, item: Item, status: Status) -> OutputItem:
        """Return the item as it is now; one in progress is told without what it has."""
        identifier, is_begun = self._id(item), status == "in_progress"
        match item.kind:
            case ItemKind.MESSAGE:
                content = [] if is_begun else [_output_text(item, item.text)]
                return OutputMessage(id=identifier, status=status, content=content)
            case ItemKind.REASONING:
                thought = [] if is_begun else [ReasoningText(item.text)]
                return ReasoningOutput(id=identifier, status=status, content=thought)
            case ItemKind.CALL:
                written = "" if is_begun else item.text
                name, namespace = self._name(item)
                return FunctionCallOutput(
                    id=identifier,
                    status=status,
                    call_id=item.call_id,
                    name=name,
                    arguments=written,
                    namespace=namespace or UNSET,
                )

    def _name(self, item: Item) -> tuple[str, str]:
        """Return what the client calls the function that was called, and its namespace."""
        function = self._functions.get(item.name)
        return (item.name, "") if function is None else (function.own_name, function.namespace)

    def _id(self, item: Item) -> str:
        place = f"_{item.number}" if item.number else ""
        return f"{_PREFIXES[item.kind]}_{self._generation.id.hex}{place}"

    def _part_event(self, kind: str, item: Item, **fields: Any) -> Event:
        return self._event(kind, item_id=self._id(item), output_index=item.number, content_index=0, **fields)

    def _event(self, kind: str, **fields: Any) -> Event:
        event = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return event


def _content(item: Item, text: str) -> OutputText | ReasoningText:
    if item.kind is ItemKind.REASONING:
        return ReasoningText(text)
    return _output_text(item, text)


def _output_text(item: Item, text: str) -> OutputText:
    return OutputText(text, logprobs=token_logprobs(item.logprobs) if text else [])


def _is_stopped(outcome: Outcome) -> bool:
    """Whether the client itself stopped the generation."""
    return outcome.reason is FinishReason.CANCELLED and outcome.error is None


def response_id(generation: Generation) -> str:
    """The request's id as Responses shows it."""
    return f"resp_{generation.id.hex}"
