#!/usr/bin/env python3
"""Verify a statement of Sluice without Sluice: Python 3.11 or later with the package `cryptography` is all it needs.

    python sluice_verify.py STATEMENT.jsonl [NEXT_MONTH.jsonl ...] [--key PEM] [--proof USAGE.json]

It computes each charge again from its tokens and card, adds everything up, and checks that each row is in the sealed
day, that the seals form a chain, and that their keys signed them. Several statements of a tenant, in order, must follow
on each other. `--proof` is an answer of GET /v1/usage/ID that was kept: its row must be in the seal that the statement
has for that day. Exit 0: all is right. Exit 1: it names the first line that is wrong, and why.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from datetime import date, timedelta
from operator import itemgetter
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

CLASSES = ("input", "cache_read", "cache_write_short", "cache_write_long", "output", "reasoning")
RECORD = (
    *("id", "tenant", "booked_at", "request", "revision", "project", "api_key", "wallet"),
    *CLASSES,
    *("card", "formula", "multiplier_bp", "was", "charge", "refunded", "exact", "waived"),
)
TRANSFER = (
    *("id", "tenant", "booked_at", "effective_at", "code", "debit", "credit", "amount"),
    *("request", "order", "grant"),
)
_ROWS = {
    "record": (itemgetter("type", *RECORD), itemgetter("model", "end_user")),
    "transfer": (itemgetter("type", *TRANSFER), itemgetter("actor", "reason")),
}
_TOKENS = itemgetter(*CLASSES)
SEAL = ("tenant", "number", "first", "day", "size", "root", "balance", "previous", "key", "sealed_at")
BLOCK = 256
SCALE = 10**10
NOTHING = "0" * 64
sha256 = hashlib.sha256


class WrongError(Exception):
    """A line that can't be right."""

    def __init__(self, line: int | str, why: str, path: str = "") -> None:
        where = f"line {line}" if isinstance(line, int) else line
        super().__init__(f"{path}{', ' if path else ''}{where}: {why}")
        self.line, self.why = line, why


def root(nodes: Sequence[bytes]) -> bytes:
    """Return the Merkle root over nodes of one level (RFC 6962): of an odd number the last goes up as it is."""
    if not nodes:
        return sha256(b"").digest()
    while len(nodes) > 1:
        above = [sha256(b"\1" + a + b).digest() for a, b in zip(nodes[::2], nodes[1::2], strict=False)]
        nodes = above + list(nodes[len(nodes) & ~1 :])
    return nodes[0]


def leaf_of(row: dict[str, Any]) -> bytes:
    """Return the hash of a record or transfer: of a zero byte and the row's text."""
    fields, said = _ROWS[row["type"]]
    words = row.get("words", "")
    if "salt" in row:
        words = sha256(bytes.fromhex(row["salt"]) + "\0".join(said(row)).encode()).hexdigest()
    return sha256(b"\0" + "\n".join([*map(str, fields(row)), words]).encode()).digest()


