"""The steps that find a task: which decides, and what each says."""

from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from routing.catalogue import Catalogue, Ceiling, DeploymentEntry, ModelEntry, ReplicaEntry, RuleEntry
from routing.decision import route
from routing.errors import RoutingError
from routing.hook import Instruction, OwnTerms
from routing.places import to_compare
from routing.tasks import find_task
from routing.types import SOURCES, STEPS, Comparison, Kept, Price, RouteQuery, Similarity

PLAN = {"plan": "business", "plan_default_task": "chat", "allowed_models": frozenset()}
LABELS = RuleEntry(
    "labels", "", "classify", None, None, (("small", 1),), examples=("which label?",), least_similarity=0.5
)
CODE = RuleEntry("programs", "", "code", None, None, (("small", 1),), examples=("write code",), least_similarity=0.5)
REST = RuleEntry("rest", "", "", None, None, (("small", 1),))
SCHEMAS = RuleEntry("schemas", "", "extract", None, None, (("small", 1),), structure="schema")
TOOLS = RuleEntry("tools", "", "", None, None, (("small", 1),), structure="tools")
ALL = (LABELS, CODE, REST)
NAMES = Instruction("classify", "its instruction asks for one of 3 labels that it names")


def ask(model="auto", kind="chat", **more):
    return RouteQuery(model=model, kind=kind, **{**PLAN, **more})


def near(*pairs):
    return Comparison((tuple(Similarity(rule, similarity, "x") for rule, similarity in pairs),))


def steps(found):
    return {signal.step: signal.outcome for signal in found.signals}


@pytest.mark.parametrize(
    ("query", "rules", "task", "source"),
    [
        (ask(task="translate", has_schema=True), (SCHEMAS, *ALL), "translate", "field"),
        (ask(kind="embedding"), ALL, "embedding", "endpoint"),
        (ask("auto:code", has_schema=True), (SCHEMAS, *ALL), "code", "alias"),
        (ask(has_schema=True, compared=near(("labels", 0.9))), (SCHEMAS, *ALL), "extract", "structure"),
        (ask(instruction=NAMES, compared=near(("programs", 0.9))), ALL, "classify", "instruction"),
        (ask(instruction=NAMES, has_schema=True), (SCHEMAS, *ALL), "extract", "structure"),
        (ask(instruction=NAMES, compared=near(("programs", 0.8))), (CODE, REST), "code", "examples"),
        (ask(compared=near(("programs", 0.8), ("labels", 0.6))), ALL, "code", "examples"),
        (ask(compared=near(("programs", 0.49), ("labels", 0.3))), ALL, "chat", "plan"),
        (ask(compared=Comparison(abstained="late")), ALL, "chat", "plan"),
        (ask(), ALL, "chat", "plan"),
    ],
)
def test_the_cheapest_and_most_certain_step_that_can_tell_decides(query, rules, task, source):
    found = find_task(query, rules)
    assert (found.task, found.source) == (task, source)
    told = steps(found)
    assert list(told) == list(SOURCES)
    assert told[source] == "decided"
    after = SOURCES[SOURCES.index(source) + 1 :]
    assert {told[step] for step in after} <= {"skipped"}


def test_of_several_texts_the_one_that_comes_nearest_to_anything_decides():
    weak, strong = near(("labels", 0.6)).groups, near(("programs", 0.9), ("labels", 0.1)).groups
    for groups in (weak + strong, strong + weak):
        found = find_task(ask(compared=Comparison(groups)), ALL)
        assert found.task == "code"
        [signal] = [one for one in found.signals if one.step == "examples"]
        assert [(one.rule, one.similarity) for one in signal.similarities] == [("programs", 0.9), ("labels", 0.6)]


def test_the_comparison_is_told_with_its_numbers_and_without_the_operators_texts():
    found = find_task(ask(compared=near(("programs", 0.812), ("labels", 0.6))), ALL)
    [signal] = [signal for signal in found.signals if signal.step == "examples"]
    assert signal.explain() == {
        "step": "examples",
        "outcome": "decided",
        "value": "81 % similar to an example of rule “programs”",
        "similarities": [{"rule": "programs", "similarity": 0.812}, {"rule": "labels", "similarity": 0.6}],
    }


