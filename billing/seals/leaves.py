"""The leaves of a tenant's tree: its usage records and transfers in the order in which they were booked.

A leaf is the text of its fields, a line each; words that may have to be erased stand in it as a salted commitment. Rows
are read a chunk at a time, by the indexes that begin with their owner: memory doesn't grow with their number.
"""

from __future__ import annotations

import hashlib
import heapq
import operator
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from django.db.models import OuterRef, Q, QuerySet, Subquery

from billing.codes import Code
from billing.models import ErasedWords, LedgerAccount, LedgerTransfer, RateCardVersion, UsageRecord
from billing.rating import CLASSES, CardPrices
from billing.seals import archived, tree
from billing.seals.keys import Salts, text_of

CHUNK = 1_000
RECORD, TRANSFER = 0, 1
ELSEWHERE = "elsewhere"
"""An account that is neither the tenant's nor the operator's."""
RECORD_FIELDS = (
    *("id", "tenant", "booked_at", "request", "revision", "project", "api_key", "wallet"),
    *CLASSES,
    *("card", "formula", "multiplier_bp", "was", "charge", "refunded", "exact", "waived", "words"),
)
TRANSFER_FIELDS = (
    *("id", "tenant", "booked_at", "effective_at", "code", "debit", "credit", "amount"),
    *("request", "order", "grant", "words"),
)
_RECORD_COLUMNS = (
    *("settled_at", "id", "tenant", "request", "revision", "project", "api_key", "wallet"),
    *(f"{name}_tokens" for name in CLASSES),
    *("card_version", "formula", "multiplier_bp", "charge", "refunded", "exact", "waived"),
    *("model", "end_user", "day"),
)
_TRANSFER_COLUMNS = (
    *("booked_at", "id", "effective_at", "code", "debit_id", "credit_id", "amount"),
    *("request", "order", "grant_id", "actor", "reason"),
)
_WORDS = {RECORD: ("model", "end_user"), TRANSFER: ("actor", "reason")}
_CODES = {int(code): code.name.lower() for code in Code}


class Leaf(NamedTuple):
    """One row as a leaf. `place` orders it among the others, and `moved` are the µcr that it brought the tenant.

    `fields` are its values in the order of RECORD_FIELDS or TRANSFER_FIELDS; `said` its words, `salt` that of their
    commitment: None where they were erased, or there are none.
    """

    place: tuple[datetime, int, int]
    kind: int
    fields: tuple[Any, ...]
    said: tuple[str, str]
    salt: bytes | None
    moved: int
    card: UUID | None

    @property
    def text(self) -> bytes:
        """The bytes that are hashed."""
        return "\n".join(("record" if self.kind == RECORD else "transfer", *map(str, self.fields))).encode()

    @property
    def hash(self) -> bytes:
        """The leaf's hash in the tree."""
        return tree.leaf(self.text)

    def told(self) -> dict[str, Any]:
        """Return the row as a statement has it."""
        names = RECORD_FIELDS if self.kind == RECORD else TRANSFER_FIELDS
        row = {"type": "record" if self.kind == RECORD else "transfer", **dict(zip(names, self.fields, strict=True))}
        if self.salt is not None:
            del row["words"]
            row["salt"] = self.salt.hex()
        if row.get("words") == "":
            del row["words"]
        else:
            row |= zip(_WORDS[self.kind], self.said, strict=True)
        return row


def commitment(salt: bytes, said: Iterable[str]) -> str:
    """Return the commitment to words: the SHA-256 of the salt and the words in UTF-8, parted by a zero byte."""
    return hashlib.sha256(salt + b"\0".join(one.encode() for one in said)).hexdigest()


def card_digest(card: CardPrices) -> str:
    """Return the SHA-256 of a card's text: id, fee, part of batches, of each tier its start and rates, a line each."""
    lines: list[object] = ["sluice-card-1", card.id, card.request_fee, card.batch_bp]
    for tier in card.tiers:
        lines += [tier.min_context, *(tier.rates[name] for name in CLASSES)]
    return hashlib.sha256("\n".join(map(str, lines)).encode()).hexdigest()


