"""By what a line of a batch shows a gateway that the jobs sent it: signed, good for some minutes and for it alone."""

from __future__ import annotations

from uuid import UUID

from django.core import signing

from gateway.runtime.principal import Line

PREFIX = "batch-line."
SECONDS = 300
OVER = "batch_over"
"""The code of the answer to a line that didn't run before the end of its batch, and won't any more."""
_SALT = "gateway.batches"


def credential_of(key: UUID, line: Line) -> str:
    """Return what stands in the place of an API key: that of the batch's maker, for one line."""
    return PREFIX + signing.dumps([key.hex, line.batch.hex, line.id.hex, line.is_over], salt=_SALT)


def line_in(credential: str) -> tuple[UUID, Line] | None:
    """Return the key and the line that `credential` is for; None for one that isn't ours, or is too old."""
    try:
        key, batch, line, is_over = signing.loads(credential.removeprefix(PREFIX), salt=_SALT, max_age=SECONDS)
        return UUID(key), Line(UUID(line), UUID(batch), is_over)
    except (signing.BadSignature, ValueError):
        return None