@pytest.mark.parametrize("reason", ["no embedding model is ready", "the embedding model took longer than 0.5 s"])
def test_an_abstention_says_why(reason):
    found = find_task(ask(compared=Comparison(abstained=reason)), ALL)
    assert next(signal for signal in found.signals if signal.step == "examples").value == reason


@pytest.mark.parametrize(
    ("query", "rules", "compared"),
    [
        (ask(), ALL, {"labels", "programs"}),
        (ask(), (REST,), set()),  # no rule has examples
        (ask(), (REST, LABELS), set()),  # a rule for any task comes first
        (ask(has_tools=True), (TOOLS, *ALL), set()),
        (ask(), (TOOLS, *ALL), {"labels", "programs"}),
        (ask(has_schema=True), (SCHEMAS, *ALL), set()),
        (
            ask(plan="free"),
            (RuleEntry("x", "business", "code", None, None, (), examples=("a",)), LABELS, REST),
            {"labels"},
        ),
        (ask(kind="embedding"), ALL, set()),
    ],
)
def test_only_rules_that_can_make_a_difference_are_compared(query, rules, compared):
    assert {rule.name for rule in to_compare(query, rules)} == compared


# -- everything considered is told, and nothing that the tenant may not use is chosen ---------------------------------

NAMES = ("m1", "m2", "m3", "m4")
TASKS = ("", "chat", "classify")
PLANS = ("", "business", "free")
TENANTS, PROJECTS = (uuid4(), uuid4()), (uuid4(), uuid4())
ceilings = st.none() | st.builds(
    Ceiling,
    price=st.none() | st.integers(0, 4),
    request_price=st.none() | st.integers(0, 4),
    ttft_ms=st.none() | st.integers(0, 4),
    ttft_percentile=st.sampled_from([50, 90]),
    is_strict=st.booleans(),
)
targets = st.lists(st.tuples(st.sampled_from(NAMES), st.integers(1, 3)), max_size=3, unique_by=lambda t: t[0]).map(
    tuple
)
rules = st.lists(
    st.builds(
        RuleEntry,
        name=st.uuids().map(str),
        plan=st.sampled_from(PLANS),
        task=st.sampled_from(TASKS),
        min_prompt_tokens=st.none(),
        max_prompt_tokens=st.none() | st.just(10),
        targets=targets,
        fallbacks=targets,
        structure=st.sampled_from(["", "tools", "text"]),
        examples=st.sampled_from([(), ("x",)]),
        least_similarity=st.just(0.5),
        ceiling=ceilings,
    ),
    min_size=1,
    max_size=5,
)
queries = st.builds(
    ask,
    model=st.sampled_from(["auto", "auto:classify"]),
    plan=st.sampled_from(PLANS[1:]),
    allowed_models=st.frozensets(st.sampled_from(NAMES), min_size=1),
    prompt_characters=st.sampled_from([0, 100]),
    has_tools=st.booleans(),
    own=st.builds(
        OwnTerms,
        st.integers(0, 3),
        tenant=st.sampled_from([None, *TENANTS]),
        project=st.sampled_from([None, *PROJECTS]),
    ),
    kept=st.none() | st.builds(Kept, model=st.sampled_from((*NAMES, "gone"))),
    compared=st.none() | st.just(Comparison(abstained="late")),
)


class Drawn:
    """Replicas of which some are not ready and some slow."""

    def __init__(self, unready, ttfts):
        self.unready, self.ttfts = unready, ttfts

    def usable(self, replica):
        return "not ready" if replica in self.unready else ""

    def refuses(self, _, adapter):
        return ""

    def load(self, _):
        return 0

    def context(self, _):
        return None

    def matched(self, _, prefix):
        return 0

    def ttft_ms(self, deployment, _, adapter):
        return self.ttfts.get(deployment)


