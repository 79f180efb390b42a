"""What operators see: counters that add up, log lines that are JSON and carry no text of anybody's."""

from __future__ import annotations

import asyncio
import io
import json
import logging

import pytest
import structlog
from django.core.exceptions import PermissionDenied
from django.test import Client, RequestFactory

from base.ids import uuid7
from gateway import logs
from gateway.generation.generation import start_generation
from gateway.http import guard
from gateway.http.access import note_caller
from gateway.http.guard import guarded
from gateway.logs import configure_logs, request_bound
from gateway.runtime.metrics import Metrics
from tests.gateway.doubles import collect, make_intent, make_stand


@pytest.fixture
def lines(monkeypatch):
    """Configure logging for the test, and return its lines as objects."""
    root, stream = logging.getLogger(), io.StringIO()
    # A logger that has written keeps the stream of that time.
    monkeypatch.setattr(guard, "log", structlog.get_logger("gateway.access"))
    before, level = list(root.handlers), root.level
    configure_logs(stream=stream)
    yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    root.handlers[:] = before
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.mark.parametrize("path", ["/accounts/login/", "/api/v1/keys/"])
def test_a_strangers_host_makes_one_short_line_and_one_clear_answer(lines, path):
    answer = Client().get(path, headers={"host": "evil.example"})
    assert answer.status_code == 400
    assert b"This server has another name" in answer.content.replace(b"&#x27;", b"'")
    (line,) = [line for line in lines() if "evil.example" in line["event"]]
    assert line["level"] == "warning"
    assert "exception" not in line


def test_line_is_json_with_the_requests_id(lines):
    request = uuid7()
    with request_bound(request):
        structlog.get_logger("gateway.test").info("hello", tokens=3)
    logging.getLogger("uvicorn.error").warning("plain %s", "line")
    ours, theirs = lines()
    assert (ours["event"], ours["tokens"], ours["request_id"], ours["level"]) == ("hello", 3, str(request), "info")
    assert (theirs["event"], theirs["level"]) == ("plain line", "warning")
    assert "request_id" not in theirs


def test_a_line_with_half_a_character_is_written(lines):
    identifier = uuid7()
    structlog.get_logger("t").warning("odd \ud800", about=identifier, of={"\udfff": [object]})
    [line] = lines()
    assert (line["event"], line["about"]) == ("odd \ud800", str(identifier))
    assert line["of"] == {"\udfff": [repr(object)]}


def test_uvicorns_lines_say_what_they_say_once(lines):
    more = {"color_message": "Started \033[36m%d\033[0m"}
    logging.getLogger("uvicorn.error").warning("Started server process [%d]", 7, extra=more)
    [line] = lines()
    assert line["event"] == "Started server process [7]"
    assert "color_message" not in line


def test_what_each_request_warns_of_does_not_flood_the_log(lines, monkeypatch):
    """As where the database's disk is full: our own lines, and those of the standard library's loggers."""
    now = [100.0]
    monkeypatch.setattr(logs.time, "monotonic", lambda: now[0])
    log, other = structlog.get_logger("t"), logging.getLogger("billing.writer.queue")
    for number in range(logs.MOST_ALIKE + 70):
        log.warning("reserve_failed", error=str(number))
        other.error("cannot apply %s", number)
        log.info("answered")
    now[0] += logs.WINDOW_SECONDS
    log.warning("reserve_failed", error="last")
    other.error("cannot apply %s", "last")
    log.warning("something_else")
    seen = lines()
    assert [line["event"] for line in seen].count("answered") == logs.MOST_ALIKE + 70, "nobody's request is left out"
    failed = [line for line in seen if line["event"] == "reserve_failed"]
    assert [line["error"] for line in failed] == [*map(str, range(logs.MOST_ALIKE)), "last"]
    refused = [line for line in seen if line["event"].startswith("cannot apply")]
    assert len(refused) == logs.MOST_ALIKE + 1
    assert (failed[-1]["left_out"], refused[-1]["left_out"]) == (70, 70)
    assert "left_out" not in seen[-1]


def test_lines_of_another_kind_are_not_left_out_with_what_floods(lines):
    """As a scanner's 404s, which Django logs by the same words as its 500s; and messages may be any object."""
    django, log = logging.getLogger("django.request"), structlog.get_logger("t")
    for _ in range(logs.MOST_ALIKE + 1):
        django.warning("%s: %s", "Not Found", "/x", extra={"status_code": 404})
        log.error("task_failed", exc_info=ValueError("a"))
    broken = RuntimeError("broken")
    django.error("%s: %s", "Internal Server Error", "/y", exc_info=broken, extra={"status_code": 500})
    log.error("task_failed", exc_info=KeyError("b"))
    logging.getLogger("library").warning({"a": "message"})
    seen = lines()
    assert [line for line in seen if line["event"] == "Internal Server Error: /y"]
    assert [line for line in seen if "KeyError" in str(line)]
    assert [line for line in seen if "message" in line["event"]]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("is_supervised", [False, True])
