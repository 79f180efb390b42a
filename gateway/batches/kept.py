"""A line's kept answer, for when its key may not ask for it any more."""

from __future__ import annotations

from gateway.batches.models import Batch, BatchLine
from gateway.batches.outcomes import Reply, UnknownError
from gateway.durable import answers
from gateway.durable.room import LINE
from gateway.errors.refusal import Refusal


def kept_reply(batch: Batch, line: BatchLine) -> Reply | UnknownError | None:
    """Return the answer that is kept of the line, an error while it is being made or can't be read, and None where it
    never ran or was lost with its gateway, which costs nothing.
    """
    run = answers.run_of(batch.tenant_id, f"{LINE}{line.id.hex}")
    if run is None or answers.look(run) is None:
        return None
    try:
        stored = answers.read(run)
    except Refusal as error:  # it was kept under a secret that isn't known
        return UnknownError(error.message)
    if stored is None:
        return UnknownError("a gateway makes its answer")
    return Reply(stored.head.status, str(run), None, stored.body)
