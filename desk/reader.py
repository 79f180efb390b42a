"""Chats read for routing's hook: the labels and fields that English instructions name. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from desk.instructions import instruction_in, instructions_of, is_english
from desk.named_fields import fields_in
from desk.named_labels import Asked, labels_in, read
from inference.messages import Message
from routing.hook import CLASSIFY, EXTRACT, Instruction, said

MOST_READ = 40_000
"""Characters of earlier messages that are looked at for labels."""
NOT_ENGLISH = "not all of it is English"


class EnglishReader:
    """Reads English (`routing.hook.Reader`)."""

    def read(self, messages: Sequence[Message], task: str = "") -> Instruction | None:
        """Return what the chat asks for: see the protocol. A task is found in English alone."""
        if not messages:
            return None
        system, user = said(messages)
        if task not in ("", CLASSIFY, EXTRACT):
            return None
        unsure = "" if is_english(system, user) else NOT_ENGLISH
        reason = ""
        if not task:
            found = None if unsure else instruction_in(system, user)
            if found is None:
                return None
            task, reason = found.task, found.reason
        if task == CLASSIFY:
            text, labels = _labelled(messages)
            return Instruction(task, reason, labels=labels, text=text, unsure=unsure)
        fields = next((names for part in instructions_of(system, user) if (names := fields_in(part))), ())
        return Instruction(task, reason, fields=fields, unsure=unsure)


def _labelled(messages: Sequence[Message]) -> Asked:
    """Return the text to label and the labels that the instruction names: the system's, the last message's with the
    text below it, or the latest one of an earlier turn.
    """
    last = "\n".join(messages[-1].texts)
    earlier = list(_earlier(messages))
    if labels := next((found for role, text in earlier if role == "system" and (found := labels_in(text))), ()):
        return Asked(last, labels)
    asked = read(last)
    if asked.labels:
        return asked
    named = (found for role, text in earlier if role == "user" and (found := read(text).labels))
    return Asked(asked.text, next(named, ()))


def _earlier(messages: Sequence[Message]) -> Iterator[tuple[str, str]]:
    """Yield role and text of what was said before, the latest first, as far as it is read for labels."""
    room = MOST_READ
    for message in reversed(messages[:-1]):
        text = "\n".join(message.texts)
        if message.role in ("system", "user"):
            room -= len(text)
            if room < 0:
                return
            yield message.role, text