@given(query=queries, rules=rules, data=st.data())
def test_an_explanation_is_complete_and_auto_stays_in_the_tenants_plan(query, rules, data):
    owners = data.draw(st.dictionaries(st.sampled_from(NAMES), st.sampled_from(TENANTS)))
    numbers = {name: data.draw(st.integers(1, 3)) for name in NAMES}
    projects = {name: data.draw(st.sampled_from([None, *PROJECTS])) for name in owners}
    models = {
        name: ModelEntry(
            name, frozenset({"chat"}), 1000, name, "", 0, owners.get(name), projects.get(name), number=numbers[name]
        )
        for name in NAMES
    }
    foreign = {name for name, owner in owners.items() if owner != query.own.tenant}
    if query.own.project is not None:
        foreign |= {name for name, project in projects.items() if project not in (None, query.own.project)}
    hidden = foreign | {name for name in owners if numbers[name] > query.own.most}
    had = set() if query.kept is None else {query.kept.model}  # its own conversation had it before it was another's
    places = {}
    for name in NAMES:
        identifier = uuid4()
        places[name] = (DeploymentEntry(identifier, name, name, "fake", "", {}, replicas=(ReplicaEntry(identifier),)),)
    ids = {name: entries[0].id for name, entries in places.items()}
    unready = {ids[name] for name in data.draw(st.sets(st.sampled_from(NAMES)))}
    ttfts = data.draw(st.dictionaries(st.sampled_from(NAMES), st.integers(0, 8)))
    prices = data.draw(st.dictionaries(st.sampled_from(NAMES), st.builds(Price, st.integers(0, 8), st.integers(0, 8))))
    book = Catalogue(models, places, tuple(rules))
    replicas = Drawn(unready, {ids[name]: time for name, time in ttfts.items()})
    refused = ""
    try:
        decision = route(query, book, replicas, price=prices.get)
    except RoutingError as error:
        refused = error.message
    if refused:
        assert not any(name in refused for name in hidden - had)
        return
    assert decision.model in query.allowed_models or owners.get(decision.model) == query.own.tenant is not None
    assert not (hidden - had) & {one.model for one in decision.candidates}
    assert ids[decision.model] not in unready
    giver = next(rule for rule in rules if rule.name == decision.rule)
    assert decision.model in {name for name, _ in (*giver.targets, *giver.fallbacks)}
    assert giver.plan in ("", query.plan)
    told = {
        candidate.model: candidate.rejected for candidate in decision.candidates if candidate.model != decision.model
    }
    assert all(told.values())  # all but the chosen one have a reason
    [*_, chosen] = decision.candidates
    assert (chosen.model, chosen.rejected) == (decision.model, "")
    tried = [rule for rule in rules if rule.task in ("", decision.task) and _holds(rule, query)]
    for rule in tried[: tried.index(giver) + 1] if query.kept is None else ():
        assert {name for name, _ in rule.targets} - hidden <= {*told, decision.model}
    assert [signal.step for signal in decision.signals[: len(SOURCES)]] == list(SOURCES)
    assert {signal.step for signal in decision.signals} <= set(STEPS)
    assert sum(signal.outcome == "decided" for signal in decision.signals if signal.step in SOURCES) == 1
    assert (query.kept is not None) == any(signal.step == "conversation" for signal in decision.signals)
    if giver.ceiling is not None and giver.ceiling.is_strict and (price := prices.get(decision.model)) is not None:
        assert giver.ceiling.price is None or price.per_million <= giver.ceiling.price
        assert giver.ceiling.request_price is None or price.request <= giver.ceiling.request_price


def _holds(rule, query):
    has = {"tools": query.has_tools, "text": not query.has_tools}
    fits = rule.max_prompt_tokens is None or query.prompt_characters <= 4 * rule.max_prompt_tokens
    return fits and has.get(rule.structure, True) and rule.plan in ("", query.plan)
