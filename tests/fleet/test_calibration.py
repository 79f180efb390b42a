"""Measuring a deployment: through an engine with known costs, which tells its work as a worker does, or nothing."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO
from itertools import takewhile

import pytest
from django.core.management import CommandError, call_command

from base.errors import ServiceError
from base.units import MICRO
from billing import costs
from billing.models import CostSample, RateCardVersion
from billing.selectors.prices import prices_at
from billing.services import cards
from fleet import calibration
from fleet.calibration import measure, plan_of
from inference.engine import EngineSpec
from inference.errors import InvalidRequestError
from inference.types import EngineInfo, Finished, FinishReason, Health, Kind, Prepared, Started, Usage, Work
from routing.services.catalogue import add_model

TRUE = (80e-6, 9e-9, 4e-3, 30e-9, 2e-6, 3e-3)
BLOCK = 16


class Known:
    """An engine of which the cost of each term is known; a word is a token, prefixes are cached in blocks."""

    def __init__(self, *, tells=True, ready=True, others=0, takes_eos=True, factor=1.0):
        self.info = EngineInfo("d", "m", frozenset({Kind.CHAT}), max_context=2048, max_input=2048)
        self.tells, self.ready, self.others, self.takes_eos, self.factor = tells, ready, others, takes_eos, factor
        self.work = Work()
        self.seen: list[list[str]] = []
        self.closed = False
        self.texts: list[str] = []

    async def health(self):
        return Health(ready=self.ready, reason="" if self.ready else "loading", work=self.work if self.tells else None)

    async def prepare(self, request):
        if request.sampling.ignore_eos and not self.takes_eos:
            raise InvalidRequestError("ignore_eos isn't supported", param="ignore_eos")
        return Prepared(request, len(self.words(request)) + 8, request.sampling.max_tokens)

    async def cancel(self, identifier):
        """Nothing runs on."""

    async def close(self):
        self.closed = True

    def words(self, request):
        return request.messages[0].texts[0].split()

    async def generate(self, prepared, allowance, is_final):
        words = self.words(prepared.request)
        shared = max(
            (len(list(takewhile(lambda p: p[0] == p[1], zip(words, one, strict=False)))) for one in self.seen),
            default=0,
        )
        cached = shared // BLOCK * BLOCK
        self.seen.append(words)
        usage = Usage(input=prepared.prompt_tokens - cached, cache_read=cached, output=allowance)
        yield Started(cached)
        seconds = sum(each * n for each, n in zip(TRUE, costs.terms_of(usage.classes()), strict=True)) * self.factor
        extra = 0
        if self.others:
            self.others -= 1
            extra = 5
        self.work = replace(
            self.work,
            steps=self.work.steps + 1,
            seconds=self.work.seconds + seconds,
            prompt_tokens=self.work.prompt_tokens + usage.input + extra,
            cached_tokens=self.work.cached_tokens + cached,
            output_tokens=self.work.output_tokens + allowance,
        )
        yield Finished(FinishReason.LENGTH, usage)


@pytest.fixture
def known(monkeypatch):
    """Have the deployment's engine be a `Known` one."""
    monkeypatch.setattr(calibration, "LOOK_SECONDS", 0)
    monkeypatch.setattr(calibration, "READY_SECONDS", 0)

    def make(**options):
        engine = Known(**options)
        monkeypatch.setattr(calibration, "open_deployment", lambda _: engine)
        return engine

    return make


SPEC = EngineSpec("d", "worker")


MIX = {"concurrency": 2, "longest": 400, "answer": 24}


def test_the_costs_of_an_engine_that_tells_its_work_are_found_and_a_held_out_mix_recovered(known):
    engine = known()
    told = []
    measured = measure(SPEC, **MIX, tell=told.append)
    fit = costs.fit(measured.fitted)
    assert fit.seconds == pytest.approx(TRUE, rel=1e-3)
    assert fit.recovery(measured.held_out) == pytest.approx(1, abs=1e-3)
    assert measured.tells_cached
    assert measured.reach == 800
    assert len(measured.usages) == 3 * 4 * 2
    assert measured.alone.seconds == pytest.approx(fit.of(measured.alone.terms), rel=1e-3)
    assert (measured.method, measured.disturbed, engine.closed) == ("the worker's steps", 0, True)
    assert len(told) == len(measured.fitted) + len(measured.held_out) + 1


def test_a_window_in_which_the_engine_worked_for_others_is_measured_again(known):
    engine, told = known(), []

    def tell(line):
        told.append(line)
        engine.others = 1 if len(told) == 2 else 0

    measured = measure(SPEC, **MIX, tell=tell)
    assert measured.disturbed == 1
    assert "worked for others, measured again" in told[2]
    assert costs.fit(measured.fitted).recovery(measured.held_out) == pytest.approx(1, abs=1e-3)
    engine = known(others=10**6)
    with pytest.raises(ServiceError, match="works for others all the time"):
        measure(SPEC, **MIX, tell=lambda _: None)
    assert engine.closed


