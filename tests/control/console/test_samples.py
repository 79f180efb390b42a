"""The sample tickets of the chat page: offered where `auto` has a specialist for them."""

from dataclasses import replace
from uuid import uuid4

import pytest

from billing.models import Plan, PlanVersion, Subscription
from control.console.samples import SAMPLES, samples_for
from desk.named_labels import read
from routing.catalogue import Catalogue, ModelEntry, RuleEntry
from tests.control.console.test_chat import data_of

TALK = RuleEntry("talk", "", "", None, None, (("general", 1),))
LABELS = RuleEntry("labels", "", "classify", None, None, (("desk-labels", 1),), examples=("Which label?",))
FIELDS = RuleEntry("fields", "", "extract", None, None, (("desk", 1),), examples=("Which fields?",))
READY = {"auto", "general", "desk", "desk-labels"}


def subscription():
    return Subscription(version=PlanVersion(plan=Plan(slug="free"), default_task="chat"))


def tasks(*rules, ready=READY):
    models = {name: ModelEntry(name, frozenset(["chat"]), 2048, "card", "", 0) for name in READY - {"auto"}}
    return [one.task for one in samples_for(Catalogue(models, {}, rules), subscription(), ready)]


def test_each_task_with_a_specialist_has_a_sample():
    assert tasks(LABELS, FIELDS, TALK) == ["classify", "extract"]
    assert tasks(FIELDS, TALK) == ["extract"]


@pytest.mark.parametrize(
    "rules",
    [
        (TALK,),
        (replace(LABELS, targets=(("general", 1),)), TALK),
        (replace(LABELS, examples=()), TALK),
        (replace(LABELS, plan="business"), TALK),
        (replace(LABELS, max_prompt_tokens=10), TALK),
        (replace(LABELS, targets=()), TALK),
        (TALK, LABELS),
    ],
    ids=["no rule", "the general model", "no examples", "another plan", "too long", "no model", "never reached"],
)
def test_there_is_none_where_auto_would_give_it_to_the_general_model(rules):
    assert tasks(*rules) == []


@pytest.mark.parametrize(("adapters", "samples"), [(1, 1), (0, 0)])
def test_a_specialist_of_ones_own_counts_while_the_plan_has_adapters(adapters, samples):
    mine = subscription()
    mine.tenant_id, mine.version.adapters = uuid4(), adapters
    own = ModelEntry("me/own", frozenset(["chat"]), 2048, "card", "", 0, mine.tenant_id, "general", 1)
    general = replace(own, name="general", tenant=None, base="")
    rules = (replace(LABELS, targets=(("me/own", 1),)), TALK)
    catalogue = Catalogue({"me/own": own, "general": general}, {}, rules)
    assert len(samples_for(catalogue, mine, {"general", "me/own"})) == samples


def test_there_is_none_while_the_specialist_is_not_offered_or_not_ready():
    assert tasks(LABELS, FIELDS, TALK, ready={"auto", "general", "desk"}) == ["extract"]


@pytest.mark.parametrize("sample", SAMPLES, ids=lambda one: one.task)
def test_the_instruction_is_a_line_that_is_compared_whole(sample):
    instruction, rest = sample.text.split("\n\n", 1)
    assert len(instruction) <= 200
    assert rest == SAMPLES[0].text.split("\n\n", 1)[1]


def test_labels_and_ticket_are_read_from_the_sample():
    asked = read(SAMPLES[0].text)
    assert asked.labels[:3] == ("billing", "refund", "delivery")
    assert (asked.labels[-1], len(asked.labels)) == ("other", 9)
    assert asked.text.startswith("Hello,")


@pytest.mark.django_db
def test_the_page_offers_none_without_a_subscription(acme):
    acme.tenant.subscriptions.update(state="ended")
    assert data_of(acme.client().get("/chat/"))["samples"] == []