class Cards:
    """The published card versions that rows name, each read once."""

    def __init__(self) -> None:
        self._found: dict[UUID, tuple[CardPrices, str] | None] = {}
        self._told: set[UUID] = set()

    def is_new(self, version: UUID) -> bool:
        """Whether it is asked for the first time."""
        is_new = version not in self._told
        self._told.add(version)
        return is_new

    def of(self, version: UUID) -> CardPrices | None:
        """Return the version's prices; None where it isn't published."""
        found = self._look_up(version)
        return None if found is None else found[0]

    def digest(self, version: UUID) -> str:
        """Return the digest of the version's prices, "" where it isn't published."""
        found = self._look_up(version)
        return "" if found is None else found[1]

    def _look_up(self, version: UUID) -> tuple[CardPrices, str] | None:
        if version not in self._found:
            self._found[version] = None
            row = RateCardVersion.objects.filter(pk=version, published_at__isnull=False).first()
            if row is not None:
                rates = row.rates.values_list("tier_min_context", "usage_class", "rate")
                card = CardPrices.build(row.pk, row.request_fee, rates, row.batch_bp)
                self._found[version] = card, card_digest(card)
        return self._found[version]


@dataclass
class Books:
    """The rows of one tenant, to be read as leaves."""

    tenant: UUID
    cards: Cards = field(default_factory=Cards)

    def __post_init__(self) -> None:
        self._salts = Salts()
        accounts = LedgerAccount.objects.filter(wallet__tenant=self.tenant).values_list("pk", "wallet")
        self._wallets: dict[UUID, UUID] = {account: wallet for account, wallet in accounts if wallet is not None}
        self._mine = {str(wallet) for wallet in self._wallets.values()}
        self._edge = archived.edge()
        operators = LedgerAccount.objects.filter(wallet=None).values_list("pk", "kind")
        self._names = {pk: str(kind) for pk, kind in operators} | {
            pk: str(wallet) for pk, wallet in self._wallets.items()
        }

    def leaves(
        self, since: datetime, until: datetime, place: tuple[datetime, int, int] | None = None
    ) -> Iterator[Leaf]:
        """Yield the leaves of the rows booked from `since` to just before `until`, from `place` on.

        A correction's transfers between the operator's own accounts follow its record. Archived rows come from their
        files. Raises ArchivedMeanwhileError where rows may have gone there while they were read.
        """
        if self._edge is not None and since < self._edge:
            for leaf in self._archived(since, until):
                if place is None or leaf.place >= place:
                    yield leaf
            since = self._edge
        for leaf in heapq.merge(*self._sources(since, until), key=operator.attrgetter("place")):
            if place is None or leaf.place >= place:
                yield leaf
        if since < until <= datetime.now(UTC) and archived.edge() != self._edge:
            raise archived.ArchivedMeanwhileError

    def _archived(self, since: datetime, until: datetime) -> Iterator[Leaf]:
        last: Leaf | None = None
        for row in archived.rows_between(self.tenant, since, until):
            last = self.leaf_of(row, last)
            if last.place[0] >= until:
                return
            if last.place[0] >= since:
                yield last

    def leaf_of(self, row: Mapping[str, Any], before: Leaf | None) -> Leaf:
        """Return the leaf of a row of a file, which comes `before` behind another."""
        kind = RECORD if row["type"] == "record" else TRANSFER
        first, second = _WORDS[kind]
        said = row.get(first, ""), row.get(second, "")
        salt = bytes.fromhex(row["salt"]) if "salt" in row else None
        words = row.get("words", "") if salt is None else commitment(salt, said)
        names = RECORD_FIELDS if kind == RECORD else TRANSFER_FIELDS
        fields = tuple(words if name == "words" else row[name] for name in names)
        booked_at = datetime.fromisoformat(row["booked_at"])
        if kind == RECORD:
            place = booked_at, RECORD, UUID(row["id"]).int
            return Leaf(place, RECORD, fields, said, salt, 0, UUID(row["row"]["card_version"]))
        moved = row["amount"] * ((row["credit"] in self._mine) - (row["debit"] in self._mine))
        is_beside = not {row["credit"], row["debit"]} & self._mine and before is not None
        place = before.place if is_beside and before is not None else (booked_at, TRANSFER, row["id"])
        return Leaf(place, TRANSFER, fields, said, salt, moved, None)

    def _sources(self, since: datetime, until: datetime) -> Iterator[Iterator[Leaf]]:
        yield self._records(since, until)
        mine = list(self._wallets)
        for account in mine:
            for side in ("debit", "credit"):
                rows = LedgerTransfer.objects.filter(**{side: account}, booked_at__gte=since, booked_at__lt=until)
                if side == "credit":
                    rows = rows.exclude(debit__in=mine)  # between two of the tenant's it stands once
                yield map(self._transfer, self._with_kept("transfer", _chunks(rows, "booked_at", _TRANSFER_COLUMNS)))

    def _records(self, since: datetime, until: datetime) -> Iterator[Leaf]:
        rows = UsageRecord.objects.filter(tenant=self.tenant, settled_at__gte=since, settled_at__lt=until)
        for some in _chunks(rows, "settled_at", _RECORD_COLUMNS):
            revised = [row for row in some if row[4]]
            revisions, beside = self._revisions(revised), self._beside([row[3] for row in revised])
            kept = _kept("record", some)
            for row in some:
                request, revision = row[3:5]
                was, _ = revisions.get((request, revision - 1), (0, None))
                leaf = self._record(row, was, kept)
                yield leaf
                _, ends = revisions.get((request, revision + 1), (0, None))
                for other in beside.get(request, ()) if revision else ():
                    # it is this revision's from its booking on, to that of the next
                    if row[0] <= other.place[0] and (ends is None or other.place[0] < ends):
                        yield other._replace(place=leaf.place)

    def _revisions(self, revised: list[tuple[Any, ...]]) -> dict[tuple[UUID, int], tuple[int, datetime]]:
        """Return the charge and the booking of all revisions of the records that were corrected."""
        if not revised:
            return {}
        days, requests = {row[-1] for row in revised}, {row[3] for row in revised}
        found = UsageRecord.objects.filter(day__in=days, request__in=requests, tenant=self.tenant)
        columns = found.values_list("request", "revision", "charge", "settled_at")
        return {(request, revision): (charge, booked) for request, revision, charge, booked in columns}

    def _beside(self, requests: list[UUID]) -> dict[UUID, list[Leaf]]:
        """Return what corrections moved that touches none of the tenant's wallets: what was due to ended grants."""
        if not requests:
            return {}
        mine = list(self._wallets)
        rows = LedgerTransfer.objects.filter(request__in=set(requests)).exclude(debit__in=mine).exclude(credit__in=mine)
        some = list(rows.order_by("id").values_list(*_TRANSFER_COLUMNS))
        kept, found = _kept("transfer", some), defaultdict(list)
        for row in some:
            found[row[7]].append(self._transfer((row, kept)))
        return found

    def _record(self, row: tuple[Any, ...], was: int, kept: Mapping[str, str]) -> Leaf:
        settled_at, pk, tenant, request, revision, project, api_key, wallet, *rest = row
        *tokens, card, formula, multiplier_bp, charge, refunded, exact, waived, model, end_user, _ = rest
        words, salt = self._words(f"record:{pk}", (model, end_user), kept)
        fields = (
            pk, tenant, text_of(settled_at), request, revision, project, api_key or "", wallet, *tokens,
            self.cards.digest(card), formula, multiplier_bp, was, charge, refunded, int(exact), int(waived), words,
        )  # fmt: skip
        return Leaf((settled_at, RECORD, pk.int), RECORD, fields, (model, end_user), salt, 0, card)

    def _transfer(self, given: tuple[tuple[Any, ...], Mapping[str, str]]) -> Leaf:
        row, kept = given
        booked_at, pk, effective_at, code, debit, credit, amount, request, order, grant, actor, reason = row
        words, salt = self._words(f"transfer:{pk}", (actor, reason), kept)
        fields = (
            pk, self.tenant, text_of(booked_at), text_of(effective_at), _CODES.get(code, code),
            self._names.get(debit, ELSEWHERE), self._names.get(credit, ELSEWHERE), amount, request or "", order,
            grant or "", words,
        )  # fmt: skip
        moved = amount * ((credit in self._wallets) - (debit in self._wallets))
        return Leaf((booked_at, TRANSFER, pk), TRANSFER, fields, (actor, reason), salt, moved, None)

    def _words(self, name: str, said: tuple[str, str], kept: Mapping[str, str]) -> tuple[str, bytes | None]:
        if (words := kept.get(name)) is not None:
            return words, None
        if not any(said):
            return "", None
        salt = self._salts.of(name)
        return commitment(salt, said), salt

    def _with_kept(
        self, kind: str, chunks: Iterator[list[tuple[Any, ...]]]
    ) -> Iterator[tuple[tuple[Any, ...], Mapping[str, str]]]:
        for some in chunks:
            kept = _kept(kind, [row for row in some if any(row[-2:])])
            yield from ((row, kept) for row in some)


