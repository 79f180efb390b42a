"""How much of one tenant's bodies may be on its way into this process: each costs memory before it costs credit."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

from gateway.errors.refusal import Refusal

MOST_BYTES = 64 * 1024 * 1024


class Uploads:
    """Counts by owner what was received of bodies that aren't whole yet."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most = most
        self._bytes: Counter[UUID] = Counter()

    @contextmanager
    def of(self, owner: UUID) -> Iterator[Upload]:
        """One body on its way; it counts no more when the block ends."""
        upload = Upload(self, owner)
        try:
            yield upload
        finally:
            if upload.size:
                self._bytes[owner] -= upload.size
                if not self._bytes[owner]:
                    del self._bytes[owner]

    def add(self, owner: UUID, size: int) -> None:
        """Count `size` bytes more; a Refusal (429) when `owner` has too many."""
        if self._bytes[owner] + size > self._most:
            raise Refusal(
                429,
                "too_many_uploads",
                f"{self._most // 1024 // 1024} MiB of your requests are on their way already.",
                headers={"retry-after": "1", "connection": "close"},
            )
        self._bytes[owner] += size

    def __len__(self) -> int:
        return self._bytes.total()


class Upload:
    """What was received of one body."""

    def __init__(self, uploads: Uploads, owner: UUID) -> None:
        self._uploads = uploads
        self._owner = owner
        self.size = 0

    def add(self, size: int) -> None:
        """Count `size` bytes more."""
        self._uploads.add(self._owner, size)
        self.size += size
