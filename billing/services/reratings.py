"""Re-rating: the requests of a time rated anew by other prices, a chunk at a time, for real or as a what-if.

Both are the same code: a what-if leaves out what a run for real has the writer do with each request whose price is
another. A chunk is one transaction with the note of how far the run is, so a run that is killed goes on where it was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

from django.db import IntegrityError, connection, transaction
from django.db.models import F, Sum

from base import clock
from base.ids import day_of, first_at, moment_of
from base.sql import load
from billing import rating
from billing.models import Hold, PlanVersion, RateCardVersion, Rerating, UsageRecord, UsageRollup, prices_of
from billing.rating import CLASSES, CardPrices
from billing.seals import archived
from billing.services.errors import RerateError
from billing.writer.apply import apply_now
from billing.writer.corrections import still_refunded
from billing.writer.operations import Rerate, Stale

CHUNK, CHUNK_OF_WHAT_IFS = 200, 2_000
"""Revisions that one transaction looks at: one for real keeps other requests of its wallets waiting meanwhile."""
SETTLED = timedelta(minutes=10)
"""How long after its id was made a request surely holds credit, if it runs: until then no run passes it."""
CORRECTABLE = timedelta(hours=25)
"""How long an estimate may still be corrected: until then it is left, since a true-up computes by the prices that it
had.
"""

_ADD = load(Path(__file__).parents[1] / "sql" / "reratings.sql")["add"]
_COLUMNS = (
    *("request", "wallet", "tenant", "model", "revision", "charge", "refunded", "exact", "waived", "card_version"),
    *("multiplier_bp", "reserved_at", *(f"{name}_tokens" for name in CLASSES)),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """What is rated anew, and how; see `Rerating`."""

    since: datetime
    until: datetime | None = None
    tenants: Collection[UUID] = ()
    models: Collection[str] = ()
    card: str = ""
    version: RateCardVersion | None = None
    prices: CardPrices | None = None
    cards: Mapping[str, str] = field(default_factory=dict)
    multiplier: tuple[int, int] | None = None  # of plans that had the first the second, in basis points
    follows: bool = False

    def check(self, now: datetime) -> None:
        """Raise RerateError, which names the field, for terms that can't be."""
        by = [name for name in ("version", "prices", "cards") if getattr(self, name)]
        if len(by) > 1:
            raise RerateError(f"{by[1]}: a run has one kind of prices, and this has {by[0]} too")
        if not by and self.multiplier is None:
            raise RerateError("version: a run needs a version, prices, the models' cards or a multiplier")
        if self.version is not None and self.version.published_at is None:
            raise RerateError("version: it isn't published")
        if self.multiplier is not None and min(self.multiplier) < 0:
            raise RerateError("multiplier: must not be below zero")
        if self.follows and not self.card:
            raise RerateError("card: a shadow needs the card whose next version ends it")
        if self.follows and self.until is not None:
            raise RerateError("until: a shadow goes on until the next version is in force")
        if self.since >= (self.until or now):
            raise RerateError("since: must be before the end of the time")
        if self.until is not None and self.until > now:
            raise RerateError("until: must not be in the future")
        if self.multiplier is not None:
            _check_multiplier(*self.multiplier, is_of_all=not self.tenants)


def ask(
    terms: Terms, *, commit: bool = False, asked_by: str = "", reason: str = "", what_if: Rerating | None = None
) -> Rerating:
    """Return a new run; periodic work does it. Raise RerateError, which names the field, where it can't be, and while
    another one for real goes on.
    """
    now = clock.now()
    if not terms.follows and terms.until is None:
        terms = replace(terms, until=now - SETTLED)
    terms.check(now)
    if (until := archived.edge()) is not None and terms.since < until:
        raise RerateError(f"since: what was before {until:%Y-%m-%d} is archived, and its charges are final")
    if commit and terms.prices is not None:
        raise RerateError("prices: publish them first; a request is charged by a version that everybody can look up")
    if commit and terms.follows:
        raise RerateError("follows: only a what-if does")
    if commit and not reason.strip():
        raise RerateError("reason: a re-rating for real needs one")
    was, then = terms.multiplier or (None, None)
    run = Rerating(
        since=terms.since, until=terms.until, tenants=[str(one) for one in terms.tenants],
        model_names=list(terms.models), card=terms.card, version=terms.version,
        prices=None if terms.prices is None else stored(terms.prices), cards=dict(terms.cards), multiplier_was=was,
        multiplier_bp=then, follows=terms.follows, commit=commit, total=0 if terms.follows else _total(terms),
        asked_by=asked_by[:120], reason=reason, what_if=what_if,
    )  # fmt: skip
    try:
        with transaction.atomic():
            run.save(force_insert=True)
    except IntegrityError:
        raise RerateError("commit: another re-rating goes on; begin when that has ended") from None
    return Rerating.objects.get(pk=run.pk)


