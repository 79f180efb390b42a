"""The one hook for who reads what a chat asks for. Without a reader routing works as if nothing were written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import msgspec

from inference.messages import Message


@dataclass(frozen=True, slots=True)
class OwnTerms:
    """Whose own models, and which of them a plan serves: the tenant's oldest `most`, of `bases` (empty: of all).

    Without a `tenant` nobody's. With a `project` those of that project and those that all projects share; without one
    every model of the tenant's, as its members and operators see them.
    """

    most: int = 0
    bases: frozenset[str] = frozenset()
    tenant: UUID | None = None
    project: UUID | None = None

    def sees(self, tenant: UUID, project: UUID | None) -> bool:
        """Whether it has the models of that tenant's project; None stands for those that all projects share."""
        return tenant == self.tenant and (None in (project, self.project) or project == self.project)

    def obstacle(self, number: int, base: str) -> str:
        """Return why it doesn't serve the tenant's model of that `number`, the oldest's being 1, which is an adapter of
        `base`; "" where it does.
        """
        if not self.most:
            return "The plan has no room for adapters of one's own."
        if number > self.most:
            most = f"{self.most} adapter{'s' * (self.most != 1)}"
            return f"The plan has room for {most}, which older ones take: delete one of those."
        if self.bases and base not in self.bases:
            return f"The plan doesn't include {base}, which this is an adapter of."
        return ""


NONE_OF_ITS_OWN = OwnTerms()


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