class Card:
    """The rates of a card by the start of each tier, µcr per million tokens."""

    def __init__(self, line: dict[str, Any]) -> None:
        self.fee: int = line["request_fee"]
        tiers = [(tier["min_context"], [tier["rates"][name] for name in CLASSES]) for tier in line["tiers"]]
        text = [
            "sluice-card-1",
            line["id"],
            self.fee,
            line["batch_bp"],
            *(x for start, r in tiers for x in (start, *r)),
        ]
        self.digest = sha256("\n".join(map(str, text)).encode()).hexdigest()
        self.tiers = tiers

    def parts(self, tokens: Sequence[int], multiplier_bp: int) -> dict[str, int]:
        """Return what each class costs, "request" being the fee; together they are the charge.

        The charge is rounded up once; the parts are rounded down, and what is missing goes to the largest remainders.
        """
        context = sum(tokens[:4])
        rates = next(rates for start, rates in reversed(self.tiers) if start <= context)
        found: dict[str, int] = {}
        rests: list[tuple[int, int, str]] = []
        total = 0
        for position, count in enumerate(tokens):
            if count:
                product = count * rates[position] * multiplier_bp
                total += product
                found[CLASSES[position]], rest = divmod(product, SCALE)
                rests.append((-rest, position, CLASSES[position]))
        if not found:
            return found
        missing = -(-total // SCALE) - sum(found.values())
        if missing:
            for _, _, name in sorted(rests)[:missing]:
                found[name] += 1
        if self.fee:
            found["request"] = self.fee
        return found


class Keys:
    """The public keys of the installation, each vouched for by its neighbours; the reader trusts the `pinned` one."""

    def __init__(self, pinned: bytes | None) -> None:
        self._pinned = pinned
        self._keys: dict[int, tuple[Ed25519PublicKey, str]] = {}
        self._raw = ""
        self.is_pinned = False

    def add(self, line: int, key: dict[str, Any]) -> None:
        """Add the next key, signed by itself and by the one before it."""
        number, raw = key["number"], key["public_key"]
        if number != len(self._keys) + 1:
            raise WrongError(line, f"key {number} stands where key {len(self._keys) + 1} belongs")
        text = f"sluice-key-1\n{number}\n{raw}\n{key['since']}\n{self._raw}".encode()
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(raw))
        before = self._keys.get(number - 1)
        for signer, signature, whose in (
            (public, "own_signature", "its own"),
            (before, "signature", "its predecessor's"),
        ):
            if signer is not None:
                one = signer[0] if isinstance(signer, tuple) else signer
                if not _signed(one, key[signature], text):
                    raise WrongError(line, f"the signature of key {number} is not {whose}")
        if before is not None and before[1] >= key["since"]:
            raise WrongError(line, f"key {number} is older than the one it replaced")
        self._keys[number], self._raw = (public, key["since"]), raw
        self.is_pinned |= bytes.fromhex(raw) == self._pinned

    def check(self, line: int, seal: dict[str, Any], text: bytes) -> None:
        """Check the signature of a seal, and that its key was the one in use."""
        key, name = self._keys.get(seal["key"]), f"the seal of {seal['day']}"
        if key is None:
            raise WrongError(line, f"{name} names key {seal['key']}, which is not among the keys")
        if not _signed(key[0], seal["signature"], text):
            raise WrongError(line, f"the signature of {name} is not that of key {seal['key']}")
        after = self._keys.get(seal["key"] + 1)
        if seal["sealed_at"] < key[1] or (after is not None and seal["sealed_at"] >= after[1]):
            raise WrongError(line, f"{name} is signed by an old key: key {seal['key']} was not in use then")
        if seal["sealed_at"] < _ends(seal["day"]):
            raise WrongError(line, f"{name} was made before the day was over")

    def finish(self) -> None:
        """Refuse keys among which the trusted one is not."""
        if self._pinned is not None and not self.is_pinned:
            raise WrongError("its keys", "the key that you gave is not among the statement's keys")


def _signed(key: Ed25519PublicKey, signature: str, text: bytes) -> bool:
    try:
        key.verify(bytes.fromhex(signature), text)
    except (InvalidSignature, ValueError):
        return False
    return True


def _ends(day: str) -> str:
    return f"{date.fromisoformat(day) + timedelta(days=1)}T00:00:00.000000Z"


class Chain:
    """The seals seen so far, over several statements."""

    def __init__(self) -> None:
        self.digests: dict[int, str] = {}
        self.last: dict[str, Any] | None = None

    def add(self, line: int, seal: dict[str, Any], keys: Keys) -> None:
        """Check a seal's signature and its place behind the last one."""
        text = "\n".join(["sluice-seal-1", *(str(seal[name]) for name in SEAL)]).encode()
        number, last, name = seal["number"], self.last, f"the seal of {seal['day']}"
        digest = sha256(text).hexdigest()
        if number in self.digests:  # of a day in two months
            if self.digests[number] != digest:
                raise WrongError(line, f"{name} is not the one that the statement before has")
            return
        keys.check(line, seal, text)
        if last is not None:
            if number != last["number"] + 1 or seal["previous"] != self.digests[last["number"]]:
                raise WrongError(line, f"the chain is cut: {name} does not follow on that of {last['day']}")
            if seal["first"] != str(date.fromisoformat(last["day"]) + timedelta(days=1)):
                raise WrongError(line, f"{name} leaves days out behind {last['day']}")
            if seal["key"] < last["key"]:
                raise WrongError(line, f"{name} is signed by an old key: key {last['key']} was in use before")
        elif number == 1 and seal["previous"] != NOTHING:
            raise WrongError(line, f"{name} is the first, and follows on another")
        if not seal["first"] <= seal["day"]:
            raise WrongError(line, f"{name} ends before it begins")
        self.digests[number], self.last = digest, seal


