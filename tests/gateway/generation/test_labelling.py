"""Chats that a classifier answers, beside models that generate: where they go, and what becomes of them on the way."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import AsyncMock

import msgspec
import pytest

from base.ids import uuid7
from billing.writer.operations import Settle
from desk.reader import NOT_ENGLISH
from gateway.errors.refusal import Refusal
from gateway.generation import placement
from gateway.generation.generation import start_generation
from gateway.generation.labelling import NO_FIELDS, why_unlabelled
from inference.errors import InvalidRequestError
from inference.tools import Function, Tools
from inference.types import Delta, Guidance, GuidanceKind, Kind, SamplingParams, Usage
from routing import hook
from routing.catalogue import RuleEntry
from routing.hook import OwnTerms
from routing.types import Comparison, Similarity
from tests.gateway.doubles import FAKE, collect, make_intent, make_stand

SORTER = replace(FAKE, name="sorter", kinds=frozenset({"classification"}), rate_card="sorter-card")
WRITER = replace(FAKE, name="writer", rate_card="writer-card")
TICKET = "Labels: red, blue\n\nmy blue car"
LABELLED = Usage(input=5)


async def make_both(first, second, **options):
    rule = RuleEntry("labels", "", "classify", None, None, ((first, 1),), ((second, 1),))
    return await make_stand(models=(SORTER, WRITER), rules=(rule,), text="It is blue", **options)


async def run(stand, prompt=TICKET, **fields):
    intent = make_intent(prompt=prompt, **({"model": "auto", "task": "classify"} | fields))
    generation = await start_generation(stand.runtime, stand.principal, intent, uuid7())
    return generation, *await collect(generation)


async def assert_clean(stand):
    await stand.settled()
    assert (stand.writer.holds, stand.writer.wallet.held, stand.places()) == ({}, 0, 0)


@pytest.mark.parametrize("stream", [True, False])
async def test_ticket_of_auto_is_classified_in_one_piece(stream):
    stand = await make_both("sorter", "writer")
    generation, events, outcome, text = await run(stand, stream=stream)
    assert (generation.route.model, text, outcome.usage) == ("sorter", "blue", LABELLED)
    assert [event for event in events if isinstance(event, Delta)] == [Delta("blue", LABELLED)]
    assert outcome.ttft_ms is not None
    [settle] = stand.writer.of(Settle)
    assert settle.classes == {"input": 5}
    assert settle.charge == outcome.charge == 1_000_000 - stand.writer.wallet.posted
    await assert_clean(stand)


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [("Is my blue car red?", {}), (TICKET, {"sampling": SamplingParams(n=2)}), (TICKET, {"task": None})],
    ids=["no labels", "two answers", "another task"],
)
async def test_what_has_no_label_for_an_answer_goes_to_what_generates(prompt, fields):
    stand = await make_both("sorter", "writer")
    rule = RuleEntry("any", "", "", None, None, (("sorter", 1),), (("writer", 1),))
    snapshot = stand.runtime.catalogue.snapshot
    stand.runtime.catalogue.snapshot = replace(snapshot, catalogue=replace(snapshot.catalogue, rules=(rule,)))
    generation, _, outcome, text = await run(stand, prompt, **fields)
    assert (generation.route.model, outcome.error) == ("writer", None)
    assert "It is blue" in text
    [passed] = [one for one in generation.route.candidates if one.model == "sorter"]
    assert passed.rejected.startswith("answers with labels")
    await assert_clean(stand)


@pytest.mark.parametrize("failure", [{"generate_error": "overloaded"}, {"lose_at": 1}, {"error_at": 1}], ids=str)
async def test_chat_moves_from_a_classifier_to_what_generates(failure):
    stand = await make_both("sorter", "writer")
    engine = stand.engine_of("sorter")
    engine.options = replace(engine.options, **failure)
    generation, _, outcome, text = await run(stand, sampling=SamplingParams(max_tokens=2))
    assert (generation.route.model, text, outcome.error) == ("writer", "It is", None)
    assert outcome.usage.completion == 2
    await assert_clean(stand)


REFUSED = InvalidRequestError("input 0 has 300 tokens", code="context_length_exceeded", param="input")


async def test_chat_that_a_classifier_refuses_goes_to_what_generates():
    """Its text is too long, or the model knows no such label: which nobody knows before it is tokenised."""
    stand = await make_both("sorter", "writer")
    stand.engine_of("sorter").prepare = AsyncMock(side_effect=REFUSED)
    generation, _, outcome, text = await run(stand)
    assert (generation.route.model, text, outcome.error) == ("writer", "It is blue", None)
    [passed] = [one for one in generation.route.candidates if one.model == "sorter"]
    assert "input 0 has 300 tokens" in passed.rejected
    assert generation.explain().get("attempts") is None
    await assert_clean(stand)


@pytest.mark.parametrize("model", ["auto", "sorter"])
async def test_chat_that_a_classifier_refuses_is_refused_where_nothing_generates(model):
    stand = await make_both("sorter", "sorter" if model == "auto" else "writer")
    stand.engine_of("sorter").prepare = AsyncMock(side_effect=REFUSED)
    with pytest.raises(Refusal) as caught:
        await run(stand, model=model)
    assert (caught.value.status, caught.value.code, caught.value.param) == (400, REFUSED.code, "messages")
    await assert_clean(stand)


async def test_chat_moves_from_what_generates_to_a_classifier():
    stand = await make_both("writer", "sorter")
    engine = stand.engine_of("writer")
    engine.options = replace(engine.options, generate_error="overloaded")
    generation, _, outcome, text = await run(stand)
    assert (generation.route.model, text, outcome.usage) == ("sorter", "blue", LABELLED)
    [settle] = stand.writer.of(Settle)
    assert settle.classes == {"input": 5}
    await assert_clean(stand)


def test_a_model_that_generates_and_classifies_generates():
    both = replace(FAKE, kinds=frozenset({Kind.CHAT, Kind.CLASSIFICATION}))
    assert not both.answers_labels
    assert both.serves("chat")
    intent = make_intent(prompt=TICKET)
    assert why_unlabelled(intent, hook.read(intent.messages, hook.CLASSIFY)) == ""


# -- specialists' answers that are held -------------------------------------------------------------------------------

ADAPTER = replace(WRITER, base="general")
FIELDS_RULE = RuleEntry("fields", "", "extract", None, None, (("writer", 1),), examples=("x",))
LABELS_RULE = RuleEntry("labels", "", "classify", None, None, (("writer", 1),), examples=("x",))
RULES = (FIELDS_RULE, LABELS_RULE)
TALK_RULE = RuleEntry("talk", "", "", None, None, (("writer", 1),))
CHOICE, OBJECT = Guidance(GuidanceKind.CHOICE, choices=("red", "blue")), Guidance(GuidanceKind.JSON_OBJECT)
TOOLS = Tools((Function("f"),))


async def held(prompt, rules=RULES, model="auto", writer=ADAPTER, **fields):
    """Return what the engine was asked to hold an answer to, and what the client is told of it."""
    stand = await make_stand(models=(SORTER, writer), rules=rules, text="It is blue", guides=True)
    engine = stand.engine_of("writer")
    engine.prepare = AsyncMock(side_effect=engine.prepare)
    generation, *_ = await run(stand, prompt, model=model, **fields)
    await assert_clean(stand)
    return engine.prepare.call_args.args[0].sampling, generation.explain().get("held_to")


async def test_a_specialists_answer_is_held_to_the_labels_or_to_json():
    sampling = SamplingParams(temperature=0.5, max_tokens=3)
    assert await held(TICKET, sampling=sampling) == (replace(sampling, guidance=CHOICE), 2)
    by_name = {"model": "writer", "task": "extract"}
    assert await held(TICKET, **by_name, sampling=sampling) == (replace(sampling, guidance=OBJECT), "json_object")


FIELDS = "Return JSON with the fields order_id, amount.\n\nI paid 12 for order 7."
UNNAMED = "Return what it says as JSON.\n\nI paid 12 for order 7."
TALK = "Hello!\n\nHow are you?"
SCHEMA = Guidance(
    GuidanceKind.JSON_SCHEMA,
    '{"type":"object","properties":{"order_id":{"type":["string","null"]},"amount":{"type":["string","null"]}},'
    '"required":["order_id","amount"],"additionalProperties":false}',
)
NEAR = Comparison(((Similarity("fields", 0.9, "x"),),))


async def asked_of_specialist(prompt, monkeypatch, **fields):
    """What a model is held to that rules give for their tasks alone."""
    monkeypatch.setattr(placement, "read", AsyncMock(side_effect=_compared))
    return await held(prompt, **({"task": None} | fields))


async def _compared(examples, query, catalogue, texts, asker):
    return msgspec.structs.replace(query, instruction=hook.read(texts.messages), compared=NEAR)


BY = {
    "field": {"task": "extract"},
    "alias": {"model": "auto:extract"},
    "instruction": {},
    "name": {"model": "writer"},
    "name and field": {"model": "writer", "task": "extract"},
}


@pytest.mark.parametrize("how", BY)
async def test_named_fields_are_held_however_a_specialist_is_asked(how, monkeypatch):
    sampling, told = await asked_of_specialist(FIELDS, monkeypatch, **BY[how])
    assert (sampling.guidance, told) == (SCHEMA, "json_schema")


@pytest.mark.parametrize(
    ("prompt", "how", "guidance"),
    [
        (UNNAMED, "name", None),
        (UNNAMED, "name and field", OBJECT),
        (TALK, "name", None),
        ("Classify it as one of: red, blue.\n\nmy blue car", "name", CHOICE),
        ("Classify it as one of: red, blue.\n\nmy blue car", "instruction", CHOICE),
    ],
)
async def test_what_a_specialist_is_held_to_where_no_fields_are_named(prompt, how, guidance, monkeypatch):
    sampling, _ = await asked_of_specialist(prompt, monkeypatch, **BY[how])
    assert sampling.guidance == guidance


GENERAL = replace(WRITER, name="general")
ABROAD = "Return JSON with the fields order_id, amount.\n\nIch habe 12 bezahlt, und die Nummer ist 7."
LABELS_ABROAD = "Labels: red, blue\n\nIch habe ein blaues Auto"
FREE = SamplingParams(guidance=OBJECT)
TEXTS_RULE = RuleEntry("texts", "", "extract", None, None, (("writer", 1),), structure="text")


TENANT = uuid7()
OWN = {
    "writer": replace(ADAPTER, tenant=TENANT, number=1),
    "terms": {"tenant": TENANT, "own": OwnTerms(most=1, tenant=TENANT)},
}


async def answering(prompt, *, rules=(), writer=ADAPTER, terms=None, **fields):
    """The model that answers, and why the specialists beside it don't."""
    both = RuleEntry("labels", "", "classify", None, None, (("sorter", 1),), (("writer", 1),))
    rest = RuleEntry("rest", "", "", None, None, (("general", 1),))
    rules = (*rules, FIELDS_RULE, both, rest)
    stand = await make_stand(models=(SORTER, writer, GENERAL), rules=rules, text="It is", guides=True, terms=terms)
    generation, *_ = await run(stand, prompt, **({"task": None} | fields))
    await assert_clean(stand)
    return generation.route.model, {one.rejected for one in generation.route.candidates if one.rejected}


