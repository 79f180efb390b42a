"""Turns of a conversation: which keep its model, which leave it, and what it goes on with."""

from dataclasses import replace

import pytest

from routing.catalogue import Ceiling, RuleEntry
from routing.decision import route
from routing.hook import Instruction
from routing.types import Comparison, Kept, Price, Similarity
from tests.routing.test_decision import LABELS, Replicas, ask, catalogue, deployment, model

DESK = replace(model("desk"), base="small")
PRICES = {"labels": Price(5, 50), "small": Price(10, 100), "desk": Price(20, 200), "big": Price(40, 400)}


def ruled(name, target, task="", **more):
    return RuleEntry(name, "", task, None, None, ((target, 1),), examples=("x",) if task else (), **more)


RULES = (
    ruled("schemas", "desk", "extract", structure="schema"),
    ruled("labels", "labels", "classify"),
    ruled("fields", "desk", "extract"),
    ruled("programs", "big", "code"),
    ruled("talk", "small", "chat"),
    ruled("rest", "small"),
)
FINDING = {task: next(rule.name for rule in RULES if rule.task == task) for task in ("chat", "classify", "code")}
FINDING["extract"] = "fields"


def decide(kept, *, rules=RULES, replicas=None, draw=lambda: 0.0, unfit=lambda *_: "", **query):
    book = catalogue(*rules)
    models = {**book.models, "labels": LABELS, "desk": DESK}
    places = {**book.deployments, **{one: (deployment(f"{one}-1", one),) for one in ("labels", "desk")}}
    asked = ask(**query, kept=None if kept is None else Kept(kept))
    book = replace(book, models=models, deployments=places)
    return route(asked, book, replicas or Replicas(), price=PRICES.get, unfit=unfit, draw=draw)


def found_by(how, task):
    """A request whose task is found so."""
    return {
        "field": {"task": task},
        "alias": {"name": f"auto:{task}"},
        "structure": {"has_schema": True},
        "instruction": {"instruction": Instruction(task, "it asks for it")},
        "examples": {"compared": Comparison(((Similarity(FINDING[task], 0.9, "x"),),))},
        "plan": {"plan_default_task": task},
    }[how]


def signals(decision, step):
    return [(signal.outcome, signal.value) for signal in decision.signals if signal.step == step]


SERVES = {"chat": "small", "classify": "labels", "extract": "desk", "code": "big"}  # what a turn alone gets
GUESS = {"chat": "small", "classify": "small", "extract": "small", "code": "big"}  # and where its task is only guessed
KEPT = {"big": dict.fromkeys(GUESS, "big")} | dict.fromkeys(("small", "desk", "labels"), GUESS)
"""What a conversation that has this model gets where the task of its turn is only guessed."""
WRITTEN = [(how, task) for how in ("field", "alias", "instruction") for task in SERVES] + [("structure", "extract")]
GUESSED = [(how, task) for how in ("examples", "plan") for task in SERVES]


@pytest.mark.parametrize(("how", "task"), [*WRITTEN, *GUESSED])
def test_a_turn_alone_goes_where_its_task_leads(how, task):
    decision = decide(None, **found_by(how, task))
    leads = GUESS if how in ("examples", "plan") else SERVES
    assert (decision.model, decision.task, decision.task_source) == (leads[task], task, how)
    assert decision.goes_on_with == decision.model
    assert signals(decision, "conversation") == []


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(("how", "task"), WRITTEN)
def test_a_turn_that_says_its_task_goes_where_that_leads(kept, how, task):
    decision = decide(kept, **found_by(how, task))
    assert (decision.model, decision.task_source) == (SERVES[task], how)
    is_aside = decision.model in {"labels", "desk"} and kept in {"small", "big"}
    assert decision.goes_on_with == (kept if is_aside else decision.model)
    [(outcome, value)] = signals(decision, "conversation")
    if decision.model == kept:
        assert (outcome, value) == ("decided", f"it goes on with {kept}")
    else:
        assert outcome == "passed"
        assert f"it has {kept}; this turn is for {task}" in value


@pytest.mark.parametrize("kept", KEPT)
@pytest.mark.parametrize(("how", "task"), GUESSED)
def test_a_turn_whose_task_is_guessed_keeps_or_rises_and_no_specialist_keeps_talk(kept, how, task):
    decision = decide(kept, **found_by(how, task))
    assert (decision.model, decision.task_source) == (KEPT[kept][task], how)
    assert decision.goes_on_with == decision.model
    [(outcome, value)] = signals(decision, "conversation")
    if kept in {"desk", "labels"} and decision.model != kept:
        is_dearer = decision.model == "big" or (kept, decision.model) == ("labels", "small")
        assert (outcome, "rises" in value) == (("decided", True) if is_dearer else ("passed", False))
    elif decision.model == kept != GUESS[task]:
        assert value == f"it keeps {kept}; this turn alone would have got {GUESS[task]}"