def test_a_foreign_engine_is_measured_by_the_clock_and_may_refuse_a_wish(known):
    known(tells=False, takes_eos=False)
    measured = measure(EngineSpec("d", "openai"), **MIX, tell=lambda _: None)
    assert measured.method == "requests in flight, on our clock"
    assert measured.busy == pytest.approx(measured.wall)
    assert min(one.seconds for one in measured.fitted) > 0


def test_an_engine_that_takes_no_requests_is_told(known):
    known(ready=False)
    with pytest.raises(ServiceError, match="takes no requests: loading"):
        measure(SPEC, **MIX, tell=lambda _: None)


@pytest.mark.parametrize("context", [64, 512, 131_072])
def test_a_plan_fits_the_context_and_varies_what_costs(context):
    made = plan_of(context, concurrency=3, longest=1_000_000, answer=16)
    shapes = [shape for window in (*made.fitted, *made.held_out, made.alone) for shape in window]
    assert max(shape.prompt + shape.output for shape in shapes) <= context
    assert all(0 <= shape.cached < shape.prompt and shape.output >= 1 for shape in shapes)
    assert len(made.fitted) >= len(costs.TERMS)
    assert all(len(window) >= 3 for window in made.fitted)
    assert plan_of(context, concurrency=3, longest=1_000_000, answer=16) == made, "the same again"
    thrice = plan_of(context, concurrency=3, longest=1_000_000, answer=16, repeats=3)
    assert (len(thrice.fitted), thrice.held_out) == (3 * len(made.fitted), made.held_out)
    assert {0} == {
        shape.output
        for window in plan_of(512, concurrency=1, longest=99, answer=9, generates=False).fitted
        for shape in window
    }


@pytest.fixture
def deployment(db):
    card = {0: {"input": MICRO, "output": 4 * MICRO}}
    cards.publish("known", card)
    return add_model(
        name="known", kinds=["chat"], context_length=2048, rate_card="known", source="", backend="fake", options={}
    )


def calibrate(*arguments):
    out = StringIO()
    call_command(
        "calibrate", "known", "--device-hour", "200", "--longest", "400", "--answer", "24", *arguments, stdout=out
    )
    return out.getvalue()


@pytest.mark.django_db
def test_a_calibration_is_kept_and_published_when_the_operator_says_so(known, deployment):
    known()
    assert "nothing is kept" in calibrate("--dry-run")
    assert not CostSample.objects.exists()
    told = calibrate("--watts", "300", "--kwh", "25", "--margin", "1.5")
    sample = CostSample.objects.get()
    assert (sample.deployment, sample.model, sample.card) == (deployment.id, "known", "known")
    assert sample.price == {"hour": 207_500_000, "utilisation_bp": 6_000, "margin_bp": 15_000}
    assert sample.recovery == pytest.approx(1, abs=0.01)
    assert (sample.point["busy"], sample.point["concurrency"]) == (pytest.approx(sample.point["busy"]), 4)
    assert "recovery of the held-out mix 100.0%" in told
    assert "/operate/prices/known/new/?measured=1" in told
    assert RateCardVersion.objects.count() == 1, "the operator publishes"
    with pytest.raises(CommandError, match="give --yes"):
        calibrate("--publish")
    assert RateCardVersion.objects.count() == 1
    assert "published: known" in calibrate("--publish", "--yes")
    version = RateCardVersion.objects.latest("effective_from")
    assert (version.note, RateCardVersion.objects.count()) == ("from measured cost", 2)
    prices = prices_at(version.effective_from)["known"]
    proposal = CostSample.objects.latest("created_at").proposal
    assert {str(tier.min_context) for tier in prices.tiers} == set(proposal["tiers"])
    known(factor=1.05)
    assert "within 10 % of these" in calibrate("--publish", "--yes")
    known(factor=1.3)
    assert "published: known" in calibrate("--publish", "--yes")


@pytest.mark.django_db
def test_what_is_wrong_with_a_calibration_is_told(known, deployment):
    known()
    with pytest.raises(CommandError, match="no active deployment 'other'; there are: known"):
        call_command("calibrate", "other", "--device-hour", "1")
    for wrong, why in (
        (("--utilisation", "0"), "--utilisation: more than 0"),
        (("--margin", "0.5"), "--margin: prices are at least the costs"),
        (("--concurrency", "0"), "at least 1"),
        (("--node", "elsewhere"), "no replica on elsewhere"),
    ):
        with pytest.raises(CommandError, match=why):
            calibrate(*wrong)
    known(ready=False)
    with pytest.raises(CommandError, match="known: its engine takes no requests"):
        calibrate()


@pytest.mark.django_db
def test_a_fit_that_misses_the_held_out_mix_is_not_kept(known, deployment, monkeypatch):
    known()
    monkeypatch.setattr(costs.Fit, "recovery", lambda *_: 0.6)
    with pytest.raises(CommandError, match="60% of the held-out mix"):
        calibrate()
    assert not CostSample.objects.exists()
    calibrate("--keep")
    assert CostSample.objects.get().recovery == 0.6
