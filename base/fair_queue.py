"""A queue whose owners take turns: who has put much in waits for itself, and not others for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, TypeVar

Owner = TypeVar("Owner", bound=Hashable)
T = TypeVar("T")


class FairQueue(Generic[Owner, T]):
    """Gives an item of each owner in turn, each owner's own in the order of their coming."""

    def __init__(self) -> None:
        self._items: dict[Owner, deque[T]] = {}  # in the order of turns

    def put(self, owner: Owner, item: T) -> None:
        """Add an item; an owner that had none has the last turn."""
        self._items.setdefault(owner, deque()).append(item)

    def get(self) -> T:
        """Return the first item of the owner whose turn it is, which has the last turn then; IndexError if none."""
        if not self._items:
            raise IndexError("the queue is empty")
        owner = next(iter(self._items))
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items
        return item
