"""Seals: what they cover, that a sealed day is final, and that no erasure breaks them."""

from __future__ import annotations

import threading
from datetime import UTC, date, datetime

import pytest
from django.db import IntegrityError, connection, transaction

from base.ids import uuid7
from billing import reconcile
from billing.codes import Code
from billing.models import ErasedWords, LedgerSeal, LedgerTransfer, SigningKey, UsageRecord, Wallet
from billing.seals import keys, proofs, sealing, tree
from billing.seals.leaves import Books, keep_words
from billing.statements import months
from billing.verify import sluice_verify

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


def seals_of(shop):
    return list(LedgerSeal.objects.filter(tenant=shop.tenant).order_by("number"))


def faults(**asked):
    return [detail for _, detail in proofs.contradictions(**{"whole": True, **asked})]


def test_each_day_with_rows_is_sealed_in_a_chain_that_leaves_no_day_out(busy):
    found = seals_of(busy)
    days = [(str(one.first), str(one.day), one.size) for one in found]
    assert days == [
        ("2026-10-31", "2026-10-31", 4),
        ("2026-11-01", "2026-11-01", 2),
        ("2026-11-02", "2026-11-03", 8),
        ("2026-11-04", "2026-11-04", 2),
        ("2026-11-05", "2026-11-20", days[4][2]),
        ("2026-11-21", "2026-11-25", days[5][2]),
        ("2026-11-26", "2026-12-01", 2),
    ]
    assert [one.previous for one in found] == [sealing.NOTHING, *(one.digest for one in found[:-1])]
    posted = Wallet.objects.get(pk=busy.wallet.pk).posted
    assert found[-1].balance == posted
    assert faults() == []
    assert reconcile.check(connection, all_seals=True) == []


def test_trees_are_those_of_rfc_6962():
    """Split at the largest power of two, as the RFC writes it down."""

    def mth(leaves):
        if len(leaves) == 1:
            return leaves[0]
        k = 1
        while 2 * k < len(leaves):
            k *= 2
        return tree._sha256(b"\1" + mth(leaves[:k]) + mth(leaves[k:])).digest()

    for count in (1, 2, 3, 5, 255, 256, 257, 700, 1025):
        leaves = [tree.leaf(str(number).encode()) for number in range(count)]
        assert tree.root(leaves) == tree.root(tree.blocks(leaves)) == sluice_verify.root(leaves) == mth(leaves)


def test_a_proof_leads_from_any_record_of_a_long_day_to_the_seal(shop, verify, tmp_path, monkeypatch):
    monkeypatch.setattr(tree, "BLOCK", 4)
    monkeypatch.setattr(sealing.tree, "BLOCK", 4)
    shop.at("11-03 10:00")
    shop.give(10**6)
    for _ in range(11):
        shop.serve()
    record = UsageRecord.objects.order_by("request")[5]
    assert proofs.proof_of(record) is None
    shop.at("11-04 01:00")
    shop.seal()
    for record in UsageRecord.objects.all():
        proof = proofs.proof_of(record)
        chain = sluice_verify.Chain()
        assert "is right" in sluice_verify.check_proof({"proof": _plain(proof)}, chain)
        proof["leaf"]["charge"] += 1
        with pytest.raises(sluice_verify.WrongError, match="does not lead to the root"):
            sluice_verify.check_proof({"proof": _plain(proof)}, chain)


def _plain(proof):
    import msgspec

    return msgspec.json.decode(msgspec.json.encode(proof))


def test_a_changed_dropped_or_added_row_of_a_sealed_day_is_found(busy):
    from billing import triggers

    [record] = UsageRecord.objects.filter(tenant=busy.tenant, settled_at__lt=datetime(2026, 11, 1, tzinfo=UTC))
    with triggers.suspended(connection):
        UsageRecord.objects.filter(pk=record.pk).update(charge=record.charge + 1)
    assert faults() == [  # it was given back on another day: that leaf says what it had charged
        f"{day} of tenant {busy.tenant}: its rows are not those that were sealed"
        for day in ("2026-10-31", "2026-11-25")
    ]
    assert any("rows from" in one for one in faults(whole=False))
    with triggers.suspended(connection):
        UsageRecord.objects.filter(pk=record.pk).update(charge=record.charge)
        LedgerTransfer.objects.filter(booked_at__lt=datetime(2026, 11, 1, tzinfo=UTC), code=Code.CHARGE)._raw_delete(
            "default"
        )
    assert len(faults()) == 1


def test_no_row_comes_to_a_closed_day_whatever_the_clock_says(busy):
    """The clock went back: the books go on where the closed day ends."""
    busy.at("11-15 10:00")
    made = busy.serve()
    record = UsageRecord.objects.get(request=made.request)
    ends = datetime(2026, 12, 2, tzinfo=UTC)
    assert record.settled_at == ends
    assert {one.booked_at for one in LedgerTransfer.objects.filter(request=made.request)} == {ends}
    assert faults() == []
    busy.at("12-03 00:10")
    busy.seal()
    assert seals_of(busy)[-1].size == 2
    assert faults() == []


@pytest.mark.parametrize("table", ["record", "transfer"])
def test_the_database_itself_refuses_a_row_of_a_closed_day(busy, table):
    if table == "record":
        [row, *_] = UsageRecord.objects.filter(tenant=busy.tenant)
        row.pk, row.request = uuid7(), uuid7()
        row.revision = 7
    else:
        [row, *_] = LedgerTransfer.objects.filter(code=Code.CHARGE)
        row.pk, row.request = None, uuid7()
    with pytest.raises(IntegrityError, match="this day is closed"), transaction.atomic():
        row.save(force_insert=True)


