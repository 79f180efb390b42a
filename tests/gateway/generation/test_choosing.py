"""Requests for ``auto``: compared with the rules' examples in bounded work, and faithful within a conversation."""

from __future__ import annotations

import asyncio
import struct
import tracemalloc
from dataclasses import replace
from types import SimpleNamespace

import msgspec
import pytest
from asgiref.sync import sync_to_async

from base.ids import uuid7
from gateway.generation import dry_run, placement
from gateway.generation.counting import count
from gateway.generation.dry_run import Wanted
from gateway.generation.generation import start_generation
from gateway.generation.placement import COMPARED_CHARACTERS
from gateway.runtime import examples as examples_module
from gateway.runtime.conversations import keys_of
from gateway.runtime.data_plane import Live
from gateway.runtime.tenant_cache import SHARE, TenantCache
from inference.errors import InvalidRequestError
from inference.messages import Message, Reasoning, ToolCall, ToolResult
from routing.catalogue import RuleEntry
from routing.types import Comparison
from tests.gateway.doubles import CARD, FAKE, collect, make_intent, make_principal, make_stand

CHAT = frozenset({"chat"})
GENERAL = replace(FAKE, name="general", kinds=CHAT)
DESK = replace(FAKE, name="desk", kinds=CHAT, rate_card="desk-card")
VECTORS = replace(FAKE, name="vectors", kinds=frozenset({"embedding"}))
LABEL = "Which label has this ticket?"
LABELS = RuleEntry(
    "labels", "", "classify", None, None, (("desk", 1),), examples=(LABEL, "Sort it."), least_similarity=0.999
)
REST = RuleEntry("rest", "", "", None, None, (("general", 1),))


async def make_auto(*rules, read=True, terms=None):
    stand = await make_stand(models=(GENERAL, DESK, VECTORS), rules=rules or (LABELS, REST), terms=terms)
    if read:
        await stand.runtime.catalogue.examples.read(stand.runtime.catalogue.snapshot.catalogue)
    stand.before = stand.engine_of("vectors").prepares
    return stand


def asked(stand):
    """How many requests the embedding model got since the examples were read."""
    return stand.engine_of("vectors").prepares - stand.before


async def ask(stand, *texts, principal=None, **fields):
    """Run a request whose messages are of the user and the assistant in turn; return its explanation."""
    messages = tuple(
        text if isinstance(text, Message) else Message(("user", "assistant")[index % 2], (text,))
        for index, text in enumerate(texts)
    )
    intent = make_intent(**({"model": "auto", "messages": messages, "max_tokens": 4} | fields))
    generation = await start_generation(stand.runtime, principal or stand.principal, intent, uuid7())
    await collect(generation)
    await stand.settled()
    return generation.explain()


def step(told, name):
    return next(signal for signal in told["signals"] if signal["step"] == name)


async def test_the_nearest_example_decides_and_nobody_pays_for_the_comparison():
    stand = await make_auto()
    told = await ask(stand, LABEL)
    assert (told["model"], told["task"], told["task_source"], told["rule"]) == (
        "desk",
        "classify",
        "examples",
        "labels",
    )
    assert step(told, "examples")["similarities"] == [{"rule": "labels", "similarity": 1.0}]
    assert asked(stand) == 1
    assert [reserve.model for reserve in stand.writer.reserves] == ["desk"]
    assert stand.writer.reserves[0].facts.route["signals"] == told["signals"]


async def test_an_instruction_that_names_labels_decides_without_a_comparison():
    stand = await make_auto()
    told = await ask(stand, "Classify this ticket as one of: billing, shipping.\n\nIt came late.")
    assert (told["model"], told["task"], told["task_source"]) == ("desk", "classify", "instruction")
    said = "its instruction asks for one of 2 labels that it names: as rule “labels” takes for classify"
    assert step(told, "instruction") == {"step": "instruction", "outcome": "decided", "value": said}
    assert step(told, "examples")["outcome"] == "skipped"
    assert asked(stand) == 0


async def test_what_is_like_no_example_goes_where_the_plan_leads():
    stand = await make_auto()
    told = await ask(stand, "How is the weather?")
    assert (told["model"], told["task"], told["task_source"]) == ("general", "chat", "plan")
    assert step(told, "examples")["outcome"] == "abstained"