def carry_out(what_if: Rerating, *, asked_by: str, reason: str) -> Rerating:
    """Return a run that does for real what an ended what-if said. Raise RerateError as `ask` does."""
    if what_if.commit or what_if.ended_at is None or what_if.is_stopped:
        raise RerateError("what_if: wait until it has ended")
    return ask(terms_of(what_if), commit=True, asked_by=asked_by, reason=reason, what_if=what_if)


def shadow_of(what_if: Rerating, *, asked_by: str) -> Rerating:
    """Return a shadow by the prices of a what-if, from its begin on; the one that goes on, if there is one.

    Raise RerateError as `ask` does.
    """
    for run in Rerating.objects.filter(follows=True, ended_at=None, card=what_if.card):
        if (run.prices, run.version_id) == (what_if.prices, what_if.version_id):
            return run
    return ask(replace(terms_of(what_if), until=None, follows=True), asked_by=asked_by)


def terms_of(run: Rerating) -> Terms:
    """Return what a run rates anew, and how."""
    was, then = run.multiplier_was, run.multiplier_bp
    return Terms(
        since=run.since,
        until=run.until,
        tenants=[UUID(one) for one in run.tenants],
        models=run.model_names,
        card=run.card,
        version=run.version,
        prices=None if run.prices is None else _restored(run),
        cards=run.cards,
        multiplier=None if was is None or then is None else (was, then),
    )


def stop(run: Rerating) -> bool:
    """End a run where it is, and return whether it went on; what it did for real stays."""
    now = clock.now()
    return Rerating.objects.filter(pk=run.pk, ended_at=None).update(ended_at=now, is_stopped=True) > 0


def turn() -> bool:
    """Do a chunk of a run that goes on, one for real first and shadows last, and return whether there was one."""
    runs = Rerating.objects.filter(ended_at=None).select_related("version").order_by("-commit", "follows", "created_at")
    return any(step(run) for run in runs)


def step(run: Rerating, size: int | None = None) -> bool:
    """Do the run's next chunk, and return whether there was one; of several that do it at a time, one does."""
    if run.ended_at is not None:
        return False
    size = size or (CHUNK if run.commit else CHUNK_OF_WHAT_IFS)
    now = clock.now()
    until, bound = _reach(run, now)
    rows, is_all = _rows(run, bound, size)
    is_over = is_all and until is not None and bound == first_at(until)
    if not rows and not is_over:
        return False
    chunk = _Chunk(run, now, rows)
    noted = {"last": rows[-1].request} if rows else {}
    try:
        with transaction.atomic():
            present = Rerating.objects.filter(pk=run.pk, last=run.last, ended_at=None)
            if present.update(**noted, **chunk.counts(), **({"ended_at": now, "until": until} if is_over else {})):
                chunk.do()
    except _OvertakenError:
        pass  # a record has another revision since it was read: the chunk is read again
    run.refresh_from_db()
    return True


class _OvertakenError(Exception):
    """A request of a chunk was corrected while that was rated."""


class _Line(NamedTuple):
    """The columns of a record that a run looks at."""

    request: UUID
    wallet: UUID
    tenant: UUID
    model: str
    revision: int
    charge: int
    refunded: int
    exact: bool
    waived: bool
    card_version: UUID
    multiplier_bp: int
    reserved_at: datetime
    tokens: tuple[int, ...]

    @classmethod
    def of(cls, row: Sequence[Any]) -> _Line:
        """Return the line of a row of `_COLUMNS`."""
        fixed = len(_COLUMNS) - len(CLASSES)
        return cls._make((*row[:fixed], tuple(row[fixed:])))

    @property
    def classes(self) -> dict[str, int]:
        """Its tokens by class, those that there are."""
        return {name: tokens for name, tokens in zip(CLASSES, self.tokens, strict=True) if tokens}