def test_on_a_terminal_lines_are_for_people(monkeypatch, is_supervised):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("SLUICE_HEARTBEAT", raising=False)
    if is_supervised:
        monkeypatch.setenv("SLUICE_HEARTBEAT", "/nowhere")
    root, stream = logging.getLogger(), Terminal()
    before, level = list(root.handlers), root.level
    try:
        configure_logs(stream=stream)
        with request_bound(uuid7()):
            structlog.get_logger("gateway.access").info("answered", path="/links/TOKEN/", status=200)
            structlog.get_logger("gateway.test").info("generation_ended", charge=5)
        structlog.get_logger("gateway.test").info("gateway_open")
        structlog.get_logger("gateway.test").warning("odd", why="one word after the other " * 8)
        logging.getLogger("uvicorn.error").info("Started")
        logging.getLogger("uvicorn.error").warning("plain %s", "line")
    finally:
        root.handlers[:] = before
        root.setLevel(level)
        structlog.reset_defaults()
    lines = stream.getvalue().replace("\r\x1b[K", "").splitlines()
    assert max(map(len, lines)) <= 80
    assert ("gateway_open" in stream.getvalue(), "Started" in stream.getvalue()) == (not is_supervised,) * 2
    ours, theirs = lines[0], lines[-1]
    assert "answered" in ours
    assert "status=200" in ours
    assert "TOKEN" not in ours
    assert "request_id" not in ours
    assert "plain line" in theirs
    assert "{" not in ours + theirs


@pytest.mark.parametrize(
    "path",
    [
        "/links/TOKEN/",
        "/invitations/TOKEN/",
        "/accounts/password/reset/key/TOKEN/",
        "/accounts/confirm-email/TOKEN/",
        "/v1/models/sk-sluice-TOKEN",
    ],
)
def test_a_secret_in_an_address_is_not_logged(lines, path):
    structlog.get_logger("gateway.access").info("answered", path=path)
    logging.getLogger("django.request").warning("Forbidden: %s", path)
    ours, theirs = lines()
    assert ours["path"].startswith(path.partition("TOKEN")[0])
    assert theirs["event"].startswith("Forbidden: /")
    assert "TOKEN" not in json.dumps([ours, theirs])


@pytest.mark.parametrize("path", ["/links/TOKEN/", "/invitations/TOKEN/"])
def test_a_secret_in_what_django_adds_to_a_line_is_not_logged(lines, path):
    request = RequestFactory().post(f"{path}?key=sk-sluice-TOKEN")
    error, log = PermissionDenied(f"not at {path}"), logging.getLogger("django.security.csrf")
    log.error("Forbidden", exc_info=error, extra={"request": request, "status_code": 403})
    [line] = lines()
    assert line["status_code"] == 403
    assert path.partition("TOKEN")[0] in line["request"]
    assert "not at" in line["exception"]
    assert "TOKEN" not in json.dumps(line)


async def test_generation_is_logged_without_prompt_and_answer(lines, monkeypatch):
    from gateway.generation import settlement as module

    monkeypatch.setattr(module, "log", structlog.get_logger("gateway.generation.settlement"))
    stand = await make_stand(text="the secret answer")
    prompt = "the secret question"
    request_id = uuid7()
    with request_bound(str(request_id)):  # as the edge does
        generation = await start_generation(stand.runtime, stand.principal, make_intent(prompt=prompt), request_id)
    await collect(generation)
    await stand.settled()
    found = lines()
    [ended] = [line for line in found if line["event"] == "generation_ended"]
    assert ended["request_id"] == str(generation.id)
    assert ended["usage"] == {"input": 9, "output": 3}
    assert "secret" not in json.dumps(found)


async def test_counters_follow_the_charges():
    stand = await make_stand(tokens=5, cached=0.2)
    metrics = stand.runtime.metrics
    generation = await start_generation(stand.runtime, stand.principal, make_intent(), uuid7())
    assert metrics.registry.get_sample_value("sluice_open_holds") == 1
    _, outcome, _ = await collect(generation)
    await stand.settled()

    def value(name, **labels):
        return metrics.registry.get_sample_value(name, {"model": "fake"} | labels)

    assert value("sluice_credits_micro_total") == outcome.charge
    assert value("sluice_tokens_total", usage_class="cache_read") == 20
    assert value("sluice_tokens_total", usage_class="output") == 5
    assert value("sluice_generations_total", reason="stop") == 1
    assert value("sluice_ttft_seconds_count") == 1
    assert metrics.registry.get_sample_value("sluice_open_holds") == 0


def test_two_runtimes_count_apart():
    one, two = Metrics(), Metrics()
    one.answered("chat", 200)
    assert b'sluice_requests_total{endpoint="chat",status="200"} 1.0' in one.render()
    assert b"sluice_requests_total{" not in two.render()


async def test_every_line_of_a_request_says_whose_it_is(lines):
    tenant, key = uuid7(), uuid7()

    async def application(scope, receive, send):
        note_caller(scope, tenant=tenant, key=key)
        await asyncio.create_task(later())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def later():
        structlog.get_logger("gateway.test").warning("extend_failed")

    async def ignore(message):
        return None

    scope = {"type": "http", "method": "GET", "path": "/v1/models", "headers": []}
    await guarded(application)(scope, ignore, ignore)
    structlog.get_logger("gateway.test").info("outside")
    inside, answered, outside = [line for line in lines() if line["event"] in {"extend_failed", "answered", "outside"}]
    for line in (inside, answered):
        assert (line["tenant"], line["key"]) == (str(tenant), str(key))
        assert line["request_id"] == answered["request_id"]
    assert not {"tenant", "key", "request_id"} & outside.keys()
