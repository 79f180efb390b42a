"""Forgeries of a statement: the verifier finds each, and says where and what is wrong."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from base.ids import uuid7
from base.sealing import unseal
from billing.models import SigningKey, Wallet
from billing.seals import keys
from billing.verify import sluice_verify
from tests.billing.statements.conftest import Shop

pytestmark = pytest.mark.django_db


class Forged:
    """A statement's lines to forge: a forger keeps all that can be computed again without the key in step."""

    def __init__(self, text):
        self.lines = [json.loads(line) for line in text.splitlines()]

    def at(self, kind, number=0, **values):
        """Return the place of the `number`th line of a type that has the values."""
        found = [
            place
            for place, line in enumerate(self.lines)
            if line["type"] == kind and all(line.get(name) == value for name, value in values.items())
        ]
        return found[number]

    def hash(self, place):
        """Give a changed row the hash that its fields have now."""
        self.lines[place]["leaf"] = sluice_verify.leaf_of(self.lines[place]).hex()

    def reseal(self, place, private=None, **changes):
        """Make a seal anew over the rows that stand before it, signed by `private` if it is given."""
        seal = self.lines[place] | changes
        rows = []
        for line in self.lines[:place][::-1]:
            if line["type"] == "seal":
                break
            if "leaf" in line:
                rows.insert(0, bytes.fromhex(line["leaf"]))
        blocks = [sluice_verify.root(rows[start : start + 256]) for start in range(0, len(rows), 256)]
        seal |= {"size": len(rows), "root": sluice_verify.root(blocks).hex(), "blocks": [one.hex() for one in blocks]}
        if private is not None:
            seal["signature"] = private.sign(self.signed_text(seal)).hex()
        self.lines[place] = seal

    def signed_text(self, seal):
        named = seal | {"tenant": self.lines[0]["tenant"]}
        return "\n".join(["sluice-seal-1", *(str(named[name]) for name in sluice_verify.SEAL)]).encode()

    @property
    def text(self):
        return "".join(json.dumps(line) + "\n" for line in self.lines)


@pytest.fixture
def forged(busy):
    return Forged(busy.statement("2026-11"))


@pytest.fixture
def private(busy):
    """The installation's own key, which a dishonest operator has."""
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(unseal(SigningKey.objects.get().sealed_key)))


def found(verify, forged, place, *words):
    code, said = verify(forged.text)
    assert code == 1
    assert f"line {place + 1}: " in said, said
    for word in words:
        assert word in said
    return said


def test_a_flipped_count_is_found_by_its_charge(forged, verify):
    place = forged.at("record", 1, output=77)
    forged.lines[place]["output"] ^= 64
    forged.hash(place)
    found(verify, forged, place, "µcr were charged, and its tokens cost")


def test_a_flipped_field_is_found_by_its_leaf(forged, verify):
    place = forged.at("record", 1)
    forged.lines[place]["project"] = str(uuid7())
    found(verify, forged, place, "this record was changed: its fields don't make its leaf")


def test_a_refund_that_was_taken_back_is_found_by_the_price(forged, verify):
    place = forged.at("record", 0, refunded=40)
    forged.lines[place]["refunded"] = 0
    forged.hash(place)
    found(verify, forged, place, "µcr were charged, and its tokens cost")


def test_a_correction_of_another_charge_is_found_by_its_transfers(busy, verify):
    """As long as the day isn't sealed, whoever makes the statement may compute all sums anew."""
    made = busy.serve()
    busy.refund(made, 1_000)
    forged = Forged(busy.statement("2026-12"))
    place = forged.at("record", request=str(made.request), revision=1)
    forged.lines[place]["was"] += 5
    forged.hash(place)
    line = forged.at("usage", **{"class": "correction"})
    found(verify, forged, line, "are not those of the records")
    forged.lines[line]["charge"] -= 5
    code, said = verify(forged.text)
    assert code == 1
    assert f"the charge of request {made.request} and its transfers differ by" in said