class _Chunk:
    """Requests rated anew: what they come to, and the operations that a run for real has the writer do."""

    def __init__(self, run: Rerating, now: datetime, rows: Sequence[_Line]) -> None:
        self._run = run
        self._looked = len(rows)
        self._counted = self._left = self._before = self._after = 0
        self._operations: list[Rerate] = []
        self._sums: dict[tuple[UUID, str, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0])
        pricing = _Pricing(run, {one.card_version for one in rows})
        for one in rows:
            if not one.exact and moment_of(one.request) > now - CORRECTABLE:
                self._left += 1
            elif not one.waived and (classes := one.classes):
                self._rate(one, classes, pricing)

    def counts(self) -> dict[str, Any]:
        """Return the run's columns with what the chunk adds to them."""
        added = {
            "looked": self._looked, "counted": self._counted, "changed": len(self._operations), "left": self._left,
            "before": self._before, "after": self._after,
        }  # fmt: skip
        return {name: F(name) + value for name, value in added.items()}

    def do(self) -> None:
        """Have the writer correct the requests, if it is for real, and add to the run's sums."""
        if self._run.commit and any(isinstance(answer, Stale) for answer in apply_now(self._operations)):
            raise _OvertakenError
        rows = [
            (_id(self._run.pk), _id(tenant), *names, *sums) for (tenant, *names), sums in sorted(self._sums.items())
        ]
        with connection.cursor() as cursor:
            cursor.executemany(_ADD, rows)

    def _rate(self, one: _Line, classes: dict[str, int], pricing: _Pricing) -> None:
        own = pricing.own(one)
        card, multiplier = pricing.of(one)
        if card is None:
            self._left += 1
            return
        price, before = rating.charge(classes, card, multiplier), one.charge + one.refunded
        after = price - still_refunded(price, one.charge, one.refunded)
        self._counted += 1
        self._before += one.charge
        self._after += after
        self._add(one, "", (1, sum(one.tokens), one.charge, after))
        had = {} if own is None else rating.shares(classes, own, one.multiplier_bp)
        has = rating.shares(classes, card, multiplier)
        for name in had | has:
            self._add(one, name, (1, classes.get(name, 0), had.get(name, 0), has.get(name, 0)))
        if price != before:
            self._operations.append(
                Rerate(
                    request=one.request,
                    wallet=one.wallet,
                    revision=one.revision,
                    charge=price,
                    card_version=card.id,
                    multiplier_bp=multiplier,
                    run=self._run.pk,
                    actor=self._run.asked_by,
                    reason=self._run.reason,
                )
            )

    def _add(self, one: _Line, usage_class: str, sums: Sequence[int]) -> None:
        had = self._sums[one.tenant, one.model, usage_class]
        for at, value in enumerate(sums):
            had[at] += value


class _Pricing:
    """The prices that a run gives to requests, and those that they have."""

    def __init__(self, run: Rerating, versions: set[UUID]) -> None:
        self._run = run
        self._own = prices_of(versions)
        self._fixed = None if run.prices is None else _restored(run)
        if run.version_id is not None:
            self._fixed = prices_of([run.version_id])[run.version_id]
        self._cards = _versions_of(set(run.cards.values()))
        was, then = run.multiplier_was, run.multiplier_bp
        self._multipliers = {} if was is None or then is None else _moved(was, then, _batch_factors())

    def own(self, one: _Line) -> CardPrices | None:
        """Return the prices that the request has."""
        return self._own.get(one.card_version)

    def of(self, one: _Line) -> tuple[CardPrices | None, int]:
        """Return the prices and the multiplier that the request gets; None where those that it had aren't known."""
        multiplier = min(self._multipliers.get(one.multiplier_bp, {one.multiplier_bp}))
        return self._fixed or self._in_force(one) or self.own(one), multiplier

    def _in_force(self, one: _Line) -> CardPrices | None:
        """Return the prices of the model's card when the request began, None where there were none."""
        begins, found = self._cards.get(self._run.cards.get(one.model, ""), ([], []))
        at = bisect_right(begins, one.reserved_at)
        return found[at - 1] if at else None


def _batch_factors() -> set[int]:
    """Return the parts of the rates that batches pay by any price list, in basis points."""
    published = RateCardVersion.objects.filter(published_at__isnull=False)
    return set(published.values_list("batch_bp", flat=True).distinct())


def _moved(was: int, then: int, batches: Collection[int]) -> dict[int, set[int]]:
    """Return by a request's multiplier those that it gets where its plan's was one and is another then: as a request
    without a tier, in each tier of such plans, and as the line of a batch.
    """
    tiers = PlanVersion.objects.filter(multiplier_bp=was).values_list("flex_bp", "priority_bp")
    moved: dict[int, set[int]] = defaultdict(set)
    for factor in {rating.WHOLE_BP, *batches, *chain.from_iterable(tiers)}:
        moved[rating.tier_multiplier(was, factor)].add(rating.tier_multiplier(then, factor))
    return dict(moved)