def test_an_empty_day_is_sealed_where_a_statement_needs_its_end(shop):
    shop.at("11-03 10:00")
    shop.give(100)
    shop.at("12-01 00:01")
    shop.seal()
    assert [(str(one.first), str(one.day), one.size) for one in seals_of(shop)] == [
        ("2026-11-03", "2026-11-03", 1),
        ("2026-11-04", "2026-11-30", 0),
    ]
    shop.seal()
    assert len(seals_of(shop)) == 2


def test_a_backlog_is_sealed_bit_by_bit(shop):
    for day in range(1, 8):
        shop.at(f"11-0{day} 10:00")
        shop.give(10)
    shop.at("11-08 00:01")
    assert sealing.seal_tenant(shop.tenant, most=3) == datetime(2026, 11, 4, tzinfo=UTC)
    assert sealing.seal_tenant(shop.tenant, most=3) == datetime(2026, 11, 7, tzinfo=UTC)
    assert sealing.seal_tenant(shop.tenant, most=3) == datetime(2026, 11, 8, tzinfo=UTC)
    assert [one.day for one in seals_of(shop)] == [date(2026, 11, day) for day in range(1, 8)]


def test_erasing_words_keeps_the_proofs_and_takes_the_words(busy, verify):
    transfers = LedgerTransfer.objects.filter(reason="welcome")
    records = UsageRecord.objects.filter(end_user="somebody")
    with transaction.atomic():
        keep_words(transfers)
        transfers.update(actor="erased", reason="erased")
        keep_words(records)
        records.update(end_user="", model="erased/1")
    assert faults() == []
    assert ErasedWords.objects.count() == 2
    for month in ("2026-10", "2026-11"):
        text = busy.statement(month)
        assert "somebody" not in text
        assert "welcome" not in text
        code, said = verify(text)
        # the lines of a closed month name the model as it was, unless the erasure renames it there too
        assert code == 0, said
        assert "the words of 1 rows were erased" in said
    with transaction.atomic():
        keep_words(LedgerTransfer.objects.filter(reason="erased"))  # a second erasure keeps what the first has kept
    assert faults() == []


def test_words_erased_before_their_day_is_sealed_make_no_difference(shop):
    shop.at("11-03 10:00")
    shop.give(100, reason="for Quilla", actor="a@example.com")
    before = [leaf.hash for leaf in Books(shop.tenant).leaves(datetime.min.replace(tzinfo=UTC), shop.at("11-04 00:00"))]
    with transaction.atomic():
        keep_words(LedgerTransfer.objects.all())
        LedgerTransfer.objects.update(reason="erased")
    after = [leaf.hash for leaf in Books(shop.tenant).leaves(datetime.min.replace(tzinfo=UTC), shop.at("11-04 00:00"))]
    assert before == after


def test_keys_are_replaced_and_vouch_for_each_other(busy):
    first = keys.latest()
    second = keys.rotate()
    assert (first.number, second.number, keys.latest().pk) == (1, 2, 2)
    ring = sluice_verify.Keys(None)
    for number, key in enumerate(keys.public_keys(), 1):
        ring.add(number, keys.told(key))
    stranger = keys.told(second) | {"number": 3}
    with pytest.raises(sluice_verify.WrongError, match="is not its own"):
        ring.add(3, stranger)
    with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
        SigningKey.objects.filter(pk=1).update(public_key="0")


def test_keys_are_sealed_anew_under_a_new_secret(busy, settings):
    settings.SLUICE_CREDENTIAL_FALLBACKS = [settings.SLUICE_CREDENTIAL_SECRET]
    settings.SLUICE_CREDENTIAL_SECRET = "another secret of more than enough characters"
    assert keys.reseal() == []
    settings.SLUICE_CREDENTIAL_FALLBACKS = []
    keys.private_key(keys.latest())
    settings.SLUICE_CREDENTIAL_SECRET = "a third secret, of which nothing was told before"
    assert keys.reseal() == ["Key 1"]


def test_seals_and_erased_words_are_append_only(busy):
    for rows in (LedgerSeal.objects.all(), months.Statement.objects.all()):
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            rows.update(tenant=uuid7())
        with pytest.raises(IntegrityError, match="append-only"), transaction.atomic():
            rows._raw_delete("default")


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("guard", ["off", "on"])
def test_a_day_is_closed_only_when_what_was_booked_on_it_has_committed(shop, guard, monkeypatch):
    """A charge of the day's last moment is still open while the job seals the day: with the locks it waits for it."""
    shop.at("11-03 23:59")
    shop.give(10**6)
    if guard == "off":
        monkeypatch.setattr(sealing, "close", lambda _: datetime(2026, 11, 4, tzinfo=UTC))
    is_booked, goes_on = threading.Event(), threading.Event()
    errors = []

    def book():
        try:
            with transaction.atomic():
                shop.serve()
                is_booked.set()
                goes_on.wait(20)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)
        finally:
            connection.close()

    def seal():
        try:
            sealing.seal_tenant(shop.tenant)
        except BaseException as error:  # noqa: BLE001 - shown below
            errors.append(error)
        finally:
            connection.close()

    booking = threading.Thread(target=book)
    booking.start()
    assert is_booked.wait(20)
    shop.at("11-04 00:01")
    job = threading.Thread(target=seal)
    job.start()
    job.join(0.3 if guard == "on" else 20)  # with the guard it waits for the wallet
    assert job.is_alive() == (guard == "on")
    goes_on.set()
    booking.join(20)
    job.join(20)
    assert errors == []
    [seal] = seals_of(shop)
    assert seal.size == (1 if guard == "off" else 3)
    assert bool(faults()) == (guard == "off")
