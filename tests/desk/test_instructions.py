"""What a request's instruction asks for in so many words: labels or fields that it names."""

from __future__ import annotations

import re

import pytest

from desk import instructions
from desk.instructions import MOST_READ, instruction_in
from routing.services.defaults import TASK_RULES

TICKET = "The kettle leaks since Tuesday and nobody answers the phone."


@pytest.mark.parametrize(
    ("system", "user", "task", "count"),
    [
        ("", f"Classify this ticket as billing, shipping or other.\n\n{TICKET}", "classify", 3),
        ("", f"{TICKET}\n\nWhich category fits: complaint, praise, question?", "classify", 3),
        ("", f"Please assign one of these labels:\n\n- leak\n- noise\n- other\n\n{TICKET}", "classify", 3),
        ("", f"Route the message to one of the teams sales, repairs, finance.\n{TICKET}", "classify", 3),
        ("You label tickets. Reply with exactly one of: urgent, normal, low.", TICKET, "classify", 3),
        ("", f"Extract the fields product, problem and since as JSON.\n\n{TICKET}", "extract", 3),
        ("", f"{TICKET}\n\nReturn a JSON object with the keys: product, defect.", "extract", 2),
        ("", f'Fill in this JSON: {{"product": ..., "defect": ...}}\n\n{TICKET}', "extract", 2),
        ("", f"{TICKET}\n\nExtract as JSON these fields:\n\n- order_id\n- bestellNr\n- größe", "extract", 3),
        ("", f'{TICKET}\n\nExtract as JSON: {{"numéro de commande": ..., "order_id": ...}}', "extract", 2),
        (
            "You read mails. Answer in JSON with these keys: sender, topic (one word), due.",
            TICKET,
            "extract",
            3,
        ),
    ],
)
def test_an_instruction_says_its_task_by_what_it_names(system, user, task, count):
    found = instruction_in(system, user)
    assert found is not None
    assert found.task == task
    assert f" {count} " in found.reason
    assert "kettle" not in found.reason


@pytest.mark.parametrize(
    ("system", "user"),
    [
        ("", f"Write a function that classifies tickets into one of: billing, shipping, other.\n\n{TICKET}"),
        ("", f"Create a JSON schema with the fields product, problem and since.\n\n{TICKET}"),
        ("", f"Summarize the ticket for one of the teams sales, repairs, finance.\n\n{TICKET}"),
        ("", "Classify this ticket as billing, shipping or other."),  # no text that could be classified
        ("", f"Classify this ticket.\n\n{TICKET}"),  # no labels
        ("", f"Return the answer as JSON.\n\n{TICKET}"),  # no fields
        ("", "We have tea, coffee and juice.\n\nWhich would you like?"),
        ("", f"Hello!\n\nClassify it as one of: a, b.\n\n{TICKET}"),  # only text: what stands in the middle
        ("", f"Choose one of the labels a, b. {'x' * MOST_READ}\n\n{TICKET}"),
        ("", ""),
        ("You label tickets. Reply with exactly one of: urgent, normal, low.", " "),
    ],
)
def test_whatever_else_is_written_says_none(system, user):
    assert instruction_in(system, user) is None


@pytest.mark.parametrize(("task", "examples"), [(task, examples) for _, _, task, examples in TASK_RULES])
def test_what_is_like_another_task_is_never_taken_for_labels_or_fields(task, examples):
    for example in examples:
        for asked in (("", example), ("", f"{example}\n\n{TICKET}"), (example, TICKET)):
            found = instruction_in(*asked)
            assert found is None or found.task == task, example


class Recorded:
    """A pattern that remembers the texts that it is given."""

    def __init__(self, pattern: re.Pattern[str], texts: list[str]) -> None:
        self._pattern, self._texts = pattern, texts

    def search(self, text: str) -> re.Match[str] | None:
        self._texts.append(text)
        return self._pattern.search(text)


@pytest.fixture
def searched(monkeypatch):
    """The texts in which orders are looked for."""
    texts: list[str] = []
    monkeypatch.setattr(instructions, "_MAKES", Recorded(instructions._MAKES, texts))
    return texts


@pytest.mark.parametrize("space", ["\n", " ", "\t", " \n", "\n \t", "\u3000"])
def test_no_pattern_meets_a_run_of_spaces(searched, space):
    """Patterns try each part of such a run: 2,000 line breaks took 0.7 s on the loop, before any limit."""
    system = f"Classify{space * (1900 // len(space))}the ticket as billing or other."
    instruction_in(system, TICKET)
    assert len(searched) == 1
    assert not re.search(r"\s\s", searched[0])


def test_only_the_ends_of_a_long_message_are_read(searched):
    order = "Classify the ticket as one of: billing, refund, delivery."
    ticket = "The lamp is broken, please help. " * 30_000
    for message in (f"{order}\n\n{ticket}", f"{order}\n{ticket}", f"{ticket}\n\n{order}", f"{ticket}\n{order}"):
        assert instruction_in("", message).task == "classify"
    assert instruction_in("", f"{ticket}\n\n{order}\n\n{ticket}") is None
    assert max(map(len, searched)) <= MOST_READ
    assert max(len(instructions._ends("x " * length)) for length in (100, 10_000, 1_000_000)) < 10 * MOST_READ