class Statement:
    """Checks one statement line by line; afterwards it holds what was found."""

    def __init__(self, chain: Chain, pinned: bytes | None) -> None:
        self.chain, self.keys = chain, Keys(pinned)
        self.head: dict[str, Any] = {}
        self.cards: dict[str, Card] = {}
        self.moved = 0
        self.records = self.transfers = self.days = self.erased = self.unsealed = 0
        self._usage: dict[str, dict[str, list[int]]] = {}  # model → class → tokens, µcr
        self._movements: Counter[tuple[str, str]] = Counter()
        self._counts: Counter[str] = Counter({"requests": 0, "corrections": 0, "waived": 0, "estimated": 0})
        self._owed: dict[str, list[int]] = {}  # request → µcr that its transfers have yet to take, line of its record
        self._block: list[bytes] = []
        self._blocks: list[tuple[bytes, int]] = []
        self._first = 0  # line of the block's first row
        self._hidden: list[int] = []
        self._begin, self._end = "", ""
        self._last: tuple[str, int, Any] = ("", 0, "")
        self._size = 0
        self._earliest, self._latest = "9", ""
        self._seals = 0
        self.is_over = False

    def read(self, lines: Iterable[str]) -> None:
        """Check all lines; raise WrongError for the first that is wrong."""
        number = 0
        steps = {
            "record": self._record,
            "transfer": self._transfer,
            "leaf": self._leaf,
            "card": self._card,
            "seal": self._seal,
            "key": self.keys.add,
            "usage": self._usage_line,
            "movement": self._movement_line,
            "total": self._total,
        }
        decode = json.JSONDecoder().raw_decode
        try:
            for number, text in enumerate(lines, 1):
                line, end = decode(text)
                if text[end:].strip():
                    raise WrongError(number, "this line is more than one object")
                if number == 1:
                    self._statement(line)
                elif self.is_over:
                    raise WrongError(number, "nothing may follow on the total")
                else:
                    steps[line["type"]](number, line)
        except (KeyError, TypeError, ValueError, StopIteration, AttributeError) as error:
            raise WrongError(number, f"this is no line of a statement: {type(error).__name__} {error}") from error
        if not self.is_over:
            raise WrongError(number, "the statement is cut off: it has no total")

    def _statement(self, line: dict[str, Any]) -> None:
        if line["type"] != "statement" or line["format"] != 1:
            raise WrongError(1, "this is no statement of format 1")
        self.head = line
        self._begin, self._end = line["begins_at"], line["ends_at"]

    def _card(self, number: int, line: dict[str, Any]) -> None:
        card = Card(line)
        if card.digest != line["digest"]:
            raise WrongError(number, f"the rates of card {line['id']} are not those of its digest")
        self.cards[card.digest] = card

    def _row(self, number: int, row: dict[str, Any], place: tuple[str, int, Any] | None) -> None:
        if row["tenant"] != self.head["tenant"]:
            raise WrongError(number, f"this {row['type']} is another tenant's")
        moment = row["booked_at"]
        if not self._begin <= moment < self._end:
            raise WrongError(number, f"this {row['type']} was booked at {moment}, outside the month")
        leaf = leaf_of(row)
        if leaf.hex() != row["leaf"]:
            raise WrongError(number, f"this {row['type']} was changed: its fields don't make its leaf")
        if place is not None:
            if place <= self._last:
                raise WrongError(number, f"this {row['type']} stands twice or out of order: it was booked at {moment}")
            self._last = place
        if "words" in row:
            self.erased += 1
        self._earliest, self._latest = min(self._earliest, moment), max(self._latest, moment)
        self._append(number, leaf)

    def _append(self, number: int, leaf: bytes) -> None:
        block = self._block
        if not block:
            self._first = number
        block.append(leaf)
        if len(block) == BLOCK:
            self._blocks.append((root(block), self._first))
            self._block = []
        self._size += 1

    def _leaf(self, number: int, line: dict[str, Any]) -> None:
        self._hidden.append(number)
        self._append(number, bytes.fromhex(line["leaf"]))

    def _record(self, number: int, row: dict[str, Any]) -> None:
        self._row(number, row, (row["booked_at"], 0, row["id"]))
        tokens, charge = _TOKENS(row), row["charge"]
        parts: dict[str, int] = {}
        if any(tokens):
            card = self.cards.get(row["card"])
            if card is None:
                raise WrongError(number, f"no card before this record has its digest {row['card']}")
            if row["formula"] != 1:
                raise WrongError(number, f"formula {row['formula']} is not known: take a newer sluice_verify.py")
            parts = card.parts(tokens, row["multiplier_bp"])
        if charge + row["refunded"] != sum(parts.values()):
            back = f" and {row['refunded']} given back" if row["refunded"] else ""
            why = f"{charge} µcr were charged{back}, and its tokens cost {sum(parts.values())} by its card"
            raise WrongError(number, why)
        sums = self._usage.get(row["model"])
        if sums is None:
            sums = self._usage[row["model"]] = {name: [0, 0] for name in (*CLASSES, "request", "correction")}
        counts = self._counts
        if row["revision"]:
            counts["corrections"] += 1
            sums["correction"][1] += charge - row["was"]
        else:
            if row["was"]:
                raise WrongError(number, "a first record corrects a charge")
            counts["requests"] += 1
            counts["waived"] += row["waived"]
            counts["estimated"] += 1 - row["exact"]
            for name, part in parts.items():
                sums[name][1] += part
            for name, count in zip(CLASSES, tokens, strict=True):
                sums[name][0] += count
        self.records += 1
        self._owe(row["request"], charge - row["was"], number)

    def _transfer(self, number: int, row: dict[str, Any]) -> None:
        debit, credit, amount = row["debit"], row["credit"], row["amount"]
        comes, goes = len(credit) == 36, len(debit) == 36
        self._row(number, row, (row["booked_at"], 1, row["id"]) if comes or goes else None)
        if amount <= 0:
            raise WrongError(number, "a transfer of nothing")
        if comes != goes:
            self.moved += amount if comes else -amount
            self._movements[row["code"], debit if comes else credit] += amount if comes else -amount
        self.transfers += 1
        if row["request"] and "usage" in (debit, credit):
            self._owe(row["request"], amount if debit == "usage" else -amount, number)

    def _owe(self, request: str, amount: int, number: int) -> None:
        if not amount:
            return
        owed = self._owed.pop(request, None)
        if owed is None:
            self._owed[request] = [amount, number]
        elif owed[0] + amount:
            owed[0] += amount
            self._owed[request] = owed

    def _seal(self, number: int, seal: dict[str, Any]) -> None:
        seal["tenant"] = self.head["tenant"]
        name, begin, end = f"the seal of {seal['day']}", f"{seal['first']}T00:00:00.000000Z", _ends(seal["day"])
        if not self._seals:
            self.keys.finish()
            if seal["number"] == 1 and self.head["opening"]:
                raise WrongError(1, "nothing was booked before the first seal, and the opening balance is not 0")
            if seal["number"] > 1 and begin > self._begin:
                raise WrongError(number, f"{name} is the first here, and the days before it are missing")
        self._seals += 1
        if self._block:
            self._blocks.append((root(self._block), self._first))
        stated = [bytes.fromhex(one) for one in seal["blocks"]]
        self.chain.add(number, seal, self.keys)
        if root(stated).hex() != seal["root"]:
            raise WrongError(number, f"the blocks of {name} don't make its root")
        for at, (node, first) in enumerate(self._blocks):
            if at >= len(stated) or stated[at] != node:
                following = self._blocks[at + 1][1] if at + 1 < len(self._blocks) else number
                why = f"up to line {following - 1}: these are not the rows that were sealed on {seal['day']}"
                raise WrongError(first, f"{why}: one was changed, dropped, inserted or swapped")
        if len(stated) != len(self._blocks) or seal["size"] != self._size:
            raise WrongError(number, f"{seal['size']} rows were sealed on {seal['day']}, and {self._size} are here")
        if self._size and self._earliest != "9" and not (begin <= self._earliest and self._latest < end):
            raise WrongError(number, f"a row before {name} was not booked on its days")
        if end <= self._end:
            if begin >= self._begin and self._hidden:
                raise WrongError(self._hidden[0], "a row is hidden that was booked in this month")
            if self.head["opening"] + self.moved != seal["balance"]:
                balance = self.head["opening"] + self.moved
                raise WrongError(number, f"the balance comes to {balance} µcr, and {seal['balance']} were sealed")
        self._block, self._blocks, self._hidden, self._size = [], [], [], 0
        self._earliest, self._latest = "9", ""
        self.days += 1

    def _usage_line(self, number: int, line: dict[str, Any]) -> None:
        model, name = line["model"], line["class"]
        if self._usage.get(model, {}).pop(name, [0, 0]) != [line["tokens"], line["charge"]]:
            raise WrongError(number, f"the sums of {model} and {name} are not those of the records")

    def _movement_line(self, number: int, line: dict[str, Any]) -> None:
        name = (line["code"], line["account"])
        if self._movements.pop(name, 0) != line["amount"]:
            raise WrongError(number, f"the sum of {' and '.join(name)} is not that of the transfers")

    def _total(self, number: int, line: dict[str, Any]) -> None:
        self.unsealed = self._size
        for model, sums in self._usage.items():
            if left := next((name for name, both in sums.items() if any(both)), None):
                raise WrongError(number, f"the line of {model} and {left} is missing")
        if gone := next((name for name, amount in self._movements.items() if amount), None):
            raise WrongError(number, f"the line of {' and '.join(gone)} is missing")
        if any(line[name] != count for name, count in self._counts.items()):
            raise WrongError(number, f"the counts are not those of the records: {dict(self._counts)}")
        if self.head["opening"] + self.moved != line["closing"]:
            why = f"opening and movements make {self.head['opening'] + self.moved} µcr, not {line['closing']}"
            raise WrongError(number, why)
        if self._owed:
            request, (amount, where) = min(self._owed.items(), key=lambda one: one[1][1])
            raise WrongError(where, f"the charge of request {request} and its transfers differ by {amount} µcr")
        last = self.chain.last
        if self.head["number"] is not None and (last is None or _ends(last["day"]) < self._end or self._size):
            raise WrongError(number, "the month is closed, and its last days are not sealed")
        self.is_over = True
        self.closing: int = line["closing"]


