"""The driver alone, with gateways that answer as a test wants: fair, few at a time, nothing lost, nothing twice."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from contextlib import closing
from datetime import timedelta

import pytest
from django.db import OperationalError
from django.db.models import F

from base import clock, storage
from base.database.threads import DatabaseThreads
from base.ids import uuid7
from base.leases import LEASE
from gateway.batches import claims, outcomes, results
from gateway.batches.driver import Driver
from gateway.batches.files import StoredFile, delete_file, removal
from gateway.batches.intake import take_in
from gateway.batches.models import Batch, BatchLine
from gateway.batches.outcomes import Reply, UnknownError
from gateway.batches.results import finish
from gateway.batches.services import cancel_batch, forget_batches
from gateway.batches.work import Work
from gateway.durable import answers
from gateway.durable.log import Head
from gateway.durable.room import LINE
from tests.gateway.batches.conftest import Desk, chat_line, make_due
from tests.gateway.world import make_world

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.money]
State = BatchLine.State


class Gateways:
    """Answers every line at once, unless told otherwise; knows what was sent, and how much at a time."""

    def __init__(self) -> None:
        self.sent = []
        self.over = []  # of each, whether its batch was
        self.going = self.most = 0
        self.answers = {}  # by custom content: what to answer
        self.gate = asyncio.Event()
        self.gate.set()

    async def ask(self, task, is_over):
        self.sent.append(task)
        self.over.append(is_over)
        self.going += 1
        self.most = max(self.most, self.going)
        try:
            await self.gate.wait()
            text = json.loads(task.body)["messages"][0]["content"]
            given = self.answers.get(text, 200)
            if isinstance(given, list):
                given = given.pop(0)
            if isinstance(given, Exception):
                raise given
            code = {"error": {"code": "x"}} if given != 200 else {"said": text, "usage": {"prompt_tokens": 2}}
            return Reply(given, "r", None, json.dumps(code).encode())
        finally:
            self.going -= 1


class Stepper:
    """A driver on a loop of its own, which turns while it is stepped."""

    def __init__(self, gateways, slots=3) -> None:
        self._loop = asyncio.new_event_loop()
        self._threads = DatabaseThreads(1)
        self.driver = Driver(gateways.ask, self._threads, slots, rests=lambda: False)

    def step(self):
        return self._loop.run_until_complete(self.driver.step())

    def answered(self):
        """Return when all that runs has been answered."""
        self._loop.run_until_complete(asyncio.wait(self.driver._running, timeout=120))

    def close(self):
        left = list(self.driver._running)
        self.driver.close()
        if left:
            self._loop.run_until_complete(asyncio.wait(left, timeout=120))
        self._loop.close()
        self._threads.close()


@pytest.fixture
def gateways():
    return Gateways()


@pytest.fixture
def driver(gateways):
    with closing(Stepper(gateways)) as made:
        yield made


def begin(desk, count=6, **fields):
    batch = desk.begin([chat_line(number) for number in range(count)], **fields)
    assert take_in()
    return batch


def drive(driver):
    while driver.step():
        pass


def end(driver):
    drive(driver)
    while finish():
        pass


def custom_ids(lines):
    return [line["custom_id"] for line in lines]


def lapse():
    """Let every claim be over, as those of a killed process are after a while."""
    BatchLine.objects.filter(state=State.RUNNING).update(claimed_until=clock.now() - timedelta(seconds=1))


class AllButOne(Gateways):
    """Answers the first line whatever becomes of the others."""

    async def ask(self, task, is_over):
        return Reply(200, "r", None, b"{}") if b"say 0" in task.body else await super().ask(task, is_over)


def fail(*_, **__):
    raise OperationalError("the connection is lost")


def test_lines_run_few_at_a_time_and_the_first_ones_first(desk, gateways, driver):
    batch = begin(desk, 20)
    end(driver)
    assert gateways.most <= 3
    assert len(gateways.sent) == len({task.line.id for task in gateways.sent}) == 20
    output, errors = desk.results(batch)
    assert custom_ids(output) == [f"c{number}" for number in range(20)]
    assert errors == []
    ended = desk.now(batch)
    assert (ended.status, ended.completed, ended.input_tokens) == ("completed", 20, 40)
    assert {task.batch.api_key for task in gateways.sent} == {desk.world.key_id}


def test_a_tenant_with_a_long_batch_keeps_none_waiting_that_has_a_short_one(desk, gateways, driver):
    begin(desk, 60)
    other = Desk(make_world())
    gateways.gate.clear()
    driver.step()
    late = begin(other, 6)
    gateways.gate.set()
    while not finish() or other.now(late).status != "completed":
        driver.step()
    sent = Counter(task.batch.api_key for task in gateways.sent)
    assert sent[other.world.key_id] == 6
    assert sent[desk.world.key_id] <= 6 + 12 + 6, "as many as the short one's, and what was on its way before"


def test_tenants_with_hundreds_of_open_batches_keep_none_waiting_that_came_later(desk, gateways):
    """None of theirs ends while the driver looks: they are far more than it could look at one by one."""
    many = [Desk(make_world()).begin([chat_line(0)]) for _ in range(2)]
    while take_in():
        pass
    lines = {line.batch_id: line for line in BatchLine.objects.all()}
    for batch in map(desk.now, many):
        copies = [Batch(**{**fields_of(batch), "id": uuid7()}) for _ in range(300)]
        Batch.objects.unscoped().bulk_create(copies)
        line = fields_of(lines[batch.id])
        BatchLine.objects.bulk_create([BatchLine(**{**line, "id": uuid7(), "batch_id": one.id}) for one in copies])
    begin(desk, 3)
    gateways.gate.clear()
    with closing(Stepper(gateways)) as driver:
        driver.step()
        mine = BatchLine.objects.filter(batch__tenant=desk.world.tenant, state=State.RUNNING)
        assert mine.count() == 2, "of six, for three tenants"
        gateways.gate.set()


def fields_of(row):
    return {field.attname: getattr(row, field.attname) for field in row._meta.concrete_fields}


def test_a_killed_drivers_lines_are_taken_by_the_next(desk, gateways):
    batch = begin(desk, 6)
    gateways.gate.clear()
    with closing(Stepper(gateways)) as killed, closing(Stepper(gateways)) as following:
        killed.step()
        following.step()
        assert BatchLine.objects.filter(state=State.RUNNING).count() == 6
        before = {line.id: line.claim for line in BatchLine.objects.all()}
        following.step()
        assert {line.id: line.claim for line in BatchLine.objects.all()} == before, "claims are respected"
        lapse()
        gateways.gate.set()
        drive(following)
        drive(killed)  # it wasn't dead: what it has to say is too late
        end(following)
    ended = desk.now(batch)
    assert (ended.completed, ended.total, ended.status) == (6, 6, "completed")
    assert len(desk.results(batch)[0]) == 6


def test_claims_are_renewed_while_lines_run(desk, gateways, driver):
    begin(desk, 2)
    gateways.gate.clear()
    driver.step()
    driver.driver._claims._renewed_at = 0.0
    BatchLine.objects.update(claimed_until=F("claimed_until") - LEASE / 2)
    driver.step()
    rest = BatchLine.objects.first().claimed_until - clock.now()
    assert rest > LEASE / 2
    gateways.gate.set()
    drive(driver)


def test_a_line_whose_answer_couldnt_be_noted_is_asked_for_again_while_others_run(desk, monkeypatch):
    """Renewed with those that run it would be nobody's for as long as there are any."""
    batch, gateways = begin(desk, 6), AllButOne()
    gateways.gate.clear()
    with closing(Stepper(gateways)) as driver:
        driver.step()
        with monkeypatch.context() as broken, pytest.raises(OperationalError):
            broken.setattr(outcomes, "counted", fail)  # the transaction is rolled back
            drive(driver)
        lapse()
        driver.driver._claims._renewed_at = 0.0
        driver.step()
        gateways.gate.set()
        end(driver)
    assert desk.now(batch).status == "completed"
    assert len(desk.results(batch)[0]) == 6