@pytest.mark.parametrize(
    ("prompt", "fields", "why"),
    [
        (UNNAMED, {"task": "extract"}, {f"is a specialist: {NO_FIELDS}"}),
        (UNNAMED, {"model": "auto:extract"}, {f"is a specialist: {NO_FIELDS}"}),
        (FIELDS.replace("order_id", "the order's id"), {"task": "extract"}, {f"is a specialist: {NO_FIELDS}"}),
        (UNNAMED, {"task": "extract", "sampling": FREE}, {f"is a specialist: {NO_FIELDS}"}),
        (ABROAD, {"task": "extract"}, {f"is a specialist: {NOT_ENGLISH}"}),
        (
            LABELS_ABROAD,
            {"task": "classify"},
            {f"answers with labels: {NOT_ENGLISH}", f"is a specialist: {NOT_ENGLISH}"},
        ),
    ],
)
async def test_a_specialist_that_is_not_sure_abstains_for_a_general_model(prompt, fields, why):
    assert await answering(prompt, **fields) == ("general", why)


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        (FIELDS, {"task": "extract"}),
        (UNNAMED, {"task": "extract", "sampling": SamplingParams(guidance=SCHEMA)}),
        (ABROAD, {"rules": (TEXTS_RULE,)}),
        (ABROAD, {"task": "extract", **OWN}),
    ],
    ids=["fields", "a schema of its own", "a rule's structure", "a tenant's own"],
)
async def test_a_specialist_that_is_sure_answers(prompt, fields):
    assert await answering(prompt, **fields) == ("writer", set())


