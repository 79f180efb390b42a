"""Runs requests with several answers: begins, extends, ends and tells the sequences of each as one request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inference.core.output import Output
from inference.core.scheduler import Scheduler
from inference.errors import InvalidRequestError
from inference.local.choices import Choices
from inference.text.prepare import Prompt
from inference.types import FinishReason, SamplingParams


class SubmitSequence(Protocol):
    """Queues one answer's sequence `name`, the `index`-th of its request."""

    def __call__(
        self,
        prompt: Prompt,
        name: str,
        sampling: SamplingParams,
        seed: int,
        allowance: int,
        *,
        is_final: bool,
        index: int,
    ) -> None: ...


class Siblings:
    """The requests with several answers on one scheduler.

    `pause_seconds` is how long one waits at its allowance, on `clock`.
    """

    def __init__(
        self, scheduler: Scheduler, submit: SubmitSequence, clock: Callable[[], float], pause_seconds: float
    ) -> None:
        self._scheduler = scheduler
        self._submit = submit
        self._clock = clock
        self._pause_seconds = pause_seconds
        self._requests: dict[str, Choices] = {}
        self._members: dict[str, Choices] = {}  # by the names of the sequences that have not ended
        self._outputs: list[Output] = []

    def submit(self, prompt: Prompt, seed: int, allowance: int, *, is_final: bool) -> None:
        """Begin the first answer; raise what the scheduler raises, having kept nothing then."""
        if allowance < 1:  # else none would begin, and the request never end
            raise InvalidRequestError("a generation needs room for at least one token", param="max_tokens")
        choices = Choices(prompt, seed, allowance, self._clock(), is_final=is_final)
        self._begin(choices)
        self._requests[choices.request_id] = choices

    def extend(self, request_id: str, allowance: int, *, is_final: bool) -> bool:
        """Permit the answers `allowance` tokens together; False when there is no such request here."""
        choices = self._requests.get(request_id)
        if choices is None:
            return False
        choices.limit = max(choices.limit, allowance)
        choices.is_final = is_final
        self._share(choices)
        return True

    def cancel(self, request_id: str) -> bool:
        """End all answers of a request; False when there is no such request here."""
        choices = self._requests.get(request_id)
        if choices is None:
            return False
        self._cancel(choices)
        self._end_if_over(choices)
        return True

    def cancel_all(self) -> None:
        """End every request."""
        for request_id in list(self._requests):
            self.cancel(request_id)

    def __bool__(self) -> bool:
        """Whether any request here has several answers."""
        return bool(self._members)

    def tell(self, output: Output) -> list[Output]:
        """Return what a sequence's output means to its request; others' outputs are returned as they are.

        The other answers of the request begin, go on or end according to it.
        """
        choices = self._members.get(output.request_id)
        if choices is None:
            return [output]
        outputs = list(choices.tell(output.request_id, output, self._clock()))
        if output.finished is not None:
            del self._members[output.request_id]
            if output.finished.reason in {FinishReason.ERROR, FinishReason.CANCELLED}:
                self._cancel(choices)
        self._share(choices)
        return outputs + self.take_outputs()

    def take_outputs(self) -> list[Output]:
        """Return the last outputs of requests that ended outside a step."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def expire(self) -> None:
        """End the requests whose answers have all waited at their shares for long enough."""
        now = self._clock()
        for choices in list(self._requests.values()):
            if choices.paused_at is not None and now - choices.paused_at >= self._pause_seconds:
                choices.is_final = choices.is_prompt_computed = True
                self._share(choices)

    def next_deadline(self) -> float | None:
        """When `expire` has to be called; None: never."""
        pauses = (choices.paused_at for choices in self._requests.values())
        return min((since + self._pause_seconds for since in pauses if since is not None), default=None)

    def hides(self, name: str) -> bool:
        """Whether `name` is a sequence of which only its request is known outside."""
        return name in self._members and name not in self._requests

    def _begin(self, choices: Choices) -> None:
        for choice, share in choices.to_submit():
            self._submit(
                choices.prompt,
                choice.member,
                choices.member_sampling(choice.index),
                choices.seed,
                share,
                is_final=choices.is_final,
                index=choice.index,
            )
            choice.is_submitted = True
            self._members[choice.member] = choices

    def _cancel(self, choices: Choices) -> None:
        choices.end_unsubmitted(FinishReason.CANCELLED)
        for name in choices.open_members:
            self._scheduler.cancel(name)

    def _share(self, choices: Choices) -> None:
        """Give the answers their shares, begin those that can, and end the request after the last of them."""
        for choice, share in list(choices.shares()):
            if choice.is_submitted:
                self._scheduler.extend(choice.member, share, choices.is_final)
        self._begin(choices)
        if choices.is_final and choices.is_prompt_computed:
            choices.end_unsubmitted(FinishReason.ALLOWANCE)
        if not choices.is_at_limit:
            choices.paused_at = None
        elif choices.paused_at is None:
            choices.paused_at = self._clock()
        self._end_if_over(choices)

    def _end_if_over(self, choices: Choices) -> None:
        if choices.is_over and self._requests.pop(choices.request_id, None) is not None:
            self._outputs += choices.end(self._clock())
