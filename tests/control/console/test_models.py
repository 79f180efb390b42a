"""The page of models: those of the plan, what they are for and cost, and where `auto` leads."""

from __future__ import annotations

import re
from types import SimpleNamespace

import pytest
from django.utils import timezone

from base.units import MICRO
from billing.selectors.prices import prices_at
from billing.services import cards, plans
from control.console.catalogue import ModelLine
from fleet.adapters import add_adapter_folder
from gateway.runtime.data_plane import Live
from gateway.runtime.engines import EngineEntry, Engines
from inference.types import EngineInfo, Health, Kind
from routing import catalogue
from routing.models import Adapter, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from routing.services.defaults import ensure_default_routes
from tests.fleet.adapters.files import save

pytestmark = pytest.mark.django_db(transaction=True)
RATES = {"input": 2 * MICRO, "cache_read": MICRO // 2, "output": 8 * MICRO}
HOSTILE = '<img src=x onerror="alert(1)">'


@pytest.fixture(autouse=True)
def files(settings, tmp_path):
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}


def subscribe(party, **terms):
    """Give the plan of the party's tenant a version with these terms."""
    subscription = party.tenant.subscriptions.get()
    subscription.version = plans.publish_version(subscription.version.plan, **terms)
    subscription.save()


def add(name, *kinds, card="general", **options):
    return add_model(name=name, kinds=kinds, context_length=2048, rate_card=card, source="", backend="fake", **options)


def cards_of(response):
    """The page's models by name: the state, the facts by their names, and all of the card's text."""
    found = {}
    for card in re.findall(r'<section class="panel model".*?</section>', response.content.decode(), re.DOTALL):
        name, state = re.search(r"<h2[^>]*>([^<]*)</h2>.*?</svg>([^<]*)<", card, re.DOTALL).groups()
        facts = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", card, re.DOTALL)
        found[name] = (state, {term: text(told) for term, told in facts}, text(card))
    return found


def text(html):
    return " ".join(re.sub(r"<[^>]*>", " ", html).split())


def test_each_model_says_what_it_is_for_what_it_is_made_of_and_what_it_costs(acme, other, tmp_path):
    cards.publish("general", {0: RATES, 4096: {**RATES, "input": 3 * MICRO}})
    add("general", "chat", description="Talks")
    add("labels", "classification", "chat")
    add("hidden", "chat")
    add("sorter", "classification")
    subscribe(acme, adapters=1, allowed_models=["general", "labels", "sorter"])
    subscribe(other, adapters=1, allowed_models=["general"])
    for party in (acme, other):
        folder = save(tmp_path / party.tenant.slug)
        add_adapter_folder(folder, base="general", name="own", tenant=party.tenant)
    found = cards_of(acme.client().get("/models/"))
    assert list(found) == ["acme/own", "general", "labels", "sorter"]
    price = "2 in · 0.5 cached · 8 out from 4,096 tokens on: 3 in · 0.5 cached · 8 out"
    assert found["general"][:2] == ("ready", {"For": "chat", "Context": "2,048 tokens", "Price": price})
    assert "Talks" in found["general"][2]
    assert found["labels"][1]["For"] == "chat, classification"
    assert found["sorter"][1]["For"] == "classification, chats that name labels"
    own = found["acme/own"][1]["Adapter of"]
    assert re.fullmatch(r"general, only yours: rank 2, \d+\sbytes · Withdraw acme/own", own)


def test_each_model_can_be_asked_by_what_is_pasted(acme):
    cards.publish("general", {0: RATES})
    add("general", "chat")
    add("finds", "embedding")
    subscribe(acme, allowed_models=[])
    found = cards_of(acme.client().get("/models/"))
    told = found["general"][2]
    assert "curl http://testserver/v1/chat/completions" in told
    assert "&quot;model&quot;: &quot;general&quot;" in told
    assert "OpenAI(base_url=&quot;http://testserver/v1&quot;" in told
    assert "curl http://testserver/v1/embeddings" in found["finds"][2]
    assert "client.embeddings.create(model=&quot;finds&quot;" in found["finds"][2]


def test_an_adapter_that_the_plan_serves_no_more_is_still_told(acme, tmp_path):
    cards.publish("general", {0: RATES})
    add("general", "chat")
    subscribe(acme, adapters=1, allowed_models=[])
    add_adapter_folder(save(tmp_path / "a"), base="general", name="own", tenant=acme.tenant)
    assert "Not served now" not in acme.client().get("/models/").content.decode()
    subscribe(acme, adapters=0, allowed_models=[])
    response = acme.client().get("/models/")
    assert list(cards_of(response)) == ["general"]
    assert "<dt>acme/own</dt><dd>adapter of general" in response.content.decode()
    assert "The plan has no room for adapters of one&#x27;s own." in response.content.decode()
    subscribe(acme, adapters=1, allowed_models=["other"])
    assert "The plan doesn&#x27;t include general, which" in acme.client().get("/models/").content.decode()
    subscribe(acme, adapters=1, allowed_models=[])
    PublicModel.objects.filter(name="general").update(is_active=False)
    page = acme.client().get("/models/").content.decode()
    assert "No model yet" in page
    assert "<dt>acme/own</dt>" in page
    assert "Its base is not served." in page