@pytest.mark.parametrize(
    ("rules", "fields"),
    [
        ((REST,), {}),
        ((LABELS, REST), {"model": "general"}),
        ((LABELS, REST), {"model": "auto:chat"}),
        ((LABELS, REST), {"task": "chat"}),
        ((RuleEntry("tools", "", "", None, None, (("general", 1),), structure="text"), LABELS, REST), {}),
    ],
    ids=["no examples", "a model's name", "alias", "field", "structure"],
)
async def test_who_needs_no_comparison_causes_none(rules, fields):
    stand = await make_auto(*rules)
    told = await ask(stand, LABEL, **fields)
    assert told["model"] == "general"
    assert asked(stand) == 0


async def test_without_examples_nothing_is_read_either():
    stand = await make_auto(REST)
    assert stand.engine_of("vectors").prepares == 0


async def test_examples_are_read_once_and_again_only_where_they_changed():
    stand = await make_auto()
    assert stand.before == 1  # both in one request
    catalogue = stand.runtime.catalogue.snapshot.catalogue
    await stand.runtime.catalogue.examples.read(catalogue)
    assert asked(stand) == 0
    more = replace(LABELS, examples=(*LABELS.examples, "One more."))
    await stand.runtime.catalogue.examples.read(replace(catalogue, rules=(more, REST)))
    assert asked(stand) == 1
    assert len(stand.runtime.catalogue.examples._vectors) == 3


async def test_a_tenants_own_text_is_compared_once_and_anothers_anew():
    stand = await make_auto()
    for _ in range(3):
        await ask(stand, LABEL)
    assert asked(stand) == 1
    other = make_principal(stand.principal.wallet)
    await ask(stand, LABEL, principal=other)
    assert asked(stand) == 2  # who is answered sooner would know what others asked


async def test_counting_tokens_goes_where_the_request_would():
    stand = await make_auto()
    intent = make_intent(model="auto", messages=(Message("user", (LABEL,)),))
    assert (await count(stand.runtime, stand.principal, intent, uuid7())).model == "desk"


@pytest.mark.parametrize(
    ("options", "says"),
    [({"ready": False}, "no embedding model is ready"), ({"prepare_error": "overloaded"}, "could not compare it")],
)
async def test_an_embedding_model_that_fails_stops_no_request(options, says):
    stand = await make_auto()
    engine = stand.engine_of("vectors")
    engine.options = replace(engine.options, **options)
    await stand.runtime.engines.look()
    told = await ask(stand, LABEL)
    assert told["model"] == "general"
    assert says in step(told, "examples")["value"]
    [entry] = [one for one in stand.runtime.engines.entries() if one.deployment.model == "vectors"]
    assert (entry.requests, entry.uncached) == (0, 0)


async def test_examples_that_are_not_read_in_time_stop_no_request():
    stand = await make_auto(read=False)
    stand.runtime.catalogue.examples._seconds = 0.0
    told = await ask(stand, LABEL)
    assert told["model"] == "general"
    assert step(told, "examples")["value"] == "the rules' examples are not read yet, after 0 s"
    stand.runtime.catalogue.examples._seconds = 60.0  # who has just waited in vain waits no more for a while
    assert step(await ask(stand, LABEL), "examples")["value"] == "the rules' examples are not read yet"
    assert asked(stand) == 0


async def test_a_request_waits_for_examples_that_are_being_read():
    stand = await make_auto(read=False)
    examples, catalogue = stand.runtime.catalogue.examples, stand.runtime.catalogue.snapshot.catalogue
    examples._seconds = 60.0
    asker = examples_module.Asker(stand.principal.tenant, "t", 0, 1000)
    asking = asyncio.create_task(examples.compare(catalogue, (LABELS,), (LABEL,), asker))
    await asyncio.sleep(0)
    assert not asking.done()
    await examples.read(catalogue)
    assert (await asking).groups[0][0].rule == "labels"


