"""The outcome of an answer for its line: its end, or another try. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any

import msgspec
from django.db.models import F

from gateway.batches.models import Batch, BatchLine
from gateway.batches.results import LineError, LineResponse, result_of
from gateway.durable import answers
from gateway.durable.room import LINE
from gateway.errors.refusal import Refusal

MOST_ATTEMPTS = 8
"""Tries of a line that may have run, or in which a gateway or an engine failed; being too busy doesn't count."""
MOST_TRIES_WITHOUT_CREDIT = 4
CREDIT_SECONDS = 20.0
LONGEST_BACK_OFF = 60.0
NOT_SENT_SECONDS = 5.0

_AGAIN = frozenset({408, 425, 429})
_BUSY_CODES = frozenset(
    {
        "access_changed",  # while the line waited for a place: the next time it is judged by what holds then
        "catalogue_unavailable",
        "database_unavailable",
        "engine_draining",
        "engine_overloaded",
        "gateway_lock_lost",
        "ledger_unavailable",
        "no_ready_deployment",
        "queue_timeout",
        "server_draining",
        "server_full",
        "starting",
        "tenant_queue_full",
    }
)
_State = BatchLine.State


OVER = "batch_over"
"""The code of the answer to a line that didn't run before the end of its batch, and won't any more."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer to a line."""

    status: int
    request_id: str
    retry_after: float | None
    body: bytes


class NotSentError(Exception):
    """Nothing of the request ran."""


class UnknownError(Exception):
    """Nobody knows what became of the request: ask again, it runs once."""


class InputError(Exception):
    """The line can't be read in the input file any more."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A line's next state; `counts` are added to its batch's sums."""

    state: int
    attempts: int
    due_at: datetime
    answer: str = ""
    counts: dict[str, int] = field(default_factory=dict)

    @property
    def is_end(self) -> bool:
        """Whether the line will not be sent again."""
        return self.state in {_State.COMPLETED, _State.FAILED}


class _Details(msgspec.Struct):
    cached_tokens: int = 0
    reasoning_tokens: int = 0


class _Usage(msgspec.Struct):
    """Usage in any API's names."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    credits_micro: int | None = None
    prompt_tokens_details: _Details = msgspec.field(default_factory=_Details)
    completion_tokens_details: _Details = msgspec.field(default_factory=_Details)
    input_tokens_details: _Details = msgspec.field(default_factory=_Details)
    output_tokens_details: _Details = msgspec.field(default_factory=_Details)


class _Error(msgspec.Struct):
    code: str | None = None


class _Body(msgspec.Struct):
    usage: _Usage | None = None
    error: _Error | None = None


def outcome_of(line: BatchLine, reply: Reply | Exception, now: datetime, *, may_have_run: bool = False) -> Outcome:
    """Return what becomes of a line that was sent for the `line.attempts`th time; whether it `may_have_run` before."""
    outcome = _outcome_of(line, reply, now)
    if may_have_run and outcome.state == _State.WAITING:
        # A refusal may come before any look for its answer, which may be there and be charged.
        return replace(outcome, state=_State.RUNNING)
    return outcome


def _outcome_of(line: BatchLine, reply: Reply | Exception, now: datetime) -> Outcome:
    if isinstance(reply, NotSentError):
        return _again(line, now, NOT_SENT_SECONDS, is_counted=False)
    if not isinstance(reply, Reply):
        return _unknown(line, reply, now)
    try:
        body = msgspec.json.decode(reply.body, type=_Body)
    except msgspec.MsgspecError:
        return _unknown(line, UnknownError(f"the answer {reply.status} is no JSON"), now)
    if reply.status < 400:
        return _ended(line, _State.COMPLETED, now, reply, _counts(body.usage))
    return _refused(line, reply, (body.error.code if body.error else None) or "", now)


def _refused(line: BatchLine, reply: Reply, code: str, now: datetime) -> Outcome:
    wait, is_counted, most = reply.retry_after or _back_off(line.attempts), True, MOST_ATTEMPTS
    if code == OVER:  # it never ran: the end of the batch says why
        return Outcome(_State.FAILED, line.attempts, now, counts={"failed": 1})
    if reply.status == 409:  # it runs, where this gateway can't see it
        return Outcome(_State.RUNNING, line.attempts - 1, now + timedelta(seconds=wait))
    if reply.status == 402:  # credit may come meanwhile; what others hold is a 429
        wait, most = CREDIT_SECONDS, MOST_TRIES_WITHOUT_CREDIT
    elif code in _BUSY_CODES or reply.status in _AGAIN:
        is_counted = False
    elif reply.status < 500:
        most = 0
    if is_counted and line.attempts >= most:
        return _ended(line, _State.FAILED, now, reply, {"failed": 1})
    return _again(line, now, wait, is_counted=is_counted)


def counted(outcomes: Iterable[Outcome]) -> dict[str, Any]:
    """Return the changes of a batch's sums."""
    sums: Counter[str] = Counter()
    for outcome in outcomes:
        sums.update(outcome.counts)
        sums["answer_bytes"] += len(outcome.answer)
    return {name: F(name) + count for name, count in sums.items() if count}


