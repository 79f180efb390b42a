"""What can be asked of the writer, and what it answers: plain data, answered one by one (design: two short
transactions per request, applied in groups).

Amounts are µcr. A request's id is also its hold's id. Every operation is safe to repeat: a second Reserve of an open
hold answers Held with what is held, a second Settle of a settled request answers Settled again when the charge is the
same, and Stale otherwise; so does a second TrueUp.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

LEASE_SECONDS = 30
"""How long a hold is its owner's alone after it was made or renewed, by the database's clock."""


@dataclass(frozen=True, slots=True)
class Reserve:
    """Hold min(`amount`, what the wallet leaves) if that is at least `least`; otherwise refuse, touching nothing.

    `facts` (endpoint, task, route, end_user, streamed) are kept with the hold for its usage record, whoever closes it.
    """

    request: UUID
    wallet: UUID
    amount: int
    least: int
    owner: UUID  # the gateway's incarnation
    deployment: UUID
    card_version: UUID
    tenant: UUID
    project: UUID
    api_key: UUID | None
    model: str
    multiplier_bp: int = 10_000
    user: UUID | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Extend:
    """Raise the hold to min(`amount`, held + what the wallet leaves) if that is at least `least`. Both are absolute.

    What ended since the hold was made is not among what the wallet leaves, and a frozen wallet leaves nothing.
    """

    request: UUID
    wallet: UUID
    amount: int
    least: int


@dataclass(frozen=True, slots=True)
class Renew:
    """Renew the leases of this owner's open holds and keep their checkpoints (cumulative classes)."""

    owner: UUID
    checkpoints: Mapping[UUID, Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Settle:
    """Close the hold with `charge` for `classes`; `facts` (waived, finish, ttft_ms, duration_ms) say how it ended.

    The charge may exceed what is held: the rest is taken from the wallet, then from its overdraft.
    """

    request: UUID
    wallet: UUID
    charge: int
    classes: Mapping[str, int]
    facts: Mapping[str, Any] = field(default_factory=dict)
    exact: bool = True


@dataclass(frozen=True, slots=True)
class Release:
    """Close the hold without a charge: nothing ran or, with the fact `waived`, we broke it and delivered nothing.

    Leaves a usage record with charge 0.
    """

    request: UUID
    wallet: UUID
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TrueUp:
    """Correct a closed request whose usage record is an estimate: `charge` is the whole exact charge for `classes`.

    The record gets its next revision, which is exact and final, and the difference is posted once. A debit burns the
    grants that are live now in burn-down order, then overdraws; a credit goes back to where the charge came from, last
    taken first. `finish` says how the request really ended; "" leaves what the estimate says.
    """

    request: UUID
    wallet: UUID
    charge: int
    classes: Mapping[str, int]
    finish: str = ""


@dataclass(frozen=True, slots=True)
class Roll:
    """Post what the wallet's grants lost by time to breakage; what open holds made before may need stays.

    Every other operation that decides over credit does the same first: this is for wallets that nobody asks for.
    """

    wallet: UUID


Operation = Reserve | Extend | Renew | Settle | Release | TrueUp | Roll


@dataclass(frozen=True, slots=True)
class Held:
    """Reserve or Extend succeeded: `total` µcr are held now. `available` is what the wallet has left beside it."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Reserve or Extend was refused: `limit` says why (``wallet`` is short, ``wallet_frozen``), `available` what it had
    left.
    """

    limit: str
    available: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The holds whose leases were renewed; one that is in neither set is no longer ours and must be cancelled.

    Those in `busy` are locked by somebody else just now: their leases are as before, ask again.
    """

    holds: frozenset[UUID]
    busy: frozenset[UUID] = frozenset()


@dataclass(frozen=True, slots=True)
class Settled:
    """The hold is closed (or its record corrected) and `charge` µcr were taken in all.

    `posted` and `held` are the wallet's after it.
    """

    charge: int
    posted: int
    held: int


@dataclass(frozen=True, slots=True)
class Stale:
    """There is no such open hold (any more): somebody else closed it, or it never was.

    To a TrueUp: there is no such estimate, or it has been corrected otherwise.
    """


@dataclass(frozen=True, slots=True)
class Rolled:
    """`expired` µcr went to breakage; `posted` and `held` are the wallet's after it."""

    expired: int
    posted: int
    held: int


Answer = Held | Refused | Renewed | Settled | Stale | Rolled


@dataclass(frozen=True, slots=True)
class Locked:
    """What a driver tells the queue of an operation whose wallet or hold somebody else has locked: nothing is done."""


def requests_of(operation: Operation) -> Iterable[UUID]:
    """The requests that an operation touches."""
    if isinstance(operation, Renew):
        return operation.checkpoints.keys()
    return () if isinstance(operation, Roll) else (operation.request,)