async def test_nobody_waits_for_examples_that_the_model_failed_to_read():
    stand = await make_auto(read=False)
    stand.runtime.catalogue.examples._seconds = 60.0
    engine = stand.engine_of("vectors")
    engine.options = replace(engine.options, prepare_error="overloaded")
    await stand.runtime.catalogue.examples.read(stand.runtime.catalogue.snapshot.catalogue)
    told = step(await ask(stand, LABEL), "examples")
    assert told["value"] == "the rules' examples are not read yet: the embedding model failed to"


async def test_a_new_gateway_is_ready_when_its_examples_are_read():
    stand = await make_auto(read=False)
    examples, catalogue = stand.runtime.catalogue.examples, stand.runtime.catalogue.snapshot.catalogue
    assert examples.unread(catalogue, is_serving=False) == ""  # that no deployment is ready is told already
    assert (await stand.runtime.readiness())["examples"] == "the rules' examples are not read yet"
    await examples.read(catalogue)
    assert (await stand.runtime.readiness())["examples"] == ""
    examples._vectors.clear()  # as where a rule gets new ones: a gateway that serves goes on
    assert examples.unread(catalogue, is_serving=True) == ""


@pytest.mark.parametrize(("rules", "seconds"), [((REST,), 60.0), ((LABELS, REST), 0.0)], ids=["no examples", "bounded"])
async def test_a_new_gateway_waits_for_no_examples_that_will_not_come(monkeypatch, rules, seconds):
    monkeypatch.setattr(examples_module, "FIRST_SECONDS", seconds)
    stand = await make_auto(*rules, read=False)
    assert stand.runtime.catalogue.examples.unread(stand.runtime.catalogue.snapshot.catalogue, is_serving=True) == ""


async def test_who_is_late_is_not_waited_for_again_at_once(settings):
    settings.SLUICE_EXAMPLES_SECONDS = 0.0
    stand = await make_auto()
    told = await ask(stand, LABEL)
    assert (told["model"], step(told, "examples")["value"]) == ("general", "the embedding model took longer than 0 s")
    sent = asked(stand)
    assert "late a moment ago" in step(await ask(stand, LABEL), "examples")["value"]
    assert asked(stand) == sent
    assert stand.runtime.catalogue.examples._turns == {}


async def test_a_flood_of_one_tenant_waits_for_no_more_comparisons_than_it_may(monkeypatch):
    stand = await make_auto()
    release = asyncio.Event()
    engine = stand.engine_of("vectors")
    prepare = engine.prepare

    sent = 0

    async def slowly(request):
        nonlocal sent
        sent += 1
        await release.wait()
        return await prepare(request)

    monkeypatch.setattr(engine, "prepare", slowly)
    monkeypatch.setattr(stand.runtime.catalogue.examples, "_seconds", 60.0)
    catalogue = stand.runtime.catalogue.snapshot.catalogue
    asker = examples_module.Asker(stand.principal.tenant, "t", 0, 1000)

    def compare(number, who=asker):
        return asyncio.create_task(
            stand.runtime.catalogue.examples.compare(catalogue, (LABELS,), (f"text {number}",), who)
        )

    most = examples_module.MOST_OF_A_TENANT + examples_module.MOST_WAITING
    running = [compare(number) for number in range(most)]
    await asyncio.sleep(0)
    assert "already" in (await compare("more")).abstained
    other = compare("other", asker._replace(tenant=uuid7()))
    await asyncio.sleep(0)
    assert sent == examples_module.MOST_OF_A_TENANT + 1
    release.set()
    told = await asyncio.gather(*running, other)
    assert not any(one.abstained for one in told)
    assert stand.runtime.catalogue.examples._turns == {}


async def test_who_waited_too_long_behind_its_own_requests_is_told_so_and_marks_nobody_late(monkeypatch):
    stand = await make_auto()
    release = asyncio.Event()
    monkeypatch.setattr(stand.engine_of("vectors"), "prepare", lambda _: release.wait())
    examples, catalogue = stand.runtime.catalogue.examples, stand.runtime.catalogue.snapshot.catalogue
    examples._seconds = 60.0
    asker = examples_module.Asker(stand.principal.tenant, "t", 0, 1000)
    running = [
        asyncio.create_task(examples.compare(catalogue, (LABELS,), (f"text {number}",), asker))
        for number in range(examples_module.MOST_OF_A_TENANT)
    ]
    await asyncio.sleep(0)
    examples._seconds = 0.0
    told = await examples.compare(catalogue, (LABELS,), ("more",), asker)
    assert told.abstained == "the tenant's other comparisons and this one took longer than 0 s"
    assert examples._late_until == {}
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)
    assert examples._turns == {}