def test_answers_that_couldnt_be_noted_together_are_all_asked_for_again(desk, gateways, driver, monkeypatch):
    batch = begin(desk, 6)
    driver.step()
    driver.answered()
    with monkeypatch.context() as broken, pytest.raises(OperationalError):
        broken.setattr(outcomes, "outcome_of", fail)  # as the first statement does where the connection is lost
        driver.step()
    for _ in range(20):
        lapse()
        driver.step()
        finish()
    assert desk.now(batch).status == "completed"
    assert len(desk.results(batch)[0]) == 6


def test_a_gateway_that_is_away_ends_nothing(desk, gateways, driver):
    gateways.answers["say 1"] = [503, 429, UnknownError("cut"), 200]
    batch = begin(desk, 2)
    for _ in range(4):
        end(driver)
        make_due()
    assert desk.now(batch).status == "completed"
    assert custom_ids(desk.results(batch)[0]) == ["c0", "c1"]


def test_errors_stand_in_their_own_file_in_order(desk, gateways, driver):
    gateways.answers |= {"say 1": 400, "say 4": 404}
    batch = begin(desk, 6)
    end(driver)
    output, errors = desk.results(batch)
    assert custom_ids(output) == ["c0", "c2", "c3", "c5"]
    assert [(line["custom_id"], line["response"]["status_code"]) for line in errors] == [("c1", 400), ("c4", 404)]
    assert (desk.now(batch).completed, desk.now(batch).failed) == (4, 2)


