"""How long `sluice_verify.py` takes for a statement: a synthetic one, signed by a key of its own.

    python benchmarks/statements.py 1000000 [FOLDER]

It prints the seconds of the verifier in a process of its own beside those of 2·10⁷ additions, which a machine at normal
speed does in one second, and the most memory that it had.
"""

from __future__ import annotations

import hashlib
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

ROOT = Path(__file__).resolve().parents[1]
VERIFIER = ROOT / "billing" / "verify" / "sluice_verify.py"
sys.path.insert(0, str(VERIFIER.parent))
import sluice_verify as verifier  # noqa: E402

TENANT, WALLET, PROJECT, KEY = (str(uuid.UUID(int=n)) for n in (11, 12, 13, 14))
DAYS = 30
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)


def text_of(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def lines(records: int, private: Ed25519PrivateKey):
    """Yield a statement of so many requests over thirty days, a transfer for each."""
    public = private.public_key().public_bytes_raw().hex()
    since = text_of(BEGIN)
    mine = private.sign(f"sluice-key-1\n1\n{public}\n{since}\n".encode()).hex()
    yield {
        "type": "statement", "format": 1, "number": 1, "tenant": TENANT, "name": "T", "slug": "t", "month": "2026-11",
        "time_zone": "UTC", "begins_at": text_of(BEGIN), "ends_at": text_of(BEGIN + timedelta(days=DAYS)), "opening": 0,
    }  # fmt: skip
    yield {"type": "key", "number": 1, "public_key": public, "since": since, "signature": "", "own_signature": mine}
    rates = dict(zip(verifier.CLASSES, (10**7, 10**6, 10**7, 10**7, 4 * 10**7, 4 * 10**7), strict=True))
    tier = {"min_context": 0, "rates": rates}
    card = {"type": "card", "id": str(uuid.UUID(int=15)), "request_fee": 100, "batch_bp": 5000, "tiers": [tier]}
    card["digest"] = digest = verifier.Card(card).digest
    priced, draw, number, charged = verifier.Card(card), random.Random(7), 0, 0
    usage: dict[str, list[int]] = {}
    previous = verifier.NOTHING
    given = transfer(0, BEGIN, "grant", ("issuance_paid", WALLET), amount=10**15)
    for day in range(DAYS):
        nodes: list[bytes] = []
        if not day:
            yield given
            nodes.append(bytes.fromhex(given["leaf"]))
        of_day = records // DAYS + (day < records % DAYS)
        for place in range(of_day):
            number += 1
            moment = BEGIN + timedelta(days=day, seconds=1 + place * 86_000 / of_day)
            tokens = [draw.randrange(1, 4_000), draw.randrange(4_000), 0, 0, draw.randrange(1, 900), 0]
            parts = priced.parts(tokens, 9_000)
            for name, part in parts.items():
                found = usage.setdefault(name, [0, 0])
                found[0] += dict(zip(verifier.CLASSES, tokens, strict=True)).get(name, 0)
                found[1] += part
            if number == 1:
                yield card
            row = record(number, moment, tokens, digest, sum(parts.values()))
            charged += row["charge"]
            taken = transfer(number, moment, "charge", (WALLET, "usage"), amount=row["charge"], request=row["request"])
            for one in (row, taken):
                nodes.append(bytes.fromhex(one["leaf"]))
                yield one
        blocks = [verifier.root(nodes[start : start + 256]) for start in range(0, len(nodes), 256)]
        when = (BEGIN + timedelta(days=day)).date().isoformat()
        seal = {
            "tenant": TENANT, "number": day + 1, "first": when, "day": when, "size": len(nodes),
            "root": verifier.root(blocks).hex(), "balance": 10**15 - charged, "previous": previous, "key": 1,
            "sealed_at": text_of(BEGIN + timedelta(days=day + 1, minutes=1)),
        }  # fmt: skip
        signed = "\n".join(["sluice-seal-1", *(str(seal[name]) for name in verifier.SEAL)]).encode()
        previous = hashlib.sha256(signed).hexdigest()
        yield {"type": "seal", **seal, "signature": private.sign(signed).hex(), "blocks": [one.hex() for one in blocks]}
    for name, (tokens, charge) in usage.items():
        yield {"type": "usage", "model": "model", "class": name, "tokens": tokens, "charge": charge}
    yield {"type": "movement", "code": "charge", "account": "usage", "amount": -charged}
    yield {"type": "movement", "code": "grant", "account": "issuance_paid", "amount": 10**15}
    counts = {"requests": records, "corrections": 0, "waived": 0, "estimated": 0}
    yield {"type": "total", **counts, "closing": 10**15 - charged}


def record(number: int, moment: datetime, tokens: list[int], digest: str, charge: int):
    identifier = str(uuid.UUID(int=number << 64))
    row = {
        "type": "record", "id": identifier, "tenant": TENANT, "booked_at": text_of(moment), "request": identifier,
        "revision": 0, "project": PROJECT, "api_key": KEY, "wallet": WALLET,
        **dict(zip(verifier.CLASSES, tokens, strict=True)), "card": digest, "formula": 1, "multiplier_bp": 9_000,
        "was": 0, "charge": charge, "refunded": 0, "exact": 1, "waived": 0,
        "salt": f"{number:032x}", "model": "model", "end_user": "",
    }  # fmt: skip
    return {**row, "leaf": verifier.leaf_of(row).hex()}


def transfer(number: int, moment: datetime, code: str, accounts: tuple[str, str], *, amount: int, request: str = ""):
    row = {
        "type": "transfer", "id": number, "tenant": TENANT, "booked_at": text_of(moment),
        "effective_at": text_of(moment), "code": code, "debit": accounts[0], "credit": accounts[1], "amount": amount,
        "request": request, "order": 0, "grant": str(uuid.UUID(int=16)),
    }  # fmt: skip
    return {**row, "leaf": verifier.leaf_of(row).hex()}


def additions() -> float:
    """Return the seconds of 2·10⁷ additions."""
    began, total = time.perf_counter(), 0
    for one in range(20_000_000):
        total += one
    return time.perf_counter() - began


def main() -> None:
    records = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    with tempfile.TemporaryDirectory() as made:
        folder = Path(sys.argv[2]) if len(sys.argv) > 2 else Path(made)
        private = Ed25519PrivateKey.generate()
        pem = private.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
        (folder / "key.pem").write_bytes(pem)
        path = folder / "statement.jsonl"
        with path.open("w") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in lines(records, private))
        speed = additions()
        began = time.perf_counter()
        command = [sys.executable, str(VERIFIER), str(path), "--key", str(folder / "key.pem")]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        seconds = time.perf_counter() - began
        print(done.stdout + done.stderr, end="")
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        print(f"{records} records, {path.stat().st_size / 1e6:.0f} MB: {seconds:.1f} s, {used.ru_utime:.1f} s of CPU,")
        print(
            f"{used.ru_maxrss / 1024:.0f} MiB; 2·10⁷ additions take {speed:.2f} s: {used.ru_utime / speed:.1f} s at 1 s"
        )


if __name__ == "__main__":
    main()