async def test_who_floods_makes_no_other_tenants_comparisons_late(settings):
    stand = await make_auto()
    stand.runtime.catalogue.examples._seconds = 0.0
    assert "longer than 0 s" in step(await ask(stand, LABEL), "examples")["value"]
    stand.runtime.catalogue.examples._seconds = 60.0
    assert (await ask(stand, LABEL, principal=make_principal(stand.principal.wallet)))["model"] == "desk"
    assert "late a moment ago" in step(await ask(stand, LABEL), "examples")["value"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 0.0], ids=["no number", "infinite", "no direction"])
async def test_a_vector_that_says_nothing_is_near_to_nothing(monkeypatch, bad):
    stand = await make_auto()
    monkeypatch.setattr("inference.clients.fake_run._vector", lambda _, width: struct.pack("<f", bad) * width)
    told = await ask(stand, LABEL)
    assert told["model"] == "general"
    assert "could not compare" in step(told, "examples")["value"]


async def test_an_example_without_a_vector_leaves_the_others_theirs(monkeypatch):
    stand = await make_auto(read=False)
    engine = stand.engine_of("vectors")
    prepare = engine.prepare

    async def choosy(request):
        if "Sort it." in request.inputs:
            raise InvalidRequestError("That is no text.")
        return await prepare(request)

    monkeypatch.setattr(engine, "prepare", choosy)
    await stand.runtime.catalogue.examples.read(stand.runtime.catalogue.snapshot.catalogue)
    assert (await ask(stand, LABEL))["model"] == "desk"


async def test_vectors_of_deployments_that_are_gone_are_forgotten():
    stand = await make_auto()
    examples, catalogue = stand.runtime.catalogue.examples, stand.runtime.catalogue.snapshot.catalogue
    [deployment] = catalogue.deployments["vectors"]
    for number in range(3):  # edited, so that what it gave before can't be compared with what it gives
        edited = replace(deployment, options={**deployment.options, "pooling": str(number)})
        await examples.read(replace(catalogue, deployments={**catalogue.deployments, "vectors": (edited,)}))
    assert asked(stand) == 3
    assert len(examples._vectors) == len(LABELS.examples)


async def test_no_tenants_own_model_compares_what_others_ask():
    stand = await make_auto()
    catalogue = stand.runtime.catalogue.snapshot.catalogue
    own = replace(VECTORS, tenant=uuid7())
    compared = await stand.runtime.catalogue.examples.compare(
        replace(catalogue, models={**catalogue.models, "vectors": own}),
        (LABELS,),
        ("x",),
        examples_module.Asker(stand.principal.tenant, "t", 0, 1000),
    )
    assert compared == Comparison(abstained="no embedding model is ready")


async def test_another_tenants_rule_neither_finds_a_task_nor_is_told():
    theirs = replace(LABELS, name="acme's tickets", targets=(("private", 1),))
    stand = await make_auto(theirs, REST)
    catalogue = stand.runtime.catalogue.snapshot.catalogue
    private = replace(DESK, name="private", tenant=uuid7())
    models = {**catalogue.models, "private": private}
    deployments = {**catalogue.deployments, "private": catalogue.deployments["desk"]}
    stand.runtime.catalogue.snapshot = replace(
        stand.runtime.catalogue.snapshot, catalogue=replace(catalogue, models=models, deployments=deployments)
    )
    told = await ask(stand, LABEL)
    assert (told["model"], told["task_source"], asked(stand)) == ("general", "plan", 0)
    assert "acme" not in str(told)
    assert "private" not in str(told)


async def test_what_is_remembered_holds_no_rules_texts():
    stand = await make_auto()
    await ask(stand, LABEL)
    [part] = stand.runtime.catalogue.examples._remembered._parts.values()
    assert LABELS.examples[1] not in str(list(part))