def test_when_the_window_is_over_nothing_more_is_sent_but_what_ran_is_asked_for(desk, gateways, driver):
    """One line was sent by a process that died: it may be charged, so its answer is wanted; the others never ran."""
    batch = begin(desk, 4)
    first = BatchLine.objects.earliest("number")
    BatchLine.objects.filter(id=first.id).update(state=State.RUNNING, claimed_until=clock.now(), attempts=1)
    Batch.objects.unscoped().update(expires_at=clock.now() - timedelta(seconds=1))
    end(driver)
    ended = desk.now(batch)
    assert (ended.status, ended.completed, ended.failed) == ("expired", 1, 3)
    assert ended.expired_at is not None
    output, errors = desk.results(batch)
    assert custom_ids(output) == ["c0"]
    assert {line["error"]["code"] for line in errors} == {"batch_expired"}
    assert [task.line.id for task in gateways.sent] == [first.id]


@pytest.mark.parametrize("refusal", [503, 429])
def test_a_line_whose_answer_was_lost_is_asked_for_whatever_refuses_it_meanwhile(desk, gateways, driver, refusal):
    batch = begin(desk, 1)
    gateways.answers["say 0"] = [UnknownError("cut"), refusal, 200]
    drive(driver)
    make_due()
    drive(driver)
    cancel_batch(desk.world.tenant.id, desk.world.project.id, batch.id)
    finish()
    make_due()
    end(driver)
    ended = desk.now(batch)
    assert (ended.status, ended.completed, ended.failed) == ("cancelled", 1, 0)
    assert gateways.over == [False, False, True]


@pytest.mark.parametrize("refusal", [401, 403])
def test_a_line_that_ran_is_answered_though_its_key_may_nothing_any_more(desk, gateways, driver, refusal):
    """It was charged, and told as refused, where its answer was lost and its key revoked before it was asked for."""
    batch = begin(desk, 1)
    gateways.answers["say 0"] = [UnknownError("cut"), refusal, refusal]
    drive(driver)
    line, run = BatchLine.objects.get(), uuid7()
    answers.claim(answers.Claim(desk.world.tenant.id, f"{LINE}{line.id.hex}", b"d"), run, uuid7())
    make_due()
    drive(driver)
    line.refresh_from_db()
    assert line.state == State.RUNNING, "a gateway makes its answer"
    body = json.dumps({"said": "0", "usage": {"prompt_tokens": 3}}).encode()
    assert answers.store(run, answers.Stored(Head(200, (), False), body), {})
    make_due()
    end(driver)
    output, errors = desk.results(batch)
    assert (custom_ids(output), errors) == (["c0"], [])
    assert desk.now(batch).input_tokens == 3


