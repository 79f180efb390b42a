"""Ceilings of price and of time to first token, and conversations: what is kept, and what rises."""

from dataclasses import replace
from uuid import uuid4

import pytest

from routing.catalogue import Ceiling, RuleEntry
from routing.decision import route
from routing.errors import RoutingError
from routing.hook import OwnTerms
from routing.types import Kept, Price
from tests.routing.test_decision import AT_BIG, AT_BIG_2, AT_SMALL, SMALL, Replicas, ask, catalogue

PRICES = {"small": Price(10, 100), "big": Price(40, 400)}


def ruled(*targets, fallbacks=(), **ceiling):
    return RuleEntry("capped", "", "", None, None, targets, fallbacks, ceiling=Ceiling(**ceiling))


def decide(rule, query=None, ttfts=None, prices=PRICES, unready=lambda _: ""):
    replicas = Replicas(unready, ttfts=ttfts)
    return route(query or ask(), catalogue(rule), replicas, price=prices.get, draw=lambda: 0.99)


def signal(decision, step):
    return next(signal for signal in decision.signals if signal.step == step)


def reasons(decision):
    return {(one.model, one.deployment): one.rejected for one in decision.candidates}


def test_of_those_that_hold_it_the_cheapest_wins_whatever_the_weights():
    decision = decide(ruled(("big", 1000), ("small", 1), price=40))
    assert decision.model == "small"
    assert "it holds the ceiling and costs more" in reasons(decision).values()
    assert signal(decision, "ceiling").value == (
        "at most 0.00004 credits per million output tokens: small is the cheapest of 2 that hold it"
    )
    assert "cheapest" in decision.reason


@pytest.mark.parametrize("ceiling", [{"price": 39}, {"request_price": 399}])
def test_what_costs_more_is_passed_over_with_both_numbers(ceiling):
    decision = decide(ruled(("big", 1), ("small", 1), **ceiling))
    assert decision.model == "small"
    assert "it costs 0.0" in reasons(decision)["big", ""]
    assert "the ceiling is" in reasons(decision)["big", ""]


def test_a_deployment_that_was_too_slow_is_passed_over_and_one_that_nobody_measured_is_not():
    slow = {(AT_BIG.id, 90): 700}
    decision = decide(ruled(("big", 1), ttft_ms=500, ttft_percentile=90), ttfts=slow)
    assert decision.deployment == AT_BIG_2.id
    assert reasons(decision)["big", "big-1"] == "p90 of its time to first token is 700 ms, the ceiling is 500 ms"
    assert decide(ruled(("big", 1), ttft_ms=500, ttft_percentile=50), ttfts=slow).model == "big"


def test_a_fallback_that_holds_it_comes_before_a_target_that_does_not():
    decision = decide(ruled(("big", 1), fallbacks=(("small", 1),), price=20))
    assert decision.model == "small"
    assert "fallback" in decision.reason


def test_where_nothing_holds_a_strict_rule_refuses_and_says_what_each_costs():
    with pytest.raises(RoutingError) as caught:
        decide(ruled(("big", 1), ("small", 1), price=5))
    assert caught.value.code == "beyond_ceiling"
    assert "rule “capped”" in caught.value.message
    assert "big: it costs" in caught.value.message
    assert "small: it costs" in caught.value.message


def test_a_model_that_is_not_ready_is_not_beyond_its_ceiling():
    """While it loaded, the rule refused for a ceiling that it holds, and no later rule was tried."""
    unready = Replicas(lambda replica: "loading" if replica in {AT_BIG.id, AT_BIG_2.id} else "")
    capped, rest = ruled(("big", 1), price=100), RuleEntry("rest", "", "", None, None, (("small", 1),))
    decision = route(ask(), catalogue(capped, rest), unready, price=PRICES.get)
    assert (decision.model, decision.rule) == ("small", "rest")
    with pytest.raises(RoutingError) as caught:
        route(ask(), catalogue(capped), unready, price=PRICES.get)
    assert caught.value.code == "no_ready_deployment"
    slow = Replicas(
        lambda replica: "loading" if replica == AT_BIG.id else "", ttfts={(AT_BIG_2.id, 50): 700, (AT_BIG.id, 50): 1}
    )
    with pytest.raises(RoutingError) as caught:  # what is ready of it is too slow
        route(ask(), catalogue(ruled(("big", 1), ttft_ms=500), rest), slow, price=PRICES.get)
    assert caught.value.code == "beyond_ceiling"


