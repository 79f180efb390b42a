"""What is wrong with an input file, said by line; nothing of such a file runs."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta

import pytest

from base import clock, storage
from base.leases import LEASE
from gateway.batches import intake, lines
from gateway.batches.files import StoredFile, delete_file
from gateway.batches.intake import take_in
from gateway.batches.models import Batch, BatchLine
from gateway.batches.results import finish
from gateway.batches.services import cancel_batch
from gateway.batches.work import work_on
from gateway.errors.refusal import Refusal
from tests.gateway.batches.conftest import CHAT, Desk, chat_line, jsonl
from tests.gateway.world import make_world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]

GOOD = jsonl([chat_line(1)])


def failed(desk, content, **fields):
    """The errors of a batch of that content: line, code and field of each."""
    batch = desk.begin(content, **fields)
    assert take_in()
    ended = desk.now(batch)
    assert ended.status == "failed"
    assert ended.failed_at is not None
    assert not BatchLine.objects.filter(batch=batch).exists()
    assert all(error["message"] for error in ended.errors)
    return [(error["line"], error["code"], error["param"]) for error in ended.errors]


def other(**fields):
    return jsonl([{**chat_line(2), **fields}])


@pytest.mark.parametrize(
    ("line", "code", "param"),
    [
        (b"{\n", "invalid_json", None),
        (b"[]\n", "invalid_type", None),
        (b'"\xff"\n', "invalid_json", None),
        (b"[" * 100_000 + b"\n", "json_too_deep", None),
        (gzip.compress(b"0" * 100_000).replace(b"\n", b" ") + b"\n", "invalid_json", None),
        (other(custom_id="c1"), "duplicate_custom_id", "custom_id"),
        (other(custom_id=""), "invalid_value", "custom_id"),
        (other(custom_id=7), "invalid_type", "custom_id"),
        (other(custom_id="x" * 513), "invalid_value", "custom_id"),
        (other(custom_id="a\0b"), "invalid_value", "custom_id"),
        (other(method="GET"), "invalid_value", "method"),
        (other(method="\0"), "invalid_value", "method"),
        (other(url="/v1/embeddings"), "mismatched_endpoint", "url"),
        (other(url="/v1/files"), "mismatched_endpoint", "url"),
        (other(colour="red"), "unknown_parameter", "colour"),
        (other(**{"col\0ur": "red"}), "unknown_parameter", "col�ur"),
        (other(body=[]), "invalid_type", "body"),
        (other(body={}), "missing_required_parameter", "body.model"),
        (other(body={"model": "m\0"}), "invalid_value", "body.model"),
        (other(body={"model": "m", "stream": True}), "invalid_value", "body.stream"),
        (other(body={"model": "m", "background": True}), "invalid_value", "body.background"),
        (jsonl([{"custom_id": "c2"}]), "missing_required_parameter", "method"),
    ],
)
def test_each_wrong_line_is_named(desk, line, code, param):
    assert failed(desk, GOOD + line + jsonl([chat_line(3)])) == [(2, code, param)]


def test_a_batch_that_fails_in_our_hands_holds_up_no_other(desk, monkeypatch):
    first, second = desk.begin(GOOD), desk.begin(GOOD)
    right = intake._take_in

    def broken(work):
        if work.batch == first:
            raise RuntimeError("nobody thought of that")
        right(work)

    monkeypatch.setattr(intake, "_take_in", broken)
    with pytest.raises(RuntimeError):
        take_in()
    assert take_in()
    assert [desk.now(batch).status for batch in (first, second)] == ["validating", "in_progress"]


def test_a_line_nests_as_deep_as_a_request_may_and_no_deeper(desk):
    body = '{"custom_id": "c2", "method": "POST", "url": "%s", "body": {"model": "m", "x": %s}}\n'
    deep = (body % (CHAT, "[" * 70 + "]" * 70)).encode()
    assert failed(desk, GOOD + deep) == [(2, "json_too_deep", None)]


def test_all_errors_are_told_up_to_a_hundred(desk):
    found = failed(desk, b"x\n" * 5 + GOOD + b"y\n")
    assert [line for line, _, _ in found] == [1, 2, 3, 4, 5, 7]
    assert len(failed(desk, b"x\n" * 500)) == 100


def test_a_long_line_is_refused_without_being_kept(desk, settings):
    """20 MB in one line: it is read in pieces, and the lines behind it are read."""
    settings.SLUICE_MAX_BODY_BYTES = 1_000_000
    long = json.dumps(chat_line(2, body={"x": "y" * 20_000_000})).encode() + b"\n"
    most = 0

    class Watched:
        def __init__(self, opened):
            self.opened = opened

        def readline(self, size):
            nonlocal most
            data = self.opened.readline(size)
            most = max(most, len(data))
            return data

    file = desk.store(GOOD + long + jsonl([chat_line(3)]))
    with storage.read(file) as opened:
        found = list(lines.lines_of(Watched(opened)))
    assert [(line.number, line.data is None) for line in found] == [(1, False), (2, True), (3, False)]
    assert found[2].offset == len(GOOD) + len(long)
    assert most <= 1 << 20
    assert failed(desk, GOOD + long) == [(2, "line_too_long", None)]


def test_one_request_too_many(desk, monkeypatch):
    monkeypatch.setattr(intake, "MOST_LINES", 3)
    assert failed(desk, jsonl([chat_line(number) for number in range(4)])) == [(4, "too_many_requests", None)]
    batch = desk.begin([chat_line(number) for number in range(3)])
    take_in()
    assert (desk.now(batch).status, desk.now(batch).total) == ("in_progress", 3)


def test_fifty_thousand_requests_are_the_most():
    assert lines.MOST_LINES == 50_000


@pytest.mark.parametrize("content", [b"", b"\n\n \r\n"])
def test_an_empty_file_has_nothing_to_run(desk, content):
    assert failed(desk, content) == [(None, "empty_file", "input_file_id")]


def test_blank_lines_and_windows_line_ends_are_taken(desk):
    content = b"\r\n".join([b"", *(json.dumps(chat_line(number)).encode() for number in range(2)), b"", b""])
    batch = desk.begin(content)
    take_in()
    assert desk.now(batch).total == 2
    assert list(BatchLine.objects.order_by("number").values_list("number", "custom_id")) == [(2, "c0"), (3, "c1")]


def test_models_may_differ(desk):
    batch = desk.begin([chat_line(1), chat_line(2, body={"model": "other"})])
    take_in()
    assert (desk.now(batch).status, desk.now(batch).model) == ("in_progress", "")


def test_lost_bytes_fail_the_batch(desk):
    batch = desk.begin(GOOD)
    storage.remove(StoredFile.objects.unscoped().get(id=batch.input_file))
    take_in()
    assert [error["code"] for error in desk.now(batch).errors] == ["input_file_missing"]


def test_a_file_that_was_deleted_is_read_all_the_same(desk):
    batch = desk.begin(GOOD)
    assert delete_file(desk.world.tenant.id, desk.world.project.id, batch.input_file)
    take_in()
    assert desk.now(batch).status == "in_progress"


def test_what_a_killed_process_had_read_is_read_anew(desk, monkeypatch):
    monkeypatch.setattr(intake, "WRITTEN_AT_ONCE", 2)
    batch = desk.begin([chat_line(number) for number in range(5)])
    removing = intake.remove_lines
    with monkeypatch.context() as broken:
        broken.setattr(intake.BatchLine.objects, "bulk_create", killed_after(2, BatchLine.objects.bulk_create))
        with pytest.raises(KeyboardInterrupt):
            take_in()
    assert BatchLine.objects.count() == 4
    Batch.objects.unscoped().update(worked_until=clock.now() - timedelta(seconds=1))
    assert take_in()
    assert desk.now(batch).total == BatchLine.objects.count() == 5
    assert removing is intake.remove_lines


def killed_after(calls, work):
    left = [calls]

    def killed(*arguments):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return work(*arguments)

    return killed


def test_one_process_reads_a_file_at_a_time(desk):
    desk.begin(GOOD)
    waiting = Batch.objects.unscoped().filter(status="validating")
    with work_on(waiting) as first:
        assert first is not None
        assert not take_in()
        Batch.objects.unscoped().update(worked_until=clock.now() - LEASE)  # it was silent for too long
        with work_on(waiting) as second:
            assert second is not None
            first.renew()  # raises, which ends the block: what comes behind isn't done
            raise AssertionError("two processes work on one batch")


def test_a_batch_that_another_process_has_just_read_is_not_read_again(desk, monkeypatch):
    """Its lines may be on their way already: new ones in their place would run, and be charged, besides."""
    batch = desk.begin(GOOD)
    now, asked, read = clock.now, [], []

    def late():
        asked.append(None)
        if len(asked) == 2:  # the batch was found, and is about to be taken
            assert take_in()
            read.extend(BatchLine.objects.filter(batch=batch).values_list("id", flat=True))
        return now()

    monkeypatch.setattr(clock, "now", late)
    assert not take_in()
    assert len(read) == 1
    assert list(BatchLine.objects.filter(batch=batch).values_list("id", flat=True)) == read
    assert desk.now(batch).status == "in_progress"


def test_a_cancelled_batch_isnt_begun(desk, monkeypatch):
    batch = desk.begin(GOOD)
    checking = lines.checked

    def cancelled(*arguments):
        cancel_batch(desk.world.tenant.id, desk.world.project.id, batch.id)
        return checking(*arguments)

    monkeypatch.setattr(intake, "checked", cancelled)
    take_in()
    assert desk.now(batch).status == "cancelling"
    while finish():
        pass
    ended = desk.now(batch)
    assert (ended.status, ended.output_file) == ("cancelled", None)


def test_a_batch_stays_ones_own_while_lines_without_a_request_are_read(desk, monkeypatch):
    monkeypatch.setattr(intake, "RENEWED_EACH", 1000)
    batch = desk.begin((b" " * 499 + b"\n") * 10 + GOOD)
    seen, now = [], clock.now()
    reading = intake.lines_of

    def slowly(opened):
        """Each line takes a third of the lease."""

        class Slow:
            def readline(self, size):
                nonlocal now
                now += LEASE / 3
                seen.append(Batch.objects.unscoped().filter(id=batch.id, worked_until__gt=now).exists())
                return opened.readline(size)

        return reading(Slow())

    monkeypatch.setattr(clock, "now", lambda: now)
    monkeypatch.setattr(intake, "lines_of", slowly)
    assert take_in()
    assert len(seen) == 12
    assert all(seen)
    assert desk.now(batch).status == "in_progress"


def test_no_more_is_read_of_a_batch_that_is_cancelled(desk, monkeypatch):
    monkeypatch.setattr(intake, "RENEWED_EACH", 1)
    batch = desk.begin([chat_line(number) for number in range(5)])
    checking, checks = lines.checked, []

    def cancelled(line, endpoint):
        checks.append(line.number)
        cancel_batch(desk.world.tenant.id, desk.world.project.id, batch.id)
        return checking(line, endpoint)

    monkeypatch.setattr(intake, "checked", cancelled)
    assert take_in()
    assert checks == [1]
    while finish():
        pass
    assert desk.now(batch).status == "cancelled"


def test_a_file_of_empty_lines_is_read_no_further_than_may_be(desk, monkeypatch):
    monkeypatch.setattr(intake, "MOST_READS", 20)
    assert failed(desk, b"\n" * 20 + GOOD) == [(None, "too_many_lines", "input_file_id")]
    batch = desk.begin(b"\n" * 18 + GOOD)
    assert take_in()
    assert desk.now(batch).status == "in_progress"


def test_tenants_take_turns(desk):
    first, again, third = (desk.begin(GOOD) for _ in range(3))
    other = Desk(make_world()).begin(GOOD)
    order = []
    while take_in():
        order += [one for one in (first, again, third, other) if desk.now(one).status == "in_progress"]
        order = list(dict.fromkeys(order))
    assert order == [first, other, again, third]


def test_a_tenant_has_so_many_open_batches(desk, settings):
    settings.SLUICE_MOST_BATCHES = 1
    desk.begin(GOOD)
    with pytest.raises(Refusal, match="open batches") as refused:
        desk.begin(GOOD)
    assert refused.value.code == "too_many_batches"


def test_only_files_of_the_project_and_purpose_are_run(desk):
    with pytest.raises(Refusal, match="purpose"):
        from gateway.batches.services import add_batch, new_batch

        output = desk.store(GOOD, purpose="batch_output")
        ids = {"tenant": desk.world.tenant.id, "project": desk.world.project.id, "api_key": desk.world.key_id}
        add_batch(new_batch(**ids, endpoint=CHAT, input_file=output.id))


def test_a_batch_that_is_cancelled_while_it_is_read_has_no_requests(desk, monkeypatch):
    """Not those that were found until then: it would have a part of them in a file, and none in its counts."""
    monkeypatch.setattr(intake, "WRITTEN_AT_ONCE", 2)
    batch = desk.begin([chat_line(number) for number in range(5)])

    def cancelled(line, endpoint):
        if line.number == 4:
            assert BatchLine.objects.filter(batch=batch).count() == 2
            cancel_batch(desk.world.tenant.id, desk.world.project.id, batch.id)
        return lines.checked(line, endpoint)

    monkeypatch.setattr(intake, "checked", cancelled)
    assert take_in()
    while finish():
        pass
    ended = desk.now(batch)
    assert (ended.status, ended.total, ended.completed, ended.failed) == ("cancelled", 0, 0, 0)
    assert (ended.output_file, ended.error_file) == (None, None)
    assert not BatchLine.objects.filter(batch=batch).exists()
