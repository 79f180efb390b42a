"""The first models in the catalogue: published once with prices and routes, and left as operators leave them."""

from __future__ import annotations

import json

import pytest
from django.utils import timezone

from billing.selectors.prices import prices_at
from fleet import local_models
from fleet.adapters import remove_adapter
from fleet.local_models import add_first_models
from routing import catalogue
from routing.decision import route
from routing.models import Adapter, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import remove_model
from routing.types import RouteQuery
from tests.fleet.adapters.files import save
from tests.routing.test_decision import ready

pytestmark = pytest.mark.django_db(transaction=True)

CHAT, VECTORS, DESK, LABELS = "smollm2-135m-instruct", "all-minilm-l6-v2", "sluice-desk", "sluice-desk-labels"
KINDS = {"SmolLM2-135M-Instruct": "chat", "all-MiniLM-L6-v2": "embedding", LABELS: "classification"}


@pytest.fixture
def found(settings, tmp_path, monkeypatch, terms):
    """What the process that fetches answers; a test may change it."""
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    models = []
    for name, kind in KINDS.items():
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({}))
        models.append({"name": name, "folder": str(folder), "kinds": [kind], "context_length": 256})
    pair = {"name": DESK, "base": "SmolLM2-135M-Instruct", "folder": str(save(tmp_path / "fields"))}
    answer = {"models": models, "adapters": [pair], "missing": {}}
    monkeypatch.setattr(local_models, "_fetch", lambda *_: json.loads(json.dumps(answer)))
    return answer


def targets():
    rows = RouteTarget.objects.filter(model__is_active=True).values_list("rule__name", "model__name")
    return {rule: {model for name, model in rows if name == rule} for rule, _ in rows}


def test_all_four_are_published_with_prices_and_routes(found):
    first = add_first_models()
    assert (set(first.added), first.missing) == ({CHAT, VECTORS, DESK, LABELS}, {})
    book = catalogue.load()
    assert {name: (sorted(one.kinds), one.base) for name, one in book.models.items()} == {
        CHAT: (["chat"], ""),
        VECTORS: (["embedding"], ""),
        LABELS: (["classification"], ""),
        DESK: (["chat"], CHAT),
    }
    prices = prices_at(timezone.now())
    rates = {name: prices[one.rate_card].tiers[0].rates["input"] for name, one in book.models.items()}
    assert rates == {CHAT: 10_000_000, VECTORS: 2_000_000, LABELS: 3_700_000, DESK: 10_530_000}
    assert targets() == {
        "embeddings": {VECTORS},
        "classification": {LABELS},
        "labels": {LABELS},
        "fields": {DESK},
        "summaries": {CHAT},
        "programs": {CHAT},
        "talk": {CHAT},
        "general chat": {CHAT},
    }
    assert book.specialists == {LABELS, DESK}


def test_again_changes_nothing(found):
    add_first_models()
    kept = [set(model.objects.values_list("pk", flat=True)) for model in (PublicModel, Adapter, RouteRule, RouteTarget)]
    assert set(add_first_models().added) == {CHAT, VECTORS, DESK, LABELS}
    assert kept == [
        set(model.objects.values_list("pk", flat=True)) for model in (PublicModel, Adapter, RouteRule, RouteTarget)
    ]


def test_what_an_operator_withdrew_stays_withdrawn_and_its_task_goes_to_the_next_best(found):
    add_first_models()
    assert remove_adapter(DESK)
    assert remove_model(LABELS)
    assert add_first_models().missing == {}
    assert set(catalogue.load().models) == {CHAT, VECTORS}
    assert (targets()["labels"], targets()["fields"]) == ({CHAT}, {CHAT})


def test_without_its_base_the_adapter_is_missing_and_says_why(found):
    pairs, found["adapters"] = found["adapters"], []
    add_first_models()
    assert remove_model(CHAT)
    found["adapters"] = pairs
    first = add_first_models()
    assert DESK not in first.added
    assert CHAT in first.missing[DESK]


def test_without_its_weights_the_general_model_does_it_all(found):
    found["adapters"], found["missing"] = [], {DESK: "its weights are not here"}
    del found["models"][2]
    assert add_first_models().missing == {DESK: "its weights are not here"}
    assert {name for models in targets().values() for name in models} == {CHAT, VECTORS}


def test_specialist_that_comes_later_gets_its_task_once_unless_an_operator_gave_that_to_another(found):
    pairs, found["adapters"] = found["adapters"], []
    labels = found["models"].pop(2)
    add_first_models()
    chosen = PublicModel.objects.create(name="chosen", kinds=["chat"], context_length=100, rate_card=CHAT)
    RouteTarget.objects.filter(rule__name="fields").update(model=chosen)
    found["adapters"], found["models"] = pairs, [*found["models"], labels]
    add_first_models()
    assert (targets()["labels"], targets()["fields"], targets()["talk"]) == ({LABELS}, {"chosen"}, {CHAT})
    assert catalogue.load().specialists == {LABELS}
    RouteTarget.objects.filter(rule__name="labels").update(model=PublicModel.objects.get(name=CHAT))
    add_first_models()
    assert targets()["labels"] == {CHAT}


@pytest.mark.parametrize(
    ("task", "unlabelled", "model"),
    [
        ("classify", "", LABELS),
        ("classify", "no labels", CHAT),
        ("extract", "", DESK),
        ("summarize", "", CHAT),
        ("code", "", CHAT),
        ("chat", "", CHAT),
    ],
)
def test_every_plan_gets_the_specialist_for_its_task(found, task, unlabelled, model):
    from billing.services import plans

    add_first_models()
    book = catalogue.load()
    for slug in plans.DEFAULT_PLANS:
        allowed = frozenset(plans.latest_version(slug).allowed_models)
        query = RouteQuery("auto", "chat", slug, "chat", allowed, task=task)
        assert (
            route(query, book, ready, unfit=lambda model, _: unlabelled if model.answers_labels else "").model == model
        )
