"""The writer's operations and their answers, as plain data. A request takes two at least: Reserve, then Settle or
Release. They are structs: a frozen dataclass takes four times as long to make.

Amounts are µcr. A request's id is also its hold's id. Operations of requests are safe to repeat: a second Reserve or
Repin of an open hold answers Held with what is held, a second Settle of a settled request answers Settled again when
the charge is the same, and Stale otherwise; so does a second TrueUp. Grant, Void and Adjust have keys, unique in the
ledger: `services.credits` answers a key that was used before; so has a Refund.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import msgspec

from base import leases
from base.ids import uuid7
from billing.codes import Code
from billing.periods import minute_of, window_of
from billing.promises import Measured

_MOST_PARTS = 64  # of a request's budgets that are remembered

LEASE_SECONDS = leases.SECONDS
"""How long the lease of a hold lasts after the hold was made or renewed, by the database's clock: until then no sweep
takes it from its owner."""


class RequestFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts known when a hold is made and kept with it, for the usage record that takes its place; `streamed` and
    `kept` are for the sweep of orphaned holds alone.
    """

    endpoint: str = ""
    task: str = ""
    route: Mapping[str, Any] | None = None
    end_user: str = ""
    streamed: bool = False  # the answer was sent while it was generated
    kept: str = ""  # the run of the kept answer that it belongs to


class EndFacts(msgspec.Struct, frozen=True):
    """Facts known when a request ends, for its usage record. Of a request that moved, `route` takes the place of the
    hold's. `promise` is how it did by its plan's promise, None where that makes none.
    """

    finish: str = ""
    waived: bool = False
    ttft_ms: int | None = None
    duration_ms: int | None = None
    route: Mapping[str, Any] | None = None
    promise: Measured | None = None


class BudgetTerms(msgspec.Struct, frozen=True):
    """What never changes of a budget (`billing.models.Budget`): whose spending it counts, and in which windows.

    `number` is its number in its wallet, `anchor` a minute as `billing.periods` counts them.
    """

    number: int
    window: str  # Budget.Window
    anchor: int
    time_zone: str
    name: str = ""
    scope: str = ""  # Budget.Scope
    subject: str = ""


class Bearing:
    """The budgets that bear on requests, with the names of their windows of now, which are remembered until one ends;
    and the parts of them that bore on some requests alone, so that these remember theirs.

    A name is the budget's number in its wallet, a point, and the minute of the window's beginning.
    """

    __slots__ = ("_named", "_parts", "terms")

    def __init__(self, terms: tuple[BudgetTerms, ...] = ()) -> None:
        self.terms = terms
        self._named = ("", datetime.max.replace(tzinfo=UTC), datetime.min.replace(tzinfo=UTC))
        self._parts: dict[tuple[int, ...], Bearing] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Bearing) and self.terms == other.terms

    def __hash__(self) -> int:
        return hash(self.terms)

    def part(self, terms: tuple[BudgetTerms, ...]) -> Bearing:
        """Return these of its budgets: the same object for the same ones, while it is remembered."""
        if len(terms) == len(self.terms):
            return self
        numbers = tuple([one.number for one in terms])
        found = self._parts.get(numbers)
        if found is None:
            if len(self._parts) >= _MOST_PARTS:
                self._parts.clear()
            found = self._parts[numbers] = Bearing(terms)
        return found

    def windows(self, now: datetime) -> str:
        """Return the names of the windows that `now` is in, with spaces between."""
        text, since, until = self._named
        if since <= now < until or not self.terms:
            return text
        found = [window_of(one.window, one.anchor, one.time_zone, now) for one in self.terms]
        named = zip(self.terms, found, strict=True)
        text = " ".join([f"{one.number}.{minute_of(period.start)}" for one, period in named])
        self._named = text, max(period.start for period in found), min(period.end for period in found)
        return text


NO_BUDGETS = Bearing()


class Reserve(msgspec.Struct, frozen=True):
    """Hold min(`amount`, the wallet's available credit for the model, what is left of each hard one of its `budgets`)
    if that is at least `least`; otherwise refuse, changing nothing. The hold counts in the windows of now of all of its
    budgets.
    """

    request: UUID
    wallet: UUID
    amount: int
    least: int
    owner: UUID  # id of the gateway process that made it
    deployment: UUID
    card_version: UUID
    tenant: UUID
    project: UUID
    api_key: UUID | None
    model: str
    multiplier_bp: int = 10_000
    user: UUID | None = None
    facts: RequestFacts = RequestFacts()
    budgets: Bearing = NO_BUDGETS