def _again(line: BatchLine, now: datetime, seconds: float, *, is_counted: bool = True) -> Outcome:
    """Wait: nothing ran this time, or nothing that is charged."""
    return Outcome(_State.WAITING, line.attempts - (not is_counted), now + timedelta(seconds=seconds))


def _unknown(line: BatchLine, error: Exception, now: datetime) -> Outcome:
    """Ask again for what may have run, soon, and at last give it up."""
    if line.attempts < MOST_ATTEMPTS:
        return Outcome(_State.RUNNING, line.attempts, now + timedelta(seconds=_back_off(line.attempts)))
    code = "input_file_missing" if isinstance(error, InputError) else "request_failed"
    answer = result_of(line, None, LineError(code, f"No answer in {MOST_ATTEMPTS} tries: {error}"[:500]))
    return Outcome(_State.FAILED, line.attempts, now, answer, {"failed": 1})


def _ended(line: BatchLine, state: int, now: datetime, reply: Reply, counts: dict[str, int]) -> Outcome:
    response = LineResponse(reply.status, reply.request_id, msgspec.Raw(_on_one_line(reply.body)))
    return Outcome(state, line.attempts, now, result_of(line, response), counts)


def _counts(usage: _Usage | None) -> dict[str, int]:
    counts = {"completed": 1}
    if usage is not None:
        asked, answered = usage.prompt_tokens_details, usage.completion_tokens_details
        counts["input_tokens"] = usage.prompt_tokens + usage.input_tokens
        counts["output_tokens"] = usage.completion_tokens + usage.output_tokens
        counts["cached_tokens"] = asked.cached_tokens + usage.input_tokens_details.cached_tokens
        counts["reasoning_tokens"] = answered.reasoning_tokens + usage.output_tokens_details.reasoning_tokens
        counts["charge"] = usage.credits_micro or 0
    return counts


def _back_off(attempts: int) -> float:
    return min(2.0 ** (attempts - 1), LONGEST_BACK_OFF)


def _on_one_line(body: bytes) -> bytes:
    """Return JSON without line ends."""
    return msgspec.json.format(body, indent=-1) if b"\n" in body else body


def kept_reply(batch: Batch, line: BatchLine) -> Reply | UnknownError | None:
    """Return the answer that is kept of the line, an error while it is being made or can't be read, and None where it
    never ran or was lost with its gateway, which costs nothing.
    """
    run = answers.run_of(batch.tenant_id, f"{LINE}{line.id.hex}")
    if run is None or answers.look(run) is None:
        return None
    try:
        stored = answers.read(run)
    except Refusal as error:  # it was kept under a secret that isn't known
        return UnknownError(error.message)
    if stored is None:
        return UnknownError("a gateway makes its answer")
    return Reply(stored.head.status, str(run), None, stored.body)
