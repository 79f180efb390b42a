"""The desk's reader at routing's hook, and routing without it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from desk.reader import MOST_READ, NOT_ENGLISH, EnglishReader
from inference.messages import Message
from routing import hook
from routing.hook import CLASSIFY, EXTRACT, Instruction

ROOT = Path(__file__).resolve().parents[2]
LABELS = "Classify the ticket as one of: red, blue.\n\nmy blue car"
BY_LABELS = "its instruction asks for one of 2 labels that it names"


def chat(*turns):
    """Messages: pairs of role and text, or texts of the user and the assistant in turn."""
    return [
        Message(turn[0], (turn[1],)) if isinstance(turn, tuple) else Message(("user", "assistant")[at % 2], (turn,))
        for at, turn in enumerate(turns)
    ]


def test_the_app_has_registered_its_reader():
    assert hook.read(chat(LABELS)) == Instruction(CLASSIFY, BY_LABELS, labels=("red", "blue"), text="my blue car")


@pytest.mark.parametrize(
    ("messages", "task", "found"),
    [
        ((), "", None),
        (("Hello!\n\nHow are you?",), "", None),
        ((LABELS,), "summarize", None),
        ((LABELS,), EXTRACT, Instruction(EXTRACT)),
        (("Is it red?",), CLASSIFY, Instruction(CLASSIFY, text="Is it red?")),
        (("Labels: red, blue\n\na car",), CLASSIFY, Instruction(CLASSIFY, labels=("red", "blue"), text="a car")),
        (
            (("system", "Labels: red, blue"), ("user", "Labels: a, b\n\nc")),
            CLASSIFY,
            Instruction(CLASSIFY, labels=("red", "blue"), text="Labels: a, b\n\nc"),
        ),
        (
            ("Labels: red, blue\n\na", "red", "Labels: old, new\n\nb", "new", "and c"),
            CLASSIFY,
            Instruction(CLASSIFY, labels=("old", "new"), text="and c"),
        ),
        (
            ("Labels: red, blue\n\na", "red", "x" * MOST_READ, "?", "and c"),
            CLASSIFY,
            Instruction(CLASSIFY, text="and c"),
        ),
        (
            ("Return JSON with the fields order_id, amount.\n\nI paid 12.",),
            EXTRACT,
            Instruction(EXTRACT, fields=("order_id", "amount")),
        ),
        (("Return it as JSON.\n\nI paid 12.",), EXTRACT, Instruction(EXTRACT)),
        (("Classify the ticket as one of: red, blue.\n\nIch habe ein blaues Auto",), "", None),
        (
            ("Labels: red, blue\n\nIch habe ein blaues Auto",),
            CLASSIFY,
            Instruction(CLASSIFY, labels=("red", "blue"), text="Ich habe ein blaues Auto", unsure=NOT_ENGLISH),
        ),
        (
            (("system", "Du liest Mails, und nicht mehr als das."), ("user", "I paid 12.")),
            EXTRACT,
            Instruction(EXTRACT, unsure=NOT_ENGLISH),
        ),
        (
            (f"{LABELS}\n\n{'It is mine and I like it. ' * 9}\n\nSie ist nicht mehr da, und ich suche sie.",),
            "",
            None,
        ),
        ((f"{LABELS}\nSie ist nicht mehr da, und ich suche sie.",), "", None),
    ],
)
def test_what_a_chat_names_for_a_task(messages, task, found):
    assert EnglishReader().read(chat(*messages), task) == found


ALONE = """
import asyncio, sys, django
django.setup()
from gateway.generation.generation import start_generation
from base.ids import uuid7
from routing import hook
from tests.gateway.generation.test_choosing import LABELS, REST, ask, make_auto, step

async def run():
    stand = await make_auto()
    told = await ask(stand, {text!r})
    assert (told["model"], told["task_source"]) == ("general", "plan"), told
    assert step(told, "instruction")["outcome"] == "passed"
    assert hook.read(()) is None

asyncio.run(run())
import gateway.asgi
assert not [name for name in sys.modules if name.partition(".")[0] == "desk"]
"""


def test_without_the_desk_auto_works_and_nothing_of_it_is_imported(tmp_path):
    environment = {
        **os.environ,
        "SLUICE_DESK": "false",
        "SLUICE_HOME": str(tmp_path),
        "SLUICE_ENV": "test",
        "DJANGO_SETTINGS_MODULE": "gateway.settings",
        "DATABASE_URL": f"sqlite:///{tmp_path}/db.sqlite3",
    }
    code = ALONE.format(text=LABELS)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
