"""The one hook for who reads what a chat asks for. Without a reader routing works as if nothing were written."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from inference.messages import Message

CLASSIFY, EXTRACT = "classify", "extract"
"""The tasks that a reader finds: to answer with one of some labels, and with some fields as JSON."""
LONGEST_LABEL = 200  # characters


class Instruction(msgspec.Struct, frozen=True):
    """The `task` that a chat asks for, and the `reason`: by what it says so, empty where the task was known before.

    `labels` are those that it names for the `text` beside its instruction; `fields` those that it names for JSON.
    `unsure` is why the reader can't be sure of them, empty where it is: then specialists abstain from a chat for
    ``auto``.
    """

    task: str
    reason: str = ""
    labels: tuple[str, ...] = ()
    text: str = ""
    fields: tuple[str, ...] = ()
    unsure: str = ""


class Reader(Protocol):
    """Reads chats."""

    def read(self, messages: Sequence[Message], task: str = "") -> Instruction | None:
        """Return what the chat asks for, as an instruction of the `task` where that is known.

        None where that isn't written in so many words, and for a task of which nothing is read. It is called on the
        event loop, with messages of any length.
        """


_registered: list[Reader] = []  # at most one


def register(reader: Reader) -> None:
    """Have `reader` read the chats of this process."""
    _registered[:] = [reader]


def read(messages: Sequence[Message], task: str = "") -> Instruction | None:
    """Return what the registered reader reads (`Reader.read`); None without one."""
    return _registered[0].read(messages, task) if _registered else None


def said(messages: Sequence[Message]) -> tuple[str, str]:
    """Return what the system is told, and the last question."""
    by_role = {message.role: message for message in messages}  # the last of each
    system, user = ("\n".join(by_role[role].texts) if role in by_role else "" for role in ("system", "user"))
    return system, user