def test_where_nothing_holds_another_rule_takes_the_nearest():
    decision = decide(ruled(("big", 1), ("small", 1), price=5, is_strict=False))
    assert decision.model == "small"
    assert "nothing holds it, small is the nearest" in signal(decision, "ceiling").value
    slow = {(AT_BIG.id, 50): 600, (AT_BIG_2.id, 50): 700, (AT_SMALL.id, 50): 5000}
    decision = decide(ruled(("big", 1), ("small", 1), ttft_ms=500, is_strict=False), ttfts=slow)
    assert decision.model == "big"


@pytest.mark.parametrize("ceiling", [{"price": 40}, {"ttft_ms": 500}])
def test_what_has_no_price_in_force_is_not_the_cheapest(ceiling):
    decision = decide(ruled(("big", 1), ("small", 1), **ceiling), prices={"big": PRICES["big"]})
    assert decision.model == "big"
    assert reasons(decision)["small", ""] == "no price of it is in force"


def test_a_ceiling_of_nothing_takes_what_is_free():
    assert decide(ruled(("big", 1), ("small", 1), price=0), prices={**PRICES, "small": Price(0, 0)}).model == "small"


# -- conversations ----------------------------------------------------------------------------------------------------


def going_on(kept, *targets, **more):
    rules = (RuleEntry("now", "", "", None, None, targets), RuleEntry("other", "", "code", None, None, (("big", 1),)))
    query = ask(kept=Kept(kept), **more)
    return route(query, catalogue(*rules), Replicas(more.pop("unready", lambda _: "")), price=PRICES.get)


def test_a_conversation_keeps_its_model_where_this_turn_would_get_a_cheaper_one():
    decision = going_on("big", ("small", 1))
    assert (decision.model, decision.rule) == ("big", "other")
    assert "keeps big; this turn alone would have got small" in signal(decision, "conversation").value
    assert {one.rejected for one in decision.candidates if one.model == "small"} == {"the conversation keeps big"}


def test_a_conversation_rises_to_a_dearer_one():
    decision = going_on("small", ("big", 1))
    assert decision.model == "big"
    assert "began with small and rises to big" in signal(decision, "conversation").value


def test_from_a_model_that_is_gone_nothing_rises():
    decision = going_on("gone", ("big", 1))
    assert decision.model == "big"
    assert "no rule gives it" in signal(decision, "conversation").value


def test_from_another_tenants_model_nothing_rises_either():
    """The dry run takes any name as the conversation's: its step told which names other tenants' own models have."""
    secret = replace(SMALL, name="acme/secret", tenant=uuid4())
    book = catalogue(RuleEntry("now", "", "", None, None, (("small", 1),)))
    told = []
    for models in (book.models, {**book.models, secret.name: secret}):
        query = ask(kept=Kept(secret.name), own=OwnTerms(tenant=uuid4()))
        prices = {**PRICES, secret.name: Price(1, 10)}
        told.append(route(query, replace(book, models=models), Replicas(), price=prices.get))
    assert told[0].explain() == told[1].explain()


def test_what_the_request_itself_says_comes_before_its_conversation():
    rules = (
        RuleEntry("code", "", "code", None, None, (("small", 1),)),
        RuleEntry("r", "", "", None, None, (("big", 1),)),
    )
    decision = route(ask(task="code", kept=Kept("big")), catalogue(*rules), Replicas(), price=PRICES.get)
    assert decision.model == "small"


@pytest.mark.parametrize(
    "query",
    [ask(plan="business", allowed_models=frozenset({"small"})), ask(plan="free")],
    ids=["not in the plan any more", "only for another plan's rules"],
)
def test_a_conversation_keeps_nothing_that_its_tenant_may_not_use_now(query):
    rules = (
        RuleEntry("theirs", "business", "code", None, None, (("big", 1),)),
        RuleEntry("rest", "", "", None, None, (("small", 1),)),
    )
    query = type(query)(**{f: getattr(query, f) for f in query.__struct_fields__} | {"kept": Kept("big")})
    decision = route(query, catalogue(*rules), Replicas(), price=PRICES.get)
    assert decision.model == "small"
    assert "no rule gives it" in signal(decision, "conversation").value


def test_a_model_that_can_not_serve_now_is_left():
    rules = (RuleEntry("r", "", "", None, None, (("small", 1),)), RuleEntry("b", "", "", None, None, (("big", 1),)))
    unready = Replicas(lambda replica: "loading" if replica in {AT_BIG.id, AT_BIG_2.id} else "")
    decision = route(ask(kept=Kept("big")), catalogue(*rules), unready, price=PRICES.get)
    assert decision.model == "small"
    assert "can't serve this request now" in signal(decision, "conversation").value
