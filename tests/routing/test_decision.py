"""Routing decides in memory, so these tests need no database."""

from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from routing.catalogue import Catalogue, Ceiling, DeploymentEntry, ModelEntry, ReplicaEntry, RuleEntry
from routing.decision import route
from routing.errors import RoutingError
from routing.types import Price, RouteQuery


def model(name, *kinds, context=1000):
    return ModelEntry(name, frozenset(kinds or ("chat",)), context, name, "", 0)


def deployment(name, of):
    identifier = uuid4()
    return DeploymentEntry(identifier, name, of, "fake", "", {}, replicas=(ReplicaEntry(identifier),))


def rule(name, *targets, plan="", task="", low=None, high=None):
    return RuleEntry(name, plan, task, low, high, targets)


SMALL, BIG, VECTORS = model("small"), model("big", context=100_000), model("vectors", "embedding")
AT_SMALL, AT_BIG, AT_BIG_2, AT_VECTORS = (
    deployment("small-1", "small"),
    deployment("big-1", "big"),
    deployment("big-2", "big"),
    deployment("vectors-1", "vectors"),
)


def catalogue(*rules):
    return Catalogue(
        {m.name: m for m in (SMALL, BIG, VECTORS)},
        {"small": (AT_SMALL,), "big": (AT_BIG, AT_BIG_2), "vectors": (AT_VECTORS,)},
        rules or (rule("embed", ("vectors", 1), task="embedding"), rule("rest", ("small", 1))),
    )


def ask(name="auto", kind="chat", **more):
    fields = {"plan": "free", "plan_default_task": "chat", "allowed_models": frozenset()}
    return RouteQuery(model=name, kind=kind, **{**fields, **more})


class Replicas:
    """What is known of the replicas: all ready and idle, unless said otherwise."""

    def __init__(
        self, unready=lambda _: "", load=lambda _: 0, contexts=None, matched=lambda _: 0, *, ttfts=None, refused=None
    ):
        self._ttfts, self._refused = ttfts or {}, refused or {}
        self.usable, self.load, self._contexts, self._matched = unready, load, contexts or {}, matched

    def refuses(self, replica: UUID, adapter: str) -> str:
        return self._refused.get((replica, adapter), "")

    def context(self, replica: UUID) -> int | None:
        return self._contexts.get(replica)

    def ttft_ms(self, deployment: UUID, percentile: int, adapter: str = "") -> int | None:
        return self._ttfts.get((deployment, percentile, adapter) if adapter else (deployment, percentile))

    def matched(self, replica, prefix):
        assert prefix, "asked only where there is a prompt to match"
        return self._matched(replica)


ready = Replicas()


def refused(query, book=None, unready=lambda _: ""):
    with pytest.raises(RoutingError) as caught:
        route(query, book or catalogue(), Replicas(unready))
    return caught.value


def test_a_model_asked_for_by_name_is_chosen():
    decision = route(ask("big"), catalogue(), ready, draw=lambda: 0.0)
    assert (decision.model, decision.deployment, decision.rule) == ("big", AT_BIG.id, "")


@pytest.mark.parametrize(
    ("query", "code"),
    [
        (ask("nobody"), "model_not_found"),
        (ask("vectors"), "model_wrong_kind"),
        (ask("big", allowed_models=frozenset({"small"})), "model_not_allowed"),
        (ask(prompt_characters=4_001), "no_route"),
    ],
)
def test_error_says_what_is_wrong(query, code):
    assert refused(query).code == code


@pytest.mark.parametrize(
    ("query", "task", "source"),
    [
        (ask(task="classify"), "classify", "field"),
        (ask(kind="embedding"), "embedding", "endpoint"),
        (ask("auto:classify"), "classify", "alias"),
        (ask("auto:classify", task="chat"), "chat", "field"),
        (ask(), "chat", "plan"),
    ],
)
def test_the_most_explicit_statement_decides_the_task(query, task, source):
    decision = route(query, catalogue(), ready)
    assert (decision.task, decision.task_source) == (task, source)


def test_rules_are_tried_in_order_and_conditions_must_all_hold():
    book = catalogue(
        rule("other plan", ("big", 1), plan="max"),
        rule("long", ("big", 1), low=100),
        rule("rest", ("small", 1), high=99),
    )
    assert route(ask(prompt_characters=396), book, ready).rule == "rest"
    assert route(ask(prompt_characters=397), book, ready).rule == "long"
    assert route(ask(plan="max"), book, ready).rule == "other plan"


def seeing(images):
    """The catalogue in which the second deployment of the model `big` takes such images."""
    book = catalogue(rule("first", ("small", 1), ("big", 1)))
    return replace(
        book, deployments={**book.deployments, "big": (AT_BIG, replace(AT_BIG_2, options={"images": images}))}
    )