@pytest.mark.parametrize("how", ["field", "name"])
@pytest.mark.parametrize(
    "which", [{"rules": (*RULES, TALK_RULE)}, {"writer": WRITER}], ids=["rules give it for talk too", "no adapter"]
)
async def test_a_general_models_answer_is_free(which, how):
    sampling, _ = await held(FIELDS, **which, **({"task": None} | BY[how]))
    assert sampling.guidance is None


@pytest.mark.parametrize(
    ("prompt", "fields"),
    [
        ("Is it red?", {}),
        (TICKET, {"model": "writer", "task": "chat"}),
        (TALK, {"model": "writer", "task": None}),
        (TICKET, {"sampling": SamplingParams(ignore_eos=True)}),
        (TICKET, {"tools": TOOLS}),
        (FIELDS, {"tools": TOOLS, "task": "extract"}),
    ],
    ids=["no labels", "another task", "by name", "no end", "tools", "tools of another task"],
)
async def test_what_nobody_wants_held_is_free(prompt, fields):
    sampling, told = await held(prompt, **fields)
    assert (sampling.guidance, told) == (None, None)


async def test_what_the_request_says_itself_comes_first():
    own = Guidance(GuidanceKind.REGEX, "It is .*")
    sampling, told = await held(TICKET, sampling=SamplingParams(guidance=own))
    assert (sampling.guidance, told) == (own, None)


async def test_engine_that_cannot_guide_answers_freely():
    stand = await make_stand(models=(ADAPTER,), rules=RULES, text="It is blue")
    generation, _, outcome, _ = await run(stand)
    assert (outcome.error, generation.explain().get("held_to")) == (None, None)
    await assert_clean(stand)


async def test_answer_is_held_no_more_where_the_request_moves_to_what_classifies():
    stand = await make_stand(
        models=(SORTER, ADAPTER),
        rules=(replace(LABELS_RULE, fallbacks=(("sorter", 1),)),),
        text="It is blue",
        guides=True,
    )
    engine = stand.engine_of("writer")
    engine.options = replace(engine.options, generate_error="overloaded")
    generation, _, outcome, text = await run(stand)
    assert (text, outcome.error, generation.explain().get("held_to")) == ("blue", None, None)
    await assert_clean(stand)