def test_a_changed_row_that_was_hashed_anew_is_found_by_the_seal(forged, verify):
    place = forged.at("record", 1)
    forged.lines[place]["project"] = str(uuid7())
    forged.hash(place)
    first = max(at + 1 for at, line in enumerate(forged.lines[:place]) if line["type"] == "seal")
    said = found(verify, forged, first, "these are not the rows that were sealed on 2026-11-03")
    assert "line 1:" not in said


def test_a_dropped_request_is_found(forged, verify):
    place = forged.at("record", 1)
    request = forged.lines[place]["request"]
    forged.lines = [line for line in forged.lines if line.get("request") != request]
    found(verify, forged, place, "2026-11-03: one was changed, dropped, inserted or swapped")


def test_a_request_dropped_without_its_transfers_is_found(forged, verify, private):
    place = forged.at("record", 0)
    assert forged.lines[place]["charge"]
    del forged.lines[place]
    code, said = verify(forged.text)
    assert code == 1
    assert "sealed on 2026-11-01" in said


def test_two_swapped_rows_are_found(forged, verify):
    one, other = forged.at("record", 1), forged.at("record", 2)
    forged.lines[one], forged.lines[other] = forged.lines[other], forged.lines[one]
    found(verify, forged, other, "stands twice or out of order")


def test_a_back_dated_row_is_found(forged, verify):
    place = forged.at("record", 2)
    forged.lines[place]["booked_at"] = "2026-11-02T10:00:00.000000Z"
    forged.hash(place)
    found(verify, forged, place, "out of order")
    forged.lines.insert(forged.at("record", 1), forged.lines.pop(place))
    code, said = verify(forged.text)
    assert code == 1
    assert "these are not the rows that were sealed on 2026-11-03" in said


def test_an_inserted_charge_is_found(forged, verify):
    record, transfer = forged.at("record", 4), forged.at("transfer", -2, code="charge")
    for place in (record, transfer):
        row = dict(forged.lines[place])
        row["request"] = str(uuid7())
        row["id"] = row["request"] if row["type"] == "record" else row["id"] + 1_000
        forged.lines.insert(forged.at("seal", 2), row)
        forged.hash(forged.at(row["type"], request=row["request"]))
    code, said = verify(forged.text)
    assert code == 1
    assert "line " in said


def test_the_same_row_twice_is_found(forged, verify):
    place = forged.at("record", 3)
    forged.lines.insert(place + 1, dict(forged.lines[place]))
    found(verify, forged, place + 1, "stands twice")


def test_another_card_is_found(forged, verify):
    place = forged.at("card")
    forged.lines[place]["tiers"][0]["rates"]["input"] += 1
    found(verify, forged, place, "are not those of its digest")
    card = forged.lines[place]
    card["digest"] = sluice_verify.Card(card).digest
    record = forged.at("record", 0)
    found(verify, forged, record, "no card before this record has its digest")
    for line in forged.lines:
        if line["type"] == "record":
            line["card"] = card["digest"]
    code, said = verify(forged.text)
    assert code == 1
    assert "this record was changed" in said or "tokens cost" in said


def test_another_tenants_rows_and_seal_are_found(forged, verify, busy, clock):
    from billing.services import wallets
    from tests.billing.conftest import make_tenant

    other = object.__new__(Shop)
    other.__dict__ |= busy.__dict__
    other.wallet = wallets.open_wallet(tenant_id=make_tenant().pk)
    other.tenant = other.wallet.tenant_id
    other.at("12-03 10:00")
    other.give(100_000)
    other.serve()
    other.at("12-04 01:00")
    other.seal()
    theirs = Forged(other.statement("2026-12"))
    seal, row = theirs.at("seal"), theirs.at("record")
    place = forged.at("record", 1)
    forged.lines[place] = theirs.lines[row]
    found(verify, forged, place, "this record is another tenant's")
    again = Forged(busy.statement("2026-11"))
    place = again.at("seal", 1)
    again.lines[place] = theirs.lines[seal] | {"number": again.lines[place]["number"]}
    found(verify, again, place, "signature")