def first_booked(tenant: UUID, since: datetime, *others: Any) -> tuple[datetime | None, list[Any]]:
    """Return when the tenant's first row at or after `since` was booked, with the values of `others`: expressions that
    the same query reads, none of which are there where the tenant has no wallet.
    """
    records = UsageRecord.objects.filter(tenant=tenant, settled_at__gte=since).order_by("settled_at")
    rows = LedgerTransfer.objects.filter(booked_at__gte=since).order_by("booked_at").values("booked_at")
    firsts = (
        Subquery(records.values("settled_at")[:1]),
        Subquery(rows.filter(debit=OuterRef("pk"))[:1]),
        Subquery(rows.filter(credit=OuterRef("pk"))[:1]),
    )
    found = list(LedgerAccount.objects.filter(wallet__tenant=tenant).values_list(*firsts, *others))
    moments = [moment for one in found for moment in one[: len(firsts)] if moment is not None]
    return min(moments, default=None), list(found[0][len(firsts) :]) if found else []


def _chunks(rows: QuerySet[Any], moment: str, columns: tuple[str, ...]) -> Iterator[list[tuple[Any, ...]]]:
    """Yield rows in the order of their moment and id: each chunk is a query of its own, and reads no further."""
    ordered = rows.order_by(moment, "id").values_list(*columns)
    some = list(ordered[:CHUNK])
    while some:
        yield some
        if len(some) < CHUNK:
            return
        # Compared inside the database: SQLite's clock writes times with fewer digits than Django does.
        last = Subquery(rows.model.objects.filter(pk=some[-1][1]).values(moment))
        after = Q(**{f"{moment}__gt": last}) | Q(**{moment: last, "id__gt": some[-1][1]})
        some = list(ordered.filter(after, **{f"{moment}__gte": last})[:CHUNK])


