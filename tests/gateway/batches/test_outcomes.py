"""What an answer means for a line."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from base.ids import uuid7
from gateway.batches import outcomes
from gateway.batches.models import BatchLine
from gateway.batches.outcomes import InputError, NotSentError, Reply, UnknownError, outcome_of

NOW = datetime(2026, 1, 1, tzinfo=UTC)
State = BatchLine.State


def line(attempts=1):
    return BatchLine(id=uuid7(), custom_id="c", attempts=attempts)


def reply(status, code="x", *, wait=None, **body):
    given = body or {"error": {"code": code, "message": "m"}}
    return Reply(status, "r", wait, json.dumps(given).encode())


def waits(outcome):
    return (outcome.due_at - NOW).total_seconds()


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 415, 422])
def test_what_is_wrong_with_the_request_ends_it(status):
    outcome = outcome_of(line(), reply(status), NOW)
    assert (outcome.state, outcome.counts) == (State.FAILED, {"failed": 1})
    told = json.loads(outcome.answer)
    assert (told["response"]["status_code"], told["response"]["request_id"], told["error"]) == (status, "r", None)


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (429, "rate_limit_exceeded"),
        (503, "engine_overloaded"),
        (503, "access_changed"),
    ],
)
def test_what_is_busy_is_asked_again_for_as_long_as_it_takes(status, code):
    outcome = outcome_of(line(1000), reply(status, code, wait=7.0), NOW)
    assert (outcome.state, outcome.attempts, waits(outcome)) == (State.WAITING, 999, 7.0)


def test_what_wasnt_sent_is_asked_again():
    outcome = outcome_of(line(1000), NotSentError("refused"), NOW)
    assert (outcome.state, outcome.attempts) == (State.WAITING, 999)


def test_an_engine_that_fails_is_asked_eight_times_and_ever_later():
    seen = []
    for attempt in range(1, outcomes.MOST_ATTEMPTS):
        outcome = outcome_of(line(attempt), reply(503, "worker_lost"), NOW)
        assert (outcome.state, outcome.attempts) == (State.WAITING, attempt)
        seen.append(waits(outcome))
    assert seen == sorted(seen)
    last = outcome_of(line(outcomes.MOST_ATTEMPTS), reply(500, "engine_error"), NOW)
    assert json.loads(last.answer)["response"]["body"]["error"]["code"] == "engine_error"
    assert last.state == State.FAILED


@pytest.mark.parametrize(
    "answer", [UnknownError("cut"), Reply(200, "r", None, b"<html>"), InputError("gone"), Reply(502, "", None, b"Bad")]
)
def test_what_may_have_run_stays_running_until_its_answer_is_known(answer):
    """Waiting lines of a cancelled batch are given up; this one may have been answered and charged."""
    assert outcome_of(line(), answer, NOW).state == State.RUNNING
    last = outcome_of(line(outcomes.MOST_ATTEMPTS), answer, NOW)
    told = json.loads(last.answer)
    assert (last.state, told["response"]) == (State.FAILED, None)
    assert told["error"]["code"] == ("input_file_missing" if isinstance(answer, InputError) else "request_failed")


@pytest.mark.parametrize(
    "answer", [NotSentError("refused"), reply(503, "starting"), reply(429), reply(500), reply(402)]
)
def test_what_may_have_run_before_stays_running_though_it_is_refused_now(answer):
    """The refusal may have come before any look for the answer that was lost."""
    waiting, running = (outcome_of(line(), answer, NOW, may_have_run=ran) for ran in (False, True))
    assert (waiting.state, running.state) == (State.WAITING, State.RUNNING)
    assert (waiting.attempts, waiting.due_at) == (running.attempts, running.due_at)


def test_one_that_runs_at_another_gateway_is_waited_for():
    outcome = outcome_of(line(50), reply(409, "idempotency_key_in_use", wait=1.0), NOW)
    assert (outcome.state, outcome.attempts, waits(outcome)) == (State.RUNNING, 49, 1.0)


def test_credit_may_only_be_held_for_a_while():
    first = outcome_of(line(1), reply(402, "credit_balance_exhausted"), NOW)
    assert (first.state, waits(first)) == (State.WAITING, outcomes.CREDIT_SECONDS)
    last = outcome_of(line(outcomes.MOST_TRIES_WITHOUT_CREDIT), reply(402, "credit_balance_exhausted"), NOW)
    assert last.state == State.FAILED


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (
            {
                "prompt_tokens": 5,
                "completion_tokens": 3,
                "prompt_tokens_details": {"cached_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 1},
                "credits_micro": 9,
            },
            (5, 2, 3, 1, 9),
        ),
        ({"input_tokens": 5, "output_tokens": 3, "credits_micro": None}, (5, 0, 3, 0, 0)),
        ({"prompt_tokens": 5, "total_tokens": 5, "credits_micro": 2}, (5, 0, 0, 0, 2)),
    ],
)
def test_usage_of_every_api_is_counted(usage, expected):
    counts = outcome_of(line(), reply(200, usage=usage, id="x"), NOW).counts
    names = ("input_tokens", "cached_tokens", "output_tokens", "reasoning_tokens", "charge")
    assert tuple(counts[name] for name in names) == expected
    assert counts["completed"] == 1


def test_the_answer_stays_as_it_was_sent():
    body = b'{"id": "x", "n": 1.10, "usage": null}'
    outcome = outcome_of(line(), Reply(200, "r", None, body), NOW)
    assert '"body":{"id": "x", "n": 1.10, "usage": null}' in outcome.answer
    assert "\n" not in outcome.answer


def test_an_answer_is_one_line():
    outcome = outcome_of(line(), Reply(200, "r", None, b'{\n  "id": "x"\n}\n'), NOW)
    assert json.loads(outcome.answer)["response"]["body"] == {"id": "x"}
    assert "\n" not in outcome.answer