def _check_multiplier(was: int, then: int, *, is_of_all: bool) -> None:
    """Raise RerateError where a request's multiplier doesn't tell whether it gets another, or which: records keep
    neither the plan nor the service tier.
    """
    batches = _batch_factors()
    moved = _moved(was, then, batches)
    for had, gets in moved.items():
        if len(gets) > 1:
            raise RerateError(f"multiplier: where a request's was {had / rating.WHOLE_BP:g}, nothing tells its tier")
    if not is_of_all:
        return
    for version in PlanVersion.objects.exclude(multiplier_bp=was).select_related("plan"):
        for factor in {rating.WHOLE_BP, version.flex_bp, version.priority_bp, *batches}:
            had = rating.tier_multiplier(version.multiplier_bp, factor)
            if moved.get(had, {had}) != {had}:
                raise RerateError(
                    f"tenants: name those of the plan; requests of {version} have the multiplier "
                    f"{had / rating.WHOLE_BP:g} too"
                )


def _versions_of(cards: set[str]) -> dict[str, tuple[list[datetime], list[CardPrices]]]:
    """Return the published versions of the cards in the order of time: when they begin, and their prices."""
    rows = RateCardVersion.objects.filter(card__name__in=cards, published_at__isnull=False).order_by("effective_from")
    named = list(rows.values_list("card__name", "effective_from", "pk")) if cards else []
    prices = prices_of([pk for *_, pk in named])
    found: dict[str, tuple[list[datetime], list[CardPrices]]] = defaultdict(lambda: ([], []))
    for card, begins, pk in named:
        found[card][0].append(begins)
        found[card][1].append(prices[pk])
    return found


def _reach(run: Rerating, now: datetime) -> tuple[datetime | None, UUID]:
    """Return when the run's time ends, None while a shadow goes on, and the id before which all of its requests are
    settled.
    """
    until = run.until
    if run.follows and until is None:
        later = RateCardVersion.objects.filter(card__name=run.card, published_at__isnull=False)
        later = later.filter(effective_from__gt=run.created_at, effective_from__lte=now)
        until = later.order_by("effective_from").values_list("effective_from", flat=True).first()
    bound = first_at(now - SETTLED if until is None else min(until, now - SETTLED))
    holds = Hold.objects.filter(pk__gt=run.last or first_at(run.since), pk__lt=bound)
    if run.tenants:
        holds = holds.filter(tenant__in=run.tenants)
    return until, holds.order_by("pk").values_list("pk", flat=True).first() or bound


def _rows(run: Rerating, bound: UUID, size: int) -> tuple[list[_Line], bool]:
    """Return the last revisions of the next requests, and whether these are all up to `bound`.

    It walks an index over all revisions: those of the last request may be cut off, so it is left for the next chunk.
    """
    first = run.last or first_at(run.since)
    rows = UsageRecord.objects.filter(day__gte=day_of(first), day__lte=day_of(bound), request__lt=bound)
    rows = rows.filter(request__gt=first) if run.last else rows.filter(request__gte=first)
    if run.tenants:
        rows = rows.filter(tenant__in=run.tenants)
    if run.model_names:
        rows = rows.filter(model__in=run.model_names)
    found = list(map(_Line.of, rows.order_by("day", "request", "revision").values_list(*_COLUMNS)[:size]))
    last = {one.request: one for one in found}
    is_all = len(found) < size
    if not is_all and len(last) > 1:
        last.popitem()
    return list(last.values()), is_all


def _total(terms: Terms) -> int:
    """Return about how many requests there are: those of the hours that the time touches, by the sums."""
    hours = {"hour__gte": terms.since.replace(minute=0, second=0, microsecond=0), "hour__lt": terms.until}
    rows = UsageRollup.objects.filter(**hours)
    if terms.tenants:
        rows = rows.filter(tenant__in=terms.tenants)
    if terms.models:
        rows = rows.filter(model__in=terms.models)
    return rows.aggregate(sum=Sum("requests"))["sum"] or 0


def stored(prices: CardPrices) -> dict[str, Any]:
    """Return prices as `Rerating.prices` keeps them."""
    tiers = [[tier.min_context, dict(tier.rates)] for tier in prices.tiers]
    return {"request_fee": prices.request_fee, "batch_bp": prices.batch_bp, "tiers": tiers}


def _restored(run: Rerating) -> CardPrices:
    kept: Any = run.prices
    rates = [(start, name, rate) for start, of in kept["tiers"] for name, rate in of.items()]
    return CardPrices.build(run.pk, kept["request_fee"], rates, kept["batch_bp"])


def _id(identifier: UUID) -> Any:
    """Return an id as raw SQL takes it."""
    return identifier if connection.vendor == "postgresql" else identifier.hex