def _kept(kind: str, rows: Iterable[tuple[Any, ...]]) -> dict[str, str]:
    """Return the commitments that an erasure has kept of these rows."""
    names = [f"{kind}:{row[1]}" for row in rows]
    if not names:
        return {}
    return dict(ErasedWords.objects.filter(leaf__in=names).values_list("leaf", "words"))


def keep_words(rows: QuerySet[UsageRecord] | QuerySet[LedgerTransfer]) -> None:
    """Keep the commitments to the words of rows that are about to be erased, in the transaction of their erasure.

    What an earlier erasure has kept stays: the leaf is what it was before the first. Whether a day is sealed yet makes
    no difference, so an erasure and a seal at the same time agree.
    """
    kind = "record" if rows.model is UsageRecord else "transfer"
    names = _WORDS[RECORD if kind == "record" else TRANSFER]
    salts = Salts()
    said = rows.order_by("pk").values_list("pk", *names)
    last: Any = None
    while some := list((said if last is None else said.filter(pk__gt=last))[:CHUNK]):
        last = some[-1][0]
        made = [
            ErasedWords(leaf=name, words=commitment(salts.of(name), words) if any(words) else "")
            for pk, *words in some
            for name in (f"{kind}:{pk}",)
        ]
        ErasedWords.objects.bulk_create(made, ignore_conflicts=True)
