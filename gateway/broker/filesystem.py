"""Celery's messages as files in a folder of this machine, each of them whole.

kombu's own filesystem transport writes a message under its final name: a reader that comes in between takes a part of
it, can't decode that and ends its worker. Here a message gets its name once it is written.
"""

from __future__ import annotations

import logging
import time
import uuid
from pathlib import Path
from queue import Empty
from typing import Any

from kombu.transport import virtual
from kombu.utils.json import dumps, loads

logger = logging.getLogger("sluice.jobs")

_DRAFT = ".draft"
_OLD_SECONDS = 60.0


def make_folder(folder: Path) -> None:
    """Make the folder of the messages, for its owner alone, where it is missing."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


class Channel(virtual.Channel):  # type: ignore[misc] # kombu has no types
    """Puts whole messages, and takes each of them once. Each process declares the queue that it uses."""

    @property
    def _folder(self) -> Path:
        return Path(self.connection.client.transport_options["folder"])

    def _waiting(self, queue: str) -> list[Path]:
        """Return the queue's messages, the oldest first."""
        return sorted(self._folder.glob(f"*.{queue}.msg"))

    def _put(self, queue: str, payload: Any, **options: Any) -> None:
        name = f"{time.time_ns():020d}-{uuid.uuid4().hex}.{queue}.msg"
        draft = self._folder / f"{name}{_DRAFT}"
        text = dumps(payload)
        try:
            draft.write_text(text)
        except FileNotFoundError:  # somebody emptied the queue by removing its folder
            make_folder(self._folder)
            draft.write_text(text)
        draft.rename(self._folder / name)

    def _get(self, queue: str, timeout: float | None = None) -> Any:
        for path in self._waiting(queue):
            try:
                text = path.read_text()
                path.unlink()
            except FileNotFoundError:
                continue  # another worker took it
            try:
                return loads(text)
            except ValueError:  # the machine stopped before its disk had the content
                logger.warning("a message that can't be read was dropped", extra={"file": path.name})
        raise Empty

    def _purge(self, queue: str) -> int:
        waiting = self._waiting(queue)
        for path in waiting:
            path.unlink(missing_ok=True)
        return len(waiting)

    def _size(self, queue: str) -> int:
        return len(self._waiting(queue))


class Transport(virtual.Transport):  # type: ignore[misc] # same
    """`transport_options` give the `folder`."""

    Channel = Channel
    driver_type = driver_name = "filesystem"
    default_port = 0
    polling_interval = 0.25

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver a message; without one raise TimeoutError soon, for the worker looks for signals in between."""
        super().drain_events(connection, timeout=self.polling_interval)

    def establish_connection(self) -> Any:
        """Connect; what a killed process left unfinished is removed."""
        folder = Path(self.client.transport_options["folder"])
        make_folder(folder)
        for draft in folder.glob(f"*{_DRAFT}"):
            try:
                if draft.stat().st_mtime < time.time() - _OLD_SECONDS:
                    draft.unlink()
            except FileNotFoundError:
                continue  # it became a message
        return super().establish_connection()