def check_proof(answer: dict[str, Any], chain: Chain) -> str:
    """Check a kept answer of GET /v1/usage/ID against the seals of the statements; return what was found."""
    proof, node = answer["proof"], leaf_of(answer["proof"]["leaf"])
    for step in proof["path"]:
        beside = bytes.fromhex(step["hash"])
        node = sha256(b"\1" + (beside + node if step["side"] == "left" else node + beside)).digest()
    seal = {**proof["seal"], "tenant": proof["leaf"]["tenant"]}
    if node.hex() != seal["root"]:
        raise WrongError("the proof", "its path does not lead to the root of its seal")
    digest = sha256("\n".join(["sluice-seal-1", *(str(seal[name]) for name in SEAL)]).encode()).hexdigest()
    key = Ed25519PublicKey.from_public_bytes(bytes.fromhex(proof["key"]["public_key"]))
    if not _signed(key, seal["signature"], "\n".join(["sluice-seal-1", *(str(seal[n]) for n in SEAL)]).encode()):
        raise WrongError("the proof", "its seal is not signed by its key")
    if seal["number"] in chain.digests and chain.digests[seal["number"]] != digest:
        raise WrongError("the proof", f"{seal['day']} was sealed anew since: the statement has another seal for it")
    return f"the proof of request {proof['leaf']['request']} is right"