def test_a_line_that_was_lost_with_its_gateway_ends_as_its_key_does(desk, gateways, driver):
    batch = begin(desk, 1)
    gateways.answers["say 0"] = [UnknownError("cut"), 401]
    drive(driver)
    make_due()
    end(driver)
    output, errors = desk.results(batch)
    assert (output, [line["response"]["status_code"] for line in errors]) == ([], [401])


def test_a_batch_that_was_never_read_in_time_expires(desk):
    batch = desk.begin([chat_line(1)])
    Batch.objects.unscoped().update(expires_at=clock.now() - timedelta(days=1))
    finish()
    assert desk.now(batch).status == "expired"


def test_an_input_that_is_deleted_meanwhile_is_read_to_its_end(desk, gateways, driver):
    batch = begin(desk, 6)
    driver.step()
    assert delete_file(desk.world.tenant.id, desk.world.project.id, batch.input_file)
    assert removal().turn() == 0
    end(driver)
    assert desk.now(batch).completed == 6
    assert removal().turn() == 1


def test_an_input_that_is_lost_meanwhile_ends_its_lines(desk, gateways, driver):
    batch = begin(desk, 2)
    storage.remove(StoredFile.objects.unscoped().get(id=batch.input_file))
    for _ in range(9):
        end(driver)
        make_due()
    output, errors = desk.results(batch)
    assert output == []
    assert [line["error"]["code"] for line in errors] == ["input_file_missing"] * 2
    assert gateways.sent == []


def test_files_are_written_once_whoever_dies_in_between(desk, gateways, driver, monkeypatch):
    batch = begin(desk, 3)
    drive(driver)
    with monkeypatch.context() as broken:
        broken.setattr(results, "finish_file", killed)
        with pytest.raises(KeyboardInterrupt):
            finish()
    stopped = desk.now(batch)
    assert (stopped.status, stopped.output_file) == ("finalizing", None)
    while finish():
        pass
    assert len(desk.results(batch)[0]) == 3
    shown = StoredFile.objects.unscoped().filter(purpose="batch_output", state=StoredFile.State.READY)
    assert [file.id for file in shown] == [desk.now(batch).output_file]
    assert removal(lambda: clock.now() + timedelta(hours=2)).turn() == 1, "what the first one had stored"


def test_a_batch_stays_its_processs_while_a_slow_storage_takes_its_files(desk, gateways, driver, monkeypatch):
    batch = begin(desk, 3)
    drive(driver)
    put, renew, stored, is_storing, renewed = storage.put, Work.renew, [], threading.Event(), threading.Event()

    def slow(file, path):
        is_storing.set()
        stored.append(renewed.wait(120))
        put(file, path)

    def noted(work, *statuses):
        before = desk.now(batch).worked_until
        renew(work, *statuses)
        if is_storing.is_set() and desk.now(batch).worked_until > before:
            renewed.set()

    monkeypatch.setattr(results, "RENEW_SECONDS", 0.01)
    monkeypatch.setattr(storage, "put", slow)
    monkeypatch.setattr(Work, "renew", noted)
    while finish():
        pass
    assert stored == [True]
    assert len(desk.results(batch)[0]) == 3


def killed(*_):
    raise KeyboardInterrupt


def test_cancelling_twice_is_once_and_an_ended_one_cant_be(desk, gateways, driver):
    ids = desk.world.tenant.id, desk.world.project.id
    batch = begin(desk, 2)
    assert cancel_batch(*ids, batch.id).status == "cancelling"
    assert cancel_batch(*ids, batch.id).status == "cancelling"
    end(driver)
    assert cancel_batch(*ids, batch.id).status == "cancelled"
    assert gateways.sent == []
    assert desk.now(batch).failed == 2
    done = begin(desk, 1)
    end(driver)
    with pytest.raises(Exception, match="completed already"):
        cancel_batch(*ids, done.id)
    assert cancel_batch(*ids, desk.world.tenant.id) is None


def test_results_live_as_long_as_was_asked(desk, gateways, driver):
    batch = begin(desk, 1, output_seconds=3600)
    end(driver)
    file = StoredFile.objects.unscoped().get(id=desk.now(batch).output_file)
    assert file.expires_at - file.created_at == timedelta(hours=1)