class Extend(msgspec.Struct, frozen=True):
    """Raise the hold to min(`amount`, held + available credit) if that is at least `least`, else refuse, changing
    nothing.

    Both are the hold's whole amount, not an increase. Grants that have ended are not available; nor is anything of a
    frozen wallet, nor more than is left of the hold's budgets in the windows that it counts in.
    """

    request: UUID
    wallet: UUID
    amount: int
    least: int


class Repin(msgspec.Struct, frozen=True):
    """Pin the hold of a request that moved before its first token to another deployment and card version, and raise it
    to min(`amount`, held + available credit) if that is at least `least`; else refuse, changing nothing.

    Both are the hold's whole amount at the new prices. What is held already falls only where the models are in
    different pools of credit and there isn't as much for the new one. `facts` take the place of the Reserve's, and
    `multiplier_bp` that of the multiplier, where it is given.
    """

    request: UUID
    wallet: UUID
    amount: int
    least: int
    deployment: UUID
    card_version: UUID
    model: str
    facts: RequestFacts = RequestFacts()
    multiplier_bp: int | None = None


class Renew(msgspec.Struct, frozen=True):
    """Renew the leases of this owner's open holds and store their checkpoints (tokens by usage class since the
    start) in place of the former ones; an empty one leaves what is there.
    """

    owner: UUID
    checkpoints: Mapping[UUID, Mapping[str, int]]


class Settle(msgspec.Struct, frozen=True):
    """Close the hold and charge `charge` µcr for `classes` (tokens by usage class).

    A charge above what is held takes the rest from the wallet's other grants, then overdraws it. Not `exact` is an
    estimate.
    """

    request: UUID
    wallet: UUID
    charge: int
    classes: Mapping[str, int]
    facts: EndFacts = EndFacts()
    exact: bool = True


class Release(msgspec.Struct, frozen=True):
    """Close the hold without a charge: nothing ran or, with the fact `waived`, it failed through us with nothing
    delivered.

    Leaves a usage record with charge 0.
    """

    request: UUID
    wallet: UUID
    facts: EndFacts = EndFacts()


class TrueUp(msgspec.Struct, frozen=True):
    """Correct a closed request whose usage record is an estimate: `charge` is the whole exact charge for `classes`.

    The record gets its next revision, which is exact and final, and the difference is posted once. More is taken from
    the grants that are live now in burn order, then overdraws; less is given back to where the charge was taken
    from, last taken first. `finish` says how the request really ended; "" keeps what the estimate says.
    """

    request: UUID
    wallet: UUID
    charge: int
    classes: Mapping[str, int]
    finish: str = ""


class Refund(msgspec.Struct, frozen=True, kw_only=True):
    """Give back `amount` µcr of what a closed request was charged, to where it was taken from, last taken first; or
    refuse where it was charged less. The record gets its next revision. `code` says why: a person's decision, or a
    promise that was missed.
    """

    request: UUID
    wallet: UUID
    amount: int
    key: str
    actor: str
    reason: str
    code: Code = Code.REQUEST_REFUND


class Rerate(msgspec.Struct, frozen=True, kw_only=True):
    """Price a closed request anew: `charge` is what its tokens cost by `card_version` and `multiplier_bp`.

    The record gets its next revision, and the difference is posted as a true-up's is. What was refunded of it stays
    refunded: all of the new price where that was all, else as much, but no more than the new price. Stale where
    `revision` isn't its last one any more; a record that `run` re-rated before stays as it is.
    """

    request: UUID
    wallet: UUID
    revision: int
    charge: int
    card_version: UUID
    multiplier_bp: int
    run: UUID
    actor: str
    reason: str


class ExpireGrants(msgspec.Struct, frozen=True):
    """Give the wallet its scheduled grants that have begun, post what has expired of its grants to breakage (what open
    holds made before their end may need is kept), and note when its next grant begins or ends.

    Every other operation that depends on available credit does the same first: this is for wallets in no use.
    """

    wallet: UUID