def test_an_owner_withdraws_an_adapter_once_that_is_confirmed(acme, other, people, tmp_path):
    cards.publish("general", {0: RATES})
    add("general", "chat")
    subscribe(acme, adapters=1, allowed_models=[])
    adapter = add_adapter_folder(save(tmp_path / "a"), base="general", name="own", tenant=acme.tenant)
    public = add_adapter_folder(save(tmp_path / "b"), base="general", name="public")
    page, url = "/models/", f"/models/{adapter.id}/withdraw/"
    assert url in acme.client().get(page).content.decode()
    assert url not in people("member").get(page).content.decode()
    for client in (people("billing"), other.client()):
        assert client.post(url).status_code == 404
    assert acme.client().post(f"/models/{public.id}/withdraw/").status_code == 404
    assert "acme/own" in acme.client().get(url).content.decode()
    assert Adapter.objects.count() == 2
    response = acme.client().post(url, follow=True)
    assert "acme/own is withdrawn" in response.content.decode()
    assert list(Adapter.objects.all()) == [public]
    assert acme.client().post(url).status_code == 404


def test_what_auto_takes_for_each_task_is_told(acme):
    cards.publish("general", {0: RATES})
    add("general", "chat")
    add("labels", "chat")
    ensure_default_routes()
    subscribe(acme, allowed_models=[])
    rule = RouteRule.objects.create(name="labels first", task="classify", priority=1)
    RouteTarget.objects.create(rule=rule, model_id=add("best", "chat").model_id)
    page = acme.client().get("/models/").content.decode()
    tasks = dict(re.findall(r"<dt>(\w+)</dt><dd>(.*?)</dd>", page.partition('class="columns"')[0]))
    assert "<strong>best</strong>" in tasks["classify"]
    assert "labels first" in tasks["classify"]
    assert "general chat" in tasks["chat"]
    assert "No routing rule gives a model" in tasks["embedding"]


def test_a_tenant_without_models_is_told_so(acme):
    assert "No model yet" in acme.client().get("/models/").content.decode()
    acme.tenant.subscriptions.update(state="ended")
    assert "No model yet" in acme.client().get("/models/").content.decode()


@pytest.mark.parametrize("role", ["admin", "member", "billing"])
def test_every_member_may_see_them(people, role):
    assert people(role).get("/models/").status_code == 200


def test_hostile_names_are_text_and_a_model_without_price_says_so(acme):
    add("plain", "chat", card="none", description=HOSTILE)
    subscribe(acme, allowed_models=[])
    page = acme.client().get("/models/").content.decode()
    assert HOSTILE not in page
    assert "no price yet" in page


@pytest.mark.parametrize(
    ("obstacle", "is_ready", "state"),
    [("", True, "ready"), ("", False, "not ready"), (None, True, "loading"), ("too wide", True, "refused")],
)
def test_an_adapter_is_ready_once_an_engine_has_read_it(obstacle, is_ready, state):
    class Told:
        pass

    offer = Told()
    offer.is_ready = is_ready
    assert ModelLine(offer, None, obstacle, None).state == state


def test_everybody_is_told_how_a_shared_adapter_is(acme, tmp_path, monkeypatch):
    """It was said to be ready while nobody had read it, and when it was refused."""
    cards.publish("general", {0: RATES})
    served = add("general", "chat")
    subscribe(acme, allowed_models=[])
    law = add_adapter_folder(save(tmp_path / "law"), base="general", name="law")
    engines = Engines(metrics=None)
    (entry,) = catalogue.load().deployments["general"]
    engine = SimpleNamespace(info=None)
    engines._entries[served.id] = EngineEntry(entry, entry.replicas[0], None, engine, health=Health(ready=True))
    snapshot = SimpleNamespace(catalogue=catalogue.load(), prices=prices_at(timezone.now()))
    live = Live(SimpleNamespace(engines=engines, catalogue=SimpleNamespace(snapshot=snapshot)))
    monkeypatch.setattr("control.console.catalogue.live_of", lambda _: live)
    monkeypatch.setattr("control.console.catalogue._tasks", lambda *_: iter(()))
    for adapters, state, told in (({}, "loading", ""), ({str(law.id): "it is <bad>"}, "refused", "it is &lt;bad&gt;")):
        engine.info = EngineInfo("d", "general", frozenset({Kind.CHAT}), 9, 9, adapters=adapters)
        found = cards_of(acme.client().get("/models/"))
        assert (found["law"][0], found["general"][0]) == (state, "ready")
        assert told in found["law"][2]