def _texts(path: str) -> Iterator[str]:
    with open(path, encoding="utf-8") as file:
        yield from file


def verify(paths: Sequence[str], pinned: bytes | None, proofs: Sequence[str]) -> Iterator[str]:
    """Check everything and yield what was found, in words; raise WrongError at the first fault."""
    chain, before = Chain(), None
    for path in paths:
        statement = Statement(chain, pinned)
        try:
            statement.read(_texts(path))
            if before is not None:
                if statement.head["tenant"] != before.head["tenant"]:
                    raise WrongError(1, "this is another tenant's statement")
                if statement.head["opening"] != before.closing or statement.head["begins_at"] != before.head["ends_at"]:
                    raise WrongError(1, "it does not follow on the statement before")
        except WrongError as error:
            raise WrongError(error.line, error.why, path) from None
        number = statement.head["number"]
        yield (
            f"{path}: {'draft' if number is None else f'statement {number}'} of {statement.head['month']} is right: "
            f"{statement.records} records and {statement.transfers} transfers, {statement.days} seals"
        )
        if statement.erased:
            yield f"  the words of {statement.erased} rows were erased: their names are not proven, their amounts are"
        if statement.unsealed:
            yield f"  its last {statement.unsealed} rows are not sealed yet"
        if not statement.keys.is_pinned:
            yield "  no key was given: that its keys are your provider's is not proven"
        before = statement
    for path in proofs:
        with open(path, encoding="utf-8") as file:
            yield check_proof(json.load(file), chain)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    parser = argparse.ArgumentParser(description="Verify a statement of Sluice, offline.")
    parser.add_argument("statement", nargs="+", help="STATEMENT.jsonl, and those of the months that follow")
    parser.add_argument("--key", help="PEM file with a public key of the installation that you trust")
    parser.add_argument("--proof", action="append", default=[], help="a kept answer of GET /v1/usage/ID")
    asked = parser.parse_args(arguments)
    pinned = None
    try:
        if asked.key:
            with open(asked.key, "rb") as file:
                key = load_pem_public_key(file.read())
            if not isinstance(key, Ed25519PublicKey):
                raise WrongError("the key", "it is no Ed25519 key")
            pinned = key.public_bytes_raw()
        for line in verify(asked.statement, pinned, asked.proof):
            print(line)
    except (WrongError, OSError) as error:
        print(f"WRONG: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