async def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(examples_module, "MOST_REMEMBERED", 2)
    stand = await make_auto()
    for number in range(5):
        await ask(stand, f"text {number}")
    assert len(stand.runtime.catalogue.examples._remembered) == 2


def test_the_first_and_last_lines_are_compared_since_an_instruction_stands_there():
    long = "Which label?" + "a" * 1000 + "\n\nHello, my lamp is broken.\n" + "b" * 1000 + " Thanks!\n"
    intent = make_intent(messages=(Message("system", ("Label it.",)), Message("user", (long,))))
    texts = placement.texts_of(intent)
    assert texts[0] == "Label it."
    assert [len(text) for text in texts[1:]] == [COMPARED_CHARACTERS] * 2
    assert (texts[1][:12], texts[2][-7:]) == ("Which label?", "Thanks!")
    many = "What is this? " + "x" * 600 + "\nab" * 200_000 + "\r\nThanks."
    tracemalloc.start()
    assert placement.ends_of(many)[1] == "Thanks."
    assert tracemalloc.get_traced_memory()[1] < len(many)  # not one string for each line
    tracemalloc.stop()
    raw = msgspec.structs.replace(intent, messages=(), prompt=(1, 2))
    assert placement.texts_of(raw) == ()
    assert placement.texts_of(msgspec.structs.replace(raw, prompt=" x ")) == ("x",)


# -- conversations ----------------------------------------------------------------------------------------------------


async def test_a_conversation_stays_with_its_model():
    stand = await make_auto()
    stand.runtime.catalogue.snapshot = replace(
        stand.runtime.catalogue.snapshot, prices={**stand.runtime.catalogue.snapshot.prices, "desk-card": CARD}
    )
    assert (await ask(stand, LABEL))["model"] == "desk"
    told = await ask(stand, LABEL, "billing", "Thank you!")
    assert told["model"] == "desk"
    assert "keeps desk" in step(told, "conversation")["value"]
    told = await ask(stand, LABEL, "billing", "Thank you!", "Welcome.", "Bye.")
    assert told["model"] == "desk"
    assert (await ask(stand, "Something else", "billing", "Thank you!"))["model"] == "general"
    other = make_principal(stand.principal.wallet)
    assert (await ask(stand, LABEL, "billing", "Thank you!", principal=other))["model"] == "general"


async def test_another_tenants_many_conversations_move_nobody_elses_to_another_model():
    stand = await make_auto()
    stand.runtime.catalogue.conversations = TenantCache(most=4)
    flooding = make_principal(stand.principal.wallet)
    assert (await ask(stand, LABEL))["model"] == "desk"
    for number in range(8):
        await ask(stand, f"Hello number {number}", principal=flooding)
    assert len(stand.runtime.catalogue.conversations) == 4
    assert (await ask(stand, LABEL, "billing", "Thank you!"))["model"] == "desk"


@pytest.mark.parametrize(("earlier", "gets"), [("desk", "desk"), ("gone", "general"), ("", "general")])
async def test_what_goes_on_from_a_stored_response_keeps_its_model(earlier, gets):
    stand = await make_auto()  # which knows nothing of the conversation, as another gateway, or after a restart
    told = await ask(stand, LABEL, "billing", "Thank you!", earlier_model=earlier)
    assert told["model"] == gets


def test_a_request_is_known_by_what_was_said_before_the_last_answer():
    project = uuid7()
    system, first = Message("system", ("Be kind.",)), Message("user", ("Hello",))
    answer, again = Message("assistant", (Reasoning("hm"), "Hi")), Message("user", ("And now?",))
    before, own = keys_of(project, (system, first))
    assert before is None
    goes_on, _ = keys_of(project, (first, answer, again))
    assert goes_on == own  # whatever the system said, and whatever was thought
    called = Message("assistant", (ToolCall("1", "clock", "{}"),))
    result = Message("tool", (ToolResult("1", ("noon",)),))
    assert keys_of(project, (first, called, result))[0] == own
    assert keys_of(uuid7(), (first, answer, again))[0] != own
    assert keys_of(project, (answer, first))[0] is None  # nothing was asked before that answer


