"""What must become of each request: whom credit is refused, whose answer is cut, and what is charged."""

from __future__ import annotations

from billing.models import UsageRecord
from gateway.durable.delivery import Outcome
from gateway.errors.refusal import Refusal
from gateway.generation.attempts import attempt_id
from inference.types import Finished
from tests.gateway.generation.torture.bench import FOREIGN, MOST, Asked, Bench
from tests.gateway.generation.torture.books import CLASSES, room_of
from tests.gateway.generation.torture.engines import believed
from tests.gateway.generation.torture.prices import ANSWER
from tests.gateway.world import in_database

STEADY = ("own", "cached")  # whose engines never fail


async def may_wait(bench: Bench, waiting: list[Asked]) -> bool:
    """Whether all of these rightly wait: others of their customers hold what they need."""
    for request in waiting:
        room = await in_database(room_of, request.customer, request.key, bench.now)
        if not room.free < request.wanted(room.freed) <= room.freed:
            return False
    return True


async def judge(bench: Bench, request: Asked, *, is_alone: bool) -> None:
    """Check what became of a request; `is_alone`: of its customer no other has ended since."""
    if request.refusal is not None:
        await _judge_refusal(bench, request, request.refusal)
        return
    outcome = request.outcome
    assert outcome is not None
    assert outcome.charge is not None
    if request.model in STEADY:
        assert outcome.error is None
        ran = bench.engine(request.model).record.entries[attempt_id(request.id, 0)]
        assert isinstance(ran, Finished)
        assert outcome.usage == ran.usage
        if outcome.sluice_reason == "credit_exhausted" and is_alone and not request.script.gate:
            await _judge_cut(bench, request, outcome)
    if request.model in FOREIGN and outcome.error is None and not request.has_left:
        await _judge_foreign(bench, request)


async def _judge_refusal(bench: Bench, request: Asked, refusal: Refusal) -> None:
    """No refusal is final for want of credit that there is, or that others only hold."""
    match refusal.status, refusal.code:
        case 402, code:
            room = await in_database(room_of, request.customer, request.key, bench.now)
            lasting = room.in_wallet if code == "credit_balance_exhausted" else room.in_budget
            assert lasting < request.least, f"a final 402 with {room} for {request.least}: {refusal.message}"
        case 429, "credit_held":
            assert refusal.headers["retry-after"]
        case 403, "wallet_frozen":
            assert request.customer.is_frozen
        case 403, "no_subscription":
            assert request.customer.contract is None
        case 400, "request_exceeds_burst":
            assert request.least > MOST
        case 503, "access_changed":
            assert request.is_patient
        case 503, code:
            is_failing = request.model in ("lost", "broken", "auto") or request.script.status != 200
            assert is_failing or (request.model in FOREIGN and request.script.die), code
        case _:
            raise AssertionError(f"{refusal.status} {refusal.code}: {refusal.message}")


async def _judge_cut(bench: Bench, request: Asked, outcome: Outcome) -> None:
    """An answer that was cut for want of credit had none for one token more."""
    used = outcome.usage.classes()
    one_more = ({**used, name: used.get(name, 0) + 1} for name in ANSWER)
    cost = max(request.card.charge(tokens, request.multiplier_bp) for tokens in one_more)
    room = await in_database(room_of, request.customer, request.key, bench.now)
    assert room.free_in_wallet + outcome.charge < cost, f"cut with {room} for {cost}"


async def _judge_foreign(bench: Bench, request: Asked) -> None:
    """What a foreign server's whole answer is charged for is what can be believed of its usage."""
    truth = bench.scripts.truths[request.number]
    record = await in_database(UsageRecord.objects.get, request=request.id, revision=0)
    used = {name: getattr(record, f"{name}_tokens") for name in CLASSES if not name.startswith("cache_write")}
    assert used["output"] + used["reasoning"] <= truth.most
    if request.model == "exact":
        assert (used, record.exact) == believed(truth, request.script.lie), f"{request.script.lie}: {truth}"