def test_lines_go_with_the_end_of_their_batch_and_it_with_its_days(desk, gateways, driver):
    batch = begin(desk, 5)
    assert forget_batches(clock.now(), 10) == 0
    end(driver)
    assert forget_batches(clock.now(), 3) == 3
    assert forget_batches(clock.now(), 3) == 2
    assert forget_batches(clock.now() + timedelta(days=29), 3) == 0
    assert forget_batches(clock.now() + timedelta(days=31), 3) == 1
    assert not Batch.objects.unscoped().filter(id=batch.id).exists()


def test_the_answers_of_a_batch_fill_no_disk(desk, gateways, driver, settings):
    settings.SLUICE_MAX_OUTPUT_BYTES = 1
    batch = begin(desk, 20)
    end(driver)
    output, errors = desk.results(batch)
    assert 1 <= len(output) == len(gateways.sent) <= 9
    assert {line["error"]["code"] for line in errors} == {"output_too_large"}
    ended = desk.now(batch)
    assert (ended.status, ended.completed + ended.failed) == ("completed", 20)


def test_what_was_claimed_before_something_failed_is_taken_again(desk, gateways, driver, monkeypatch):
    """They were renewed for ever, and run by nobody: this process took no more of anybody's."""
    mine, theirs = begin(desk, 6), begin(Desk(make_world()), 6)
    read, calls = claims._read, []

    def broken(batch, lines):
        calls.append(batch.id)
        return fail() if len(calls) == 2 else read(batch, lines)

    monkeypatch.setattr(claims, "_read", broken)
    with pytest.raises(OperationalError):
        driver.step()
    end(driver)
    assert len(gateways.sent) == 6
    lapse()
    end(driver)
    assert [desk.now(batch).completed for batch in (mine, theirs)] == [6, 6]


def test_a_tenants_lines_are_left_to_the_process_that_has_as_many_as_may_run(desk, gateways):
    """Each would have been prepared, and refused for its lease, over and over."""
    begin(desk, 20)
    gateways.gate.clear()
    with closing(Stepper(gateways)) as one, closing(Stepper(gateways)) as other:
        one.step()
        assert not other.step()
        late = begin(Desk(make_world()), 2)
        other.step()
        assert {task.batch.id for task in other.driver._running.values()} == {late.id}
        gateways.gate.set()


def test_lines_that_wait_for_a_busy_model_keep_no_others_waiting(desk, gateways, driver):
    gateways.answers |= {f"say {number}": [503] * 50 for number in range(6)}
    batch = begin(desk, 12)
    driver.step()
    while desk.now(batch).completed != 6:
        BatchLine.objects.filter(state=State.WAITING, number__lte=6).update(due_at=clock.now())
        driver.step()
    assert {task.line.number for task in gateways.sent} == set(range(1, 13))


def test_a_storage_that_fails_for_a_while_ends_nothing(desk, gateways, driver, monkeypatch):
    batch = begin(desk, 2)
    with monkeypatch.context() as broken:
        broken.setattr(storage, "read", lambda _: (_ for _ in ()).throw(PermissionError("for now")))
        for _ in range(9):
            end(driver)
            make_due()
    end(driver)
    assert custom_ids(desk.results(batch)[0]) == ["c0", "c1"]
    assert BatchLine.objects.filter(attempts=1).count() == 2


def test_a_damaged_input_costs_its_own_lines_alone(desk, gateways, driver):
    batch, other = begin(desk, 2), begin(Desk(make_world()), 2)
    file = StoredFile.objects.unscoped().get(id=batch.input_file)
    with storage.read(file) as opened:
        content = opened.read().replace(b"c0", b"\xff0")
    storage.remove(file)
    draft = storage.drafts() / "damaged"
    draft.write_bytes(content)
    storage.put(file, draft)
    for _ in range(9):
        end(driver)
        make_due()
    output, errors = desk.results(batch)
    assert (custom_ids(output), [line["error"]["code"] for line in errors]) == (["c1"], ["input_file_missing"])
    assert desk.now(other).completed == 2
