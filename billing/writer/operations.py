"""What can be asked of the writer, and what it answers: plain data, answered one by one (design: two short
transactions per request, applied in groups).

Amounts are µcr. A request's id is also its hold's id. Every operation is safe to repeat: a second Reserve of an open
hold answers Held with what is held, a second Settle of a settled request answers Settled again when the charge is the
same, and Stale otherwise; so does a second TrueUp.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID


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
    """Raise the hold to min(`amount`, held + what the wallet leaves) if that is at least `least`. Both are absolute."""

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


Operation = Reserve | Extend | Renew | Settle | Release | TrueUp


@dataclass(frozen=True, slots=True)
class Held:
    """Reserve or Extend succeeded: `total` µcr are held now. `available` is what the wallet has left beside it."""

    total: int
    available: int


@dataclass(frozen=True, slots=True)
class Refused:
    """Reserve or Extend was refused: `limit` names what was short (``wallet``), `available` what it had left."""

    limit: str
    available: int


@dataclass(frozen=True, slots=True)
class Renewed:
    """The holds whose leases were renewed; one that isn't here is no longer ours and must be cancelled."""

    holds: frozenset[UUID]


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


Answer = Held | Refused | Renewed | Settled | Stale