def test_the_tenant_with_the_most_loses_what_it_used_least_recently():
    mine, flooding = uuid7(), uuid7()
    known = TenantCache(most=4)
    known.keep(mine, "first", 1)
    for number in range(3):
        known.keep(flooding, number, number)
    assert known.get(flooding, 0) == 0  # so it is used again
    known.keep(flooding, 3, 3)
    assert [known.get(flooding, number) for number in range(4)] == [0, None, 2, 3]
    known.keep(mine, "first", 2)
    assert (known.get(mine, "first"), known.get(flooding, "first"), len(known)) == (2, None, 4)


def test_what_tenants_have_together_is_bounded_however_many_they_are():
    known = TenantCache(most=SHARE * 2)
    for number in range(SHARE * 10):
        known.keep(uuid7(), "only", number)
        assert len(known) == sum(map(len, known._parts.values())) <= SHARE * 2
    assert len(known._parts) == len(known)


# -- the dry run ------------------------------------------------------------------------------------------------------


async def dry(stand, **wanted):
    """The decision about a request of a plan that includes all."""
    plan = SimpleNamespace(slug="business")
    terms = {"default_task": "chat", "allowed_models": [], "multiplier_bp": 10_000, "priority": 0}
    version = SimpleNamespace(adapters=0, plan=plan, **terms)
    return await sync_to_async(dry_run.dry_run)(Live(stand.runtime), version, Wanted(**wanted))


async def test_the_dry_run_goes_where_the_request_would_and_says_the_same():
    stand = await make_auto()
    told = await ask(stand, LABEL)
    decision = await dry(stand, text=LABEL)
    assert decision.model == "desk"
    assert decision.explain()["signals"] == told["signals"]
    assert next(one for one in decision.signals if one.similarities).similarities[0].example == LABEL


ADAPTER = replace(DESK, base="general")
SORTER = replace(DESK, name="sorter", kinds=frozenset({"classification"}))
FIELDS = "Return JSON with the fields order_id, amount.\n\n"


@pytest.mark.parametrize(
    ("wanted", "model"),
    [
        ({"task": "extract", "text": f"{FIELDS}I paid 12."}, "desk"),
        ({"task": "extract", "text": f"{FIELDS}Ich habe 12 bezahlt."}, "general"),
        ({"task": "extract", "text": "I paid 12."}, "general"),
        ({"task": "extract", "text": "I paid 12.", "schema": True}, "desk"),
        ({"task": "extract"}, "desk"),
        ({"task": "classify", "text": "Labels: red, blue\n\nmy blue car"}, "sorter"),
        ({"task": "classify", "text": "Labels: red, blue\n\nmy blue car", "tools": True}, "general"),
        ({"task": "classify", "text": "Labels: red, blue\n\nIch habe ein blaues Auto"}, "general"),
        ({"task": "classify", "text": "my blue car"}, "general"),
    ],
)
async def test_the_dry_run_abstains_for_specialists_that_are_not_sure(wanted, model):
    rules = [
        RuleEntry(task, "", task, None, None, ((one, 1),))
        for task, one in (("extract", "desk"), ("classify", "sorter"))
    ]
    stand = await make_stand(models=(GENERAL, ADAPTER, SORTER), rules=(*rules, REST))
    assert (await dry(stand, **wanted)).model == model


async def test_the_time_to_first_token_of_a_deployment_is_measured():
    stand = await make_auto(REST)
    engines, [deployment] = stand.runtime.engines, stand.runtime.catalogue.snapshot.catalogue.deployments["general"]
    for _ in range(4):
        await ask(stand, "x")
    assert engines.ttft_ms(deployment.id, 50) is None
    await ask(stand, "x")
    [entry] = [one for one in engines.entries() if one.deployment.id == deployment.id]
    assert len(entry.ttfts()) == 5
    entry._ttfts.clear()
    for ms in range(1, 11):
        entry.took(ms * 100)
    assert (engines.ttft_ms(deployment.id, 50), engines.ttft_ms(deployment.id, 90)) == (500, 900)