def test_a_cut_chain_is_found(forged, verify):
    place = forged.at("seal", 1)
    forged.lines = [line for at, line in enumerate(forged.lines) if not forged.at("seal", 0) < at <= place]
    found(verify, forged, forged.at("seal", 1), "the chain is cut")


def test_an_old_key_is_found(busy, verify):
    old = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(unseal(SigningKey.objects.get().sealed_key)))
    busy.at("12-02 10:00")
    busy.serve()
    keys.rotate()
    assert SigningKey.objects.get(number=1).sealed_key == ""
    busy.at("12-04 00:10")
    busy.seal()
    text = busy.statement("2026-12")
    assert verify(text)[0] == 0
    forged = Forged(text)
    place = forged.at("seal", 1)
    assert forged.lines[place]["key"] == 2
    forged.reseal(place, old, key=1)
    found(verify, forged, place, "signed by an old key")
    forged.reseal(place, old, key=2)
    found(verify, forged, place, "not that of key 2")
    forged.reseal(place, old, key=1, sealed_at="2026-12-02T09:59:00.000000Z")
    found(verify, forged, place, "before the day was over")


def test_a_day_that_was_signed_anew_by_the_right_key_is_found_by_the_next(forged, verify, private):
    place = forged.at("record", 1)
    forged.lines[place]["project"] = str(uuid7())
    forged.hash(place)
    seal = forged.at("seal", 1)
    assert forged.lines[seal]["day"] == "2026-11-03"
    forged.reseal(seal, private)
    found(verify, forged, forged.at("seal", 2), "the chain is cut: the seal of 2026-11-04 does not follow")


def test_a_history_that_was_signed_anew_is_found_by_the_statement_before(busy, verify, private):
    before, after = busy.statement("2026-10"), busy.statement("2026-11")
    assert verify(before, after)[0] == 0
    forged = Forged(before)
    place = forged.at("record", 0)
    forged.lines[place]["project"] = str(uuid7())
    forged.hash(place)
    forged.reseal(forged.at("seal", -1), private)
    assert verify(forged.text)[0] == 0  # alone it can't be told: the operator has the key
    code, said = verify(forged.text, after)
    assert (code, "the chain is cut" in said) == (1, True)


def test_a_hidden_transfer_and_a_wrong_sum_are_found(forged, verify):
    place = forged.at("total")
    forged.lines[place]["closing"] += 1
    found(verify, forged, place, "opening and movements make")
    forged.lines[place]["closing"] -= 1
    place = forged.at("usage")
    forged.lines[place]["charge"] += 1
    found(verify, forged, place, "are not those of the records")


def test_a_statement_that_is_cut_off_or_garbled_is_no_statement(forged, verify):
    whole = forged.text
    assert "it has no total" in verify(whole[: whole.rindex('{"type": "total"')])[1]
    assert "no line of a statement" in verify(whole.replace('"type": "seal"', '"type": "sael"', 1))[1]
    assert verify("")[0] == 1


def test_only_the_trusted_key_will_do(busy, verify, tmp_path):
    text = busy.statement("2026-11")
    path = tmp_path / "key.pem"
    path.write_text(keys.pem_of(SigningKey.objects.get()))
    code, said = verify(text, arguments=["--key", path])
    assert (code, "not proven" in said) == (0, False)
    other = SigningKey(public_key=Ed25519PrivateKey.generate().public_key().public_bytes_raw().hex())
    path.write_text(keys.pem_of(other))
    assert "not among the statement's keys" in verify(text, arguments=["--key", path])[1]
    assert Wallet.objects.filter(pk=busy.wallet.pk, sealed_until=datetime(2026, 12, 2, tzinfo=UTC)).exists()
