"""``POST /v1/completions``."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

from msgspec import UNSET, UnsetType

from base.http import encode, event, watching
from base.ids import uuid7
from gateway.apis.completions.wire import Completion, CompletionChoice, CompletionRequest
from gateway.apis.shared.answer import answer, failure_of, generate
from gateway.apis.shared.quote import quoting
from gateway.apis.shared.several import Several
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import Refusal, openai_error
from gateway.generation.generation import Generation, start_generation
from gateway.generation.intent import Intent
from gateway.generation.items import Answer, Change, Narrator, What
from gateway.http.endpoint import Call, Work, endpoint
from gateway.wire.logprobs import completion_logprobs, prompt_logprobs
from gateway.wire.usage import ChatUsage, chat_usage
from inference.types import Delta, FinishReason, Vector

MOST_AT_ONCE = 8  # prompts of one request that run together
NONE: Mapping[int, Refusal] = MappingProxyType({})

_DONE = b"data: [DONE]\n\n"


@endpoint(
    "POST",
    "/v1/completions",
    scope="completions",
    summary="Create a completion",
    takes=CompletionRequest,
    gives=Completion,
    streams=Completion,
    work=Work.GENERATES,
    example={"model": "auto", "prompt": "The capital of France is", "max_tokens": 16},
)
async def completions(call: Call[CompletionRequest]) -> None:
    """Goes on from a text, or from several, without messages and chat template."""
    intents = call.request.intents(call.task_header)
    if len(intents) == 1:
        await generate(call, intents[0], CompletionFormat)
        return
    start = partial(start_generation, call.runtime, call.principal)
    async with watching(call.scope, call.receive) as client:
        first = await start(intents[0], call.id)
        others = [partial(start, intent, uuid7()) for intent in intents[1:]]
        several = Several(first, others, width=min(call.principal.concurrency, MOST_AT_ONCE))
        told = CompletionFormat(first, call.request, prompts=len(intents), failures=several.failures)
        await answer(several, told, client, call.send, stream=intents[0].stream)


async def _intent(call: Call[CompletionRequest]) -> Intent:
    intents = call.request.intents(call.task_header)
    if len(intents) > 1:
        raise Refusal(400, "invalid_value", "'prompt': a quote is for one prompt at a time.", param="prompt")
    return intents[0]


completions_quote = quoting(completions, _intent)


class CompletionFormat:
    """A generation in the format of Completions: the text of each answer, in chunks or whole.

    The answers of several prompts follow each other; what identifies the whole is the first's. `failures` says which
    prompts failed beside others that didn't. Usage so far is that of the chunk's own prompt; its cost is only known of
    a single one, since each may be charged by another card.
    """

    def __init__(
        self,
        generation: Generation,
        request: CompletionRequest,
        *,
        prompts: int = 1,
        failures: Mapping[int, Refusal] = NONE,
    ) -> None:
        self._generation = generation
        self._with_usage = request.wants_usage
        self._with_usage_so_far = request.wants_usage_so_far
        self._is_alone = prompts == 1
        self._usage: ChatUsage | UnsetType | None = None if self._with_usage else UNSET  # of the chunks before the last
        self._failures = failures
        self._sampling = generation.intent.sampling
        self._narrator = Narrator(self._sampling.n * prompts, in_turn=False)
        self._told = [0] * len(self._narrator.answers)  # characters of each choice

    def opening(self) -> bytes:
        """Nothing: the first event is the first text."""
        return b""

    def delta(self, delta: Delta) -> bytes:
        """The events of a piece of text."""
        if self._with_usage_so_far:
            charge = self._generation.charge_so_far(delta.usage) if self._is_alone else None
            self._usage = chat_usage(delta.usage, charge)
        grown = [change for change in self._narrator.take(delta) if change.what is What.GREW]
        return b"".join([self._event([self._piece(delta.index, change)]) for change in grown])

    def closing(self, outcome: Outcome) -> bytes:
        """The finish reasons, usage if asked for, and the end mark; or the error with the usage and no end mark."""
        usage = chat_usage(outcome.usage, outcome.charge)
        failure = failure_of(outcome)
        if failure is not None:
            return event(encode({**openai_error(failure, self._generation.id), "usage": usage}))
        if self._with_usage_so_far:
            self._usage = usage
        last = b"".join([self._event([self._ended(told, "", outcome)]) for told in self._narrator.answers])
        return last + (event(encode(self._completion([], usage))) if self._with_usage else b"") + _DONE

    def collect(self, event: Delta | Vector) -> None:
        """Take a piece of the answer."""
        if isinstance(event, Delta) and not self._narrator.extend(event):
            self._narrator.take(event)

    def whole(self, outcome: Outcome) -> Completion:
        """The completion."""
        choices = []
        for told in self._narrator.answers:
            choice = self._ended(told, told.text, outcome)
            first = self._narrator.answers[told.index - told.index % self._sampling.n]
            if self._sampling.logprobs is not None:
                echoed = first.prompt_logprobs if self._sampling.echo and choice.text else None
                choice.logprobs = completion_logprobs(choice.text, told.logprobs, echoed)
            choice.prompt_logprobs = prompt_logprobs(self._sampling, first.prompt_logprobs)
            choices.append(choice)
        return self._completion(choices, chat_usage(outcome.usage, outcome.charge))

    def _piece(self, index: int, change: Change) -> CompletionChoice:
        offset = self._told[index]
        self._told[index] += len(change.text)
        logprobs = completion_logprobs(change.text, change.logprobs, offset=offset) if change.logprobs else None
        return CompletionChoice(index, change.text, logprobs=logprobs)

    def _ended(self, answer: Answer, text: str, outcome: Outcome) -> CompletionChoice:
        """Return the choice with `text` and its finish reason."""
        failure = self._failures.get(answer.index // self._sampling.n)
        if failure is not None:
            return CompletionChoice(answer.index, text, "error", sluice_reason=failure.code)
        finish = "stop" if (answer.ended or outcome.reason) is FinishReason.STOP else "length"
        reason = outcome.sluice_reason if finish == "length" else None
        return CompletionChoice(answer.index, text, finish, sluice_reason=reason or UNSET)

    def _event(self, choices: list[CompletionChoice]) -> bytes:
        return event(encode(self._completion(choices, self._usage)))

    def _completion(self, choices: list[CompletionChoice], usage: ChatUsage | UnsetType | None) -> Completion:
        return Completion(
            id=f"cmpl-{self._generation.id.hex}",
            created=self._generation.created,
            model=self._generation.route.model,
            service_tier=self._generation.intent.tier,
            choices=choices,
            usage=usage,
        )