@pytest.mark.parametrize("name", ["big", "auto"])
@pytest.mark.parametrize(("takes", "has"), [("data", "data"), ("urls", "data"), ("urls", "urls")])
def test_images_go_to_the_deployments_that_take_them(name, takes, has):
    decision = route(ask(name, images=has), seeing(takes), ready)
    assert decision.deployment == AT_BIG_2.id
    assert route(ask(name), seeing(takes), ready, draw=lambda: 0.0).deployment != AT_BIG_2.id


@pytest.mark.parametrize(
    ("query", "says"),
    [
        (ask("small", images="data"), "The model 'small' takes no images."),
        (ask("big", images="urls"), "The model 'big' takes images as data: URLs only"),
        (ask(images="urls"), "small takes no images; big takes images as data: URLs only"),
    ],
)
def test_models_that_do_not_see_are_named(query, says):
    error = refused(query, seeing("data"))
    assert error.code == "images_not_supported"
    assert says in error.message


def test_a_seeing_deployment_that_is_not_ready_is_waited_for():
    assert refused(ask("big", images="data"), seeing("data"), lambda _: "down").code == "no_ready_deployment"


def test_a_rule_without_a_ready_target_is_passed_over_and_explained():
    book = catalogue(rule("first", ("big", 1)), rule("rest", ("small", 1)))
    decision = route(ask(), book, Replicas(lambda d: "" if d == AT_SMALL.id else "draining"))
    assert decision.model == "small"
    assert [(c.deployment, c.rejected) for c in decision.candidates] == [
        ("big-1", "draining"),
        ("big-2", "draining"),
        ("small-1", ""),
    ]
    assert decision.explain()["candidates"][0] == {
        "model": "big",
        "deployment": "big-1",
        "node": "",
        "load": None,
        "matched": None,
        "rejected": "draining",
    }


def test_nothing_ready_says_why():
    error = refused(ask("big"), unready=lambda _: "worker not connected")
    assert error.code == "no_ready_deployment"
    assert "big-1: worker not connected" in error.message
    assert refused(ask(), unready=lambda _: "down").code == "no_ready_deployment"


def test_a_fallback_serves_what_no_target_can_and_says_so():
    book = catalogue(replace(rule("first", ("big", 1)), fallbacks=(("small", 1),)), rule("rest", ("vectors", 1)))
    decision = route(ask(), book, ready)
    assert (decision.model, decision.rule) == ("big", "first")
    decision = route(ask(), book, Replicas(lambda d: "" if d == AT_SMALL.id else "circuit open"))
    assert (decision.model, decision.rule) == ("small", "first")
    assert decision.reason.endswith("None of its targets can serve: a fallback.")
    assert [(c.deployment, c.rejected) for c in decision.candidates if c.rejected] == [
        ("big-1", "circuit open"),
        ("big-2", "circuit open"),
    ]


def test_weights_split_the_draw():
    book = catalogue(rule("split", ("big", 3), ("small", 1)))
    picks = [route(ask(), book, ready, draw=lambda p=p: p).model for p in (0.0, 0.74, 0.75, 0.99)]
    assert picks == ["big", "big", "small", "small"]


def test_the_least_busy_deployment_is_chosen():
    decision = route(ask("big"), catalogue(), Replicas(load=lambda d: 5 if d == AT_BIG.id else 2))
    assert decision.deployment_name == "big-2"
    assert ("big-1", "busier") in [(c.deployment, c.rejected) for c in decision.candidates]


def test_prompt_is_judged_by_the_context_that_is_served():
    """Memory may leave less than the catalogue says; never does it leave more."""
    book = catalogue(rule("any", ("big", 1)), rule("rest", ("small", 1)))
    long = ask(prompt_characters=2_400)
    assert route(long, book, Replicas(contexts={AT_BIG.id: 600})).model == "big"
    decision = route(long, book, Replicas(contexts={AT_BIG.id: 599, AT_SMALL.id: 5_000}))
    assert (decision.model, decision.context_length) == ("small", 1_000)
    assert "longer than its context of 599" in decision.candidates[0].rejected


def test_plan_and_context_pass_a_target_over():
    book = catalogue(rule("any", ("big", 1), ("small", 1), ("vectors", 1)))
    decision = route(ask(allowed_models=frozenset({"small"})), book, ready)
    assert decision.model == "small"
    assert {c.model: c.rejected for c in decision.candidates if c.rejected} == {
        "big": "not in plan free",
        "vectors": "doesn't serve chat",
    }


# -- adapters ---------------------------------------------------------------------------------------------------------

LAW = replace(BIG, name="law", base="big")


def with_law(*rules):
    """The catalogue in which the model `law` is an adapter of `big`, on the same two deployments."""
    book = catalogue(*rules)
    served = tuple(replace(one, model="law", adapter="law-id") for one in (AT_BIG, AT_BIG_2))
    return replace(book, models={**book.models, "law": LAW}, deployments={**book.deployments, "law": served})


def refusing(*deployments):
    return Replicas(refused={(one.id, "law-id"): "the adapter can't be served: too large" for one in deployments})