class Grant(msgspec.Struct, frozen=True, kw_only=True):
    """Add `amount` µcr to the wallet as a grant, and repay from it at once what the wallet is overdrawn by, unless it
    is restricted to `models` (public names in alphabetical order, a line each).
    """

    wallet: UUID
    amount: int
    kind: str  # CreditGrant.Kind
    key: str
    actor: str
    reason: str
    priority: int = 50
    expires_at: datetime | None = None
    source: str = ""
    paid_amount: int | None = None
    currency: str = ""
    models: str = ""
    paid_reference: str = ""
    rollover: int | None = None
    rollover_until: datetime | None = None
    id: UUID = msgspec.field(default_factory=uuid7)


class Void(msgspec.Struct, frozen=True, kw_only=True):
    """End a grant now, and transfer what no open hold may need of it to its issuance account. What holds leave of it
    goes to breakage, as if it had expired. Nothing happens to a grant that has ended or is used up.
    """

    wallet: UUID
    grant: UUID
    key: str
    actor: str
    reason: str
    is_refund: bool = False  # money is paid back for it
    most: int | None = None  # take no more, and let the grant go on where that leaves something


class Adjust(msgspec.Struct, frozen=True, kw_only=True):
    """Correct the wallet by `amount` µcr: a new promotional grant when positive, else taken from the live grants in
    burn order, restricted ones last, or refused where that would take held credit.
    """

    wallet: UUID
    amount: int
    key: str
    actor: str
    reason: str
    grant: UUID = msgspec.field(default_factory=uuid7)


Operation = (
    Reserve
    | Extend
    | Repin
    | Renew
    | Settle
    | Release
    | TrueUp
    | Refund
    | Rerate
    | ExpireGrants
    | Grant
    | Void
    | Adjust
)


class Held(msgspec.Struct, frozen=True):
    """Reserve, Extend or Repin succeeded: `total` µcr are held for the request, `available` µcr can still be held for
    its model.
    """

    total: int
    available: int


class Refused(msgspec.Struct, frozen=True):
    """Reserve, Extend, Repin, Adjust or Refund was refused: `limit` says why (``wallet``: too little credit,
    ``wallet_frozen``, ``budget``, which `budget` names by its number, or ``charge``: what the request is charged), and
    `available` how many µcr are left there. `freed` is how many there would be under all limits if other requests gave
    back all that they hold: what fits in that may be asked again, and for what doesn't, `limit` is the one that would
    still be in the way.
    """

    limit: str
    available: int
    freed: int = 0
    budget: int = 0


class Renewed(msgspec.Struct, frozen=True):
    """The holds whose leases were renewed. A hold in neither set is lost to this owner: its request must be stopped.

    Those in `busy` are locked by another transaction: their leases are unchanged, renew them again.
    """

    holds: frozenset[UUID]
    busy: frozenset[UUID] = frozenset()


class Settled(msgspec.Struct, frozen=True):
    """The hold is closed (or its record corrected) and the request is charged `charge` µcr in all.

    `posted` and `held` are the wallet's sums afterwards, in µcr; `restricted` of what isn't held is for some models
    alone.
    """

    charge: int
    posted: int
    held: int
    restricted: int = 0


class Stale(msgspec.Struct, frozen=True):
    """There is no such open hold: it was closed with another charge, or it never was. Nothing was changed.

    To a TrueUp: there is no such estimate, or it was corrected to another charge. To a Refund or a Rerate: there is no
    such record, or it has another revision by now.
    """


class GrantsExpired(msgspec.Struct, frozen=True):
    """`expired` µcr went to breakage; `posted` and `held` are the wallet's sums afterwards, in µcr."""

    expired: int
    posted: int
    held: int


class Moved(msgspec.Struct, frozen=True):
    """`amount` µcr came into the wallet by a Grant or an Adjust, were taken out by a Void or an Adjust, or were given
    back by a Refund.
    """

    amount: int


Answer = Held | Refused | Renewed | Settled | Stale | GrantsExpired | Moved


class Locked(msgspec.Struct, frozen=True):
    """A driver's answer for an operation whose wallet or hold another transaction has locked: nothing was changed."""


def requests_of(operation: Operation) -> Iterable[UUID]:
    """Return the ids of the requests that an operation is about."""
    if isinstance(operation, Renew):
        return operation.checkpoints.keys()
    return () if isinstance(operation, ExpireGrants | Grant | Void | Adjust) else (operation.request,)