def test_why_a_specialist_does_not_keep_talk_is_told():
    decision = decide("desk", **found_by("plan", "chat"))
    assert signals(decision, "conversation") == [
        ("passed", "it began with desk, but a specialist takes tasks that are written")
    ]


@pytest.mark.parametrize(("how", "task"), [("examples", "extract"), ("examples", "classify"), ("plan", "extract")])
def test_why_a_guess_gives_no_specialist_is_told(how, task):
    decision = decide(None, **found_by(how, task))
    told = [one.rejected for one in decision.candidates if one.model == SERVES[task]]
    assert told == [f"its task {task} is only guessed, and a specialist takes tasks that are written"]


@pytest.mark.parametrize(("how", "task"), [one for one in WRITTEN if one[1] in ("classify", "extract")])
def test_a_specialist_for_which_a_request_is_unfit_abstains(how, task):
    asked = set()

    def unfit(model, of):
        asked.add((model.name, of))
        return "it is Greek"

    decision = decide(None, unfit=unfit, **found_by(how, task))
    assert (decision.model, decision.task, decision.task_source) == (GUESS[task], task, how)
    told = [one.rejected for one in decision.candidates if one.model == SERVES[task]]
    assert told == [f"{'answers with labels' if task == 'classify' else 'is a specialist'}: it is Greek"]
    assert asked == {(SERVES[task], "" if how == "structure" else task)}


@pytest.mark.parametrize(
    ("rules", "is_specialist"),
    [(RULES, True), ((*RULES, ruled("more", "desk")), False), ((*RULES, ruled("sums", "desk", "summarize")), False)],
)
def test_an_adapter_is_a_specialist_while_rules_give_it_for_labels_and_fields_alone(rules, is_specialist):
    assert decide(None, rules=rules, **found_by("field", "extract")).is_specialist == is_specialist
    talk = decide("desk", rules=rules, **found_by("plan", "chat"))
    assert (talk.model, talk.is_specialist) == ("small" if is_specialist else "desk", False)


def test_a_general_model_is_no_specialist_though_rules_give_it_for_fields_alone():
    rules = (*(rule for rule in RULES if rule.task != "code"), ruled("more fields", "big", "extract"))
    assert decide("big", rules=rules, **found_by("plan", "chat")).model == "big"
    assert not decide(None, rules=rules, name="big").is_specialist


@pytest.mark.parametrize("query", [found_by("plan", "chat"), found_by("field", "chat")], ids=["default", "field"])
@pytest.mark.parametrize(("kept", "point"), [("small", 0.0), ("big", 0.99)])
def test_what_the_draw_says_takes_no_conversation_from_a_model_that_the_rule_gives_too(kept, point, query):
    rule = RuleEntry("both", "", "", None, None, (("big", 1), ("small", 1)))
    decision = decide(kept, rules=(rule,), draw=lambda: point, **query)
    assert (decision.model, decision.rule) == (kept, "both")


# -- ceilings ---------------------------------------------------------------------------------------------------------


def capped(**ceiling):
    return RuleEntry("capped", "", "", None, None, (("big", 1), ("small", 1)), ceiling=Ceiling(**ceiling))


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_kept_turn_tells_that_its_model_holds_the_ceiling(is_strict):
    decision = decide("big", rules=(capped(price=40, is_strict=is_strict),))
    assert decision.model == "big"
    value = "at most 0.00004 credits per million output tokens: big holds it, and is kept"
    assert signals(decision, "ceiling") == [("decided", value)]


@pytest.mark.parametrize("is_strict", [True, False])
def test_a_conversation_leaves_what_holds_the_ceiling_no_more(is_strict):
    decision = decide("big", rules=(capped(price=39, is_strict=is_strict),))
    assert decision.model == "small"
    [(outcome, value)] = signals(decision, "ceiling")
    assert (outcome, "small is the cheapest of 1" in value) == ("decided", True)
    assert ("big", "it costs 0.00004 credits per million output tokens, the ceiling is 0.000039") in [
        (one.model, one.rejected) for one in decision.candidates
    ]


def test_a_kept_turn_of_another_rule_tells_that_rules_ceiling():
    rules = (replace(capped(price=20), task="chat"), replace(capped(price=50), name="dear", task="code"))
    decision = decide("big", rules=rules)
    assert (decision.model, decision.rule) == ("big", "dear")
    assert [value.partition(":")[0] for _, value in signals(decision, "ceiling")] == [
        "at most 0.00005 credits per million output tokens"
    ]
