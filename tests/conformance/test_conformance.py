"""The part of a conformance run that needs nothing installed: the SDK of the tests, and how outcomes are judged."""

from __future__ import annotations

import asyncio
import json
import os
import sys

import pytest

from tests.conformance import environments, report
from tests.conformance.__main__ import PAGE, _chosen, _run
from tests.conformance.clients import CLIENTS
from tests.conformance.models import add_models
from tests.gateway.apis.server import serving, with_runtime
from tests.gateway.world import in_database, make_world, opened, settled

LINES = (
    "chat: a tool loop of five calls",
    "chat: tools and a schema in one request",
    "responses, streamed, with its helper",
)


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
async def test_lines_of_the_openai_sdk(tmp_path):
    world = await in_database(make_world)
    await in_database(add_models)
    async with opened(tmp_path) as runtime, serving(with_runtime(runtime)) as place:
        told = await asyncio.create_subprocess_exec(
            sys.executable,
            environments.HERE / "python/openai_python.py",
            *LINES,
            env={**os.environ, "SLUICE_URL": f"http://{place}", "SLUICE_KEY": world.secret},
            stdout=asyncio.subprocess.PIPE,
        )
        out, _ = await told.communicate()
        await settled(runtime)
    found = {row["line"]: row["error"] for row in map(json.loads, filter(None, out.splitlines()))}
    assert found == dict.fromkeys(LINES)


REFUSALS = {"stored": {"says": "unsupported_parameter", "reason": "nothing is stored"}}


@pytest.mark.parametrize(
    ("name", "error", "outcome", "is_new"),
    [
        ("chat", None, "works", False),
        ("chat", "BadRequestError: unsupported_parameter", "fails", False),
        ("stored", "BadRequestError: unsupported_parameter: 'store'", "refused", False),
        ("stored", "InternalServerError: internal_error", "fails", False),
        ("stored", None, "works", True),
    ],
)
def test_outcome_of_a_line(name, error, outcome, is_new):
    line = report.judged(name, error, REFUSALS)
    assert (line.outcome, line.is_new) == (outcome, is_new)


def test_page_tells_each_line_and_counts_them():
    lines = tuple(
        report.judged(name, error, REFUSALS) for name, error in (("chat", None), ("stored", "unsupported_parameter"))
    )
    page = report.page(
        [report.Tried("One", "1.2", lines, day="2026-01-02"), report.Tried("Two", "", skipped="Not tried: no Node.js.")]
    )
    assert "| One | 1.2 | 2026-01-02 | 1 | 1 | 0 |" in page
    assert "| stored | refused: nothing is stored |" in page
    assert "## Two\n\nNot tried: no Node.js." in page


def test_one_client_tried_again_leaves_the_lines_of_the_others():
    first, again, other, absent = (
        report.Tried("One", "1", (report.Line("chat", "works"),), day="2026-01-02"),
        report.Tried("One", "2", (report.Line("chat", "works"), report.Line("tools", "works")), day="2026-01-03"),
        report.Tried("Two: 2", "1", (report.Line("chat: a | b", "refused", "no a | b: neither"),), day="2026-01-02"),
        report.Tried("Three", "", skipped="Not tried: no Node.js."),
    )
    clients = ["One", "Two: 2", "Three"]
    page = report.page([first, other, absent])
    assert report.rewritten(page, again, clients) == report.page([again, other, absent])
    assert report.rewritten(page, report.Tried("One", "", skipped="Not tried: no network."), clients) == page
    assert report.rewritten("", again, clients[:1]) == report.page([again])


def test_the_page_is_read_as_it_is_written():
    written = PAGE.read_text()
    clients = [client.name for client in CLIENTS]
    for client in clients:
        assert report.rewritten(written, report.Tried(client, "", skipped="Not tried."), clients) == written


@pytest.mark.parametrize("name", ["anthropic-node", "Anthropic Node"])
def test_a_client_is_named_by_one_word(name):
    assert [client.name for client in _chosen([name])] == ["Anthropic Node"]


def test_an_unknown_client_is_told_with_those_there_are():
    with pytest.raises(SystemExit, match=r"no client is called Anthropic, Node\. There are: openai-python "):
        _chosen(["Anthropic", "Node"])


def test_a_program_that_takes_too_long_is_ended_with_all_that_it_began(monkeypatch):
    monkeypatch.setattr("tests.conformance.__main__.SECONDS", 0.2)
    _, ended = _run(["sh", "-c", "sleep 3600 & wait"], dict(os.environ))
    assert ended == "it took more than 0.2 s"


def test_every_expected_refusal_has_what_it_says_and_a_reason():
    for refusals in report.expected().values():
        for name, refusal in refusals.items():
            assert set(refusal) == {"says", "reason"}, name
            assert all(refusal.values()), name