@pytest.mark.parametrize("name", ["law", "auto"])
def test_an_adapter_goes_where_it_is_not_refused(name):
    decision = route(ask(name), with_law(rule("any", ("law", 1))), refusing(AT_BIG))
    assert (decision.model, decision.deployment_name) == ("law", "big-2")
    assert "adapter" not in [signal.step for signal in decision.signals]


@pytest.mark.parametrize("other", ["big", "small"])
def test_an_adapter_that_is_refused_everywhere_is_not_drawn_where_another_model_holds(other):
    book = with_law(rule("any", ("law", 1_000), (other, 1)))
    decision = route(ask(), book, refusing(AT_BIG, AT_BIG_2), draw=lambda: 0.0)
    assert decision.model == other
    [signal] = [signal for signal in decision.signals if signal.step == "adapter"]
    assert (signal.outcome, signal.value) == ("passed", "law: the adapter can't be served: too large")
    assert signal.explain()["value"] == signal.value


def test_rules_go_on_behind_one_whose_only_adapter_is_refused_everywhere():
    capped = replace(rule("law", ("law", 1)), ceiling=Ceiling(price=10))
    book = with_law(capped, rule("rest", ("small", 1)))
    decision = route(ask(), book, refusing(AT_BIG, AT_BIG_2), price=lambda _: Price(1, 1))
    assert (decision.model, decision.rule) == ("small", "rest")


@pytest.mark.parametrize(("slow", "gets"), [((AT_BIG.id, 50), "law"), ((AT_BIG.id, 50, "law-id"), "big")])
def test_an_adapter_and_its_base_are_measured_each_for_itself(slow, gets):
    book = with_law(replace(rule("fast", ("law", 1), ("big", 1)), ceiling=Ceiling(ttft_ms=500)))
    book = replace(book, deployments={name: places[:1] for name, places in book.deployments.items()})
    decision = route(ask(), book, Replicas(ttfts={slow: 501}), price=lambda _: Price(1, 1))
    assert decision.model == gets


def test_an_adapter_asked_for_by_name_and_refused_everywhere_is_told_so():
    with pytest.raises(RoutingError) as caught:
        route(ask("law"), with_law(), refusing(AT_BIG, AT_BIG_2))
    told = (caught.value.code, caught.value.message, caught.value.model)
    assert told == ("adapter_refused", "The model 'law': the adapter can't be served: too large", "law")
    with pytest.raises(RoutingError) as caught:  # another replica, which may serve it, is away
        route(
            ask("law"),
            with_law(),
            Replicas(lambda d: "down" if d == AT_BIG.id else "", refused={(AT_BIG_2.id, "law-id"): "no"}),
        )
    assert caught.value.code == "no_ready_deployment"


LABELS = model("labels", "classification")
AT_LABELS = deployment("labels-1", "labels")


def with_labels(*rules):
    book = catalogue(*(rules or (rule("labels", ("labels", 1), task="classify"), rule("rest", ("small", 1)))))
    return replace(
        book, models={**book.models, "labels": LABELS}, deployments={**book.deployments, "labels": (AT_LABELS,)}
    )


def test_classifier_is_asked_for_chats_by_name():
    assert route(ask("labels"), with_labels(), ready).model == "labels"
    assert route(ask("labels", kind="classification"), with_labels(), ready).model == "labels"
    assert refused(ask("labels", kind="embedding"), with_labels()).code == "model_wrong_kind"
    assert refused(ask("small", kind="classification"), with_labels()).code == "model_wrong_kind"


def test_classifier_gets_a_chat_of_auto_only_to_classify_it_and_if_it_can():
    def chosen(query, book, unfit=""):
        decision = route(query, book, ready, unfit=lambda *_: unfit)
        return decision.model, [one.rejected for one in decision.candidates if one.model == "labels" and one.rejected]

    both = with_labels(rule("any", ("labels", 1), ("vectors", 1)), rule("rest", ("small", 1)))
    assert chosen(ask(task="classify"), with_labels()) == ("labels", [])
    assert chosen(ask(task="classify"), both) == ("labels", [])
    assert chosen(ask("auto:classify"), both) == ("labels", [])
    assert chosen(ask(task="classify"), with_labels(), "no labels") == ("small", ["answers with labels: no labels"])
    assert chosen(ask(), both) == ("small", ["answers with labels, for the task classify alone"])


def test_whether_a_chat_can_be_answered_with_a_label_is_asked_only_where_a_classifier_could():
    def never(model, task):
        raise AssertionError

    assert route(ask(task="classify"), catalogue(), ready, unfit=never).model == "small"
    assert route(ask(), with_labels(), ready, unfit=never).model == "small"
    assert route(ask("labels"), with_labels(), ready, unfit=never).model == "labels"
    kind = {"task": "classify", "kind": "classification"}
    assert route(ask(**kind), with_labels(), ready, unfit=never).model == "labels"
