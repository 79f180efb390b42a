"""What an adapter costs: what its base costs at the time, unless it was given a price list of its own."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest
from django.test import Client
from django.urls import reverse

from billing.models import Hold
from billing.services import cards
from fleet.adapters import add_adapter_folder
from routing import catalogue
from routing.models import PublicModel
from routing.services.catalogue import add_model
from tenancy.models import User
from tests.fleet.adapters.files import save
from tests.gateway.apis.client import ask
from tests.gateway.apis.server import with_runtime
from tests.gateway.world import RATES, assert_books, engine_of, in_database, make_world, opened, settled

pytestmark = pytest.mark.django_db(transaction=True)
DEAR = {0: {name: 3 * rate for name, rate in RATES[0].items()}}


@pytest.fixture
def stored(settings, tmp_path, transactional_db):
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}


def new_version():
    """Publish new prices on the base's list."""
    return cards.publish("fake-card", DEAR).id


def another_list():
    """Give the base another price list."""
    version = cards.publish("dear", DEAR)
    PublicModel.objects.filter(name="fake").update(rate_card="dear")
    return version.id


@pytest.mark.money
@pytest.mark.parametrize("change", [new_version, another_list])
async def test_a_new_price_of_the_base_is_the_adapters_from_the_same_moment_and_no_request_has_two(
    stored, tmp_path, change
):
    """The name of its base's list was copied once, and another list of the base never reached the adapter."""

    def make():
        world = make_world(terms={"adapters": 2}, tokens=8, hang_at=4)
        names = {}
        for name, card in (("own", ""), ("fixed", "its-own")):
            cards.ensure_card("its-own", "chat")
            folder = save(tmp_path / name)
            names[name] = add_adapter_folder(folder, base="fake", name=name, rate_card=card, tenant=world.tenant)
        return world, names

    world, adapters = await in_database(make)
    own, fixed = (f"{world.tenant.slug}/{name}" for name in adapters)
    async with opened(tmp_path) as runtime:
        app, engine = with_runtime(runtime), engine_of(runtime, world)
        engine.options = replace(engine.options, adapters=tuple(str(adapter.id) for adapter in adapters.values()))

        async def chat(model):
            body = {"model": model, "messages": [{"role": "user", "content": "Hello"}]}
            answer = await ask(app, "/v1/chat/completions", body, key=world.secret)
            assert answer.status == 200, answer.body

        begun = asyncio.create_task(chat(own))
        await engine.hanging()
        before = await runtime.catalogue.epoch.current()
        pinned = await in_database(lambda: Hold.objects.get().card_version)
        dear = await in_database(change)
        while await runtime.catalogue.epoch.current() == before:
            await runtime.catalogue.epoch.next()
        engine.release()
        await begun
        for model in (own, "fake", fixed):
            await chat(model)
        await settled(runtime)
    _, records = await in_database(assert_books, world, records=4)
    records.sort(key=lambda record: record.id)
    was, now, base, apart = records
    assert [record.model for record in records] == [own, own, "fake", fixed]
    assert was.card_version == pinned
    assert now.charge > 2 * was.charge
    assert now.card_version == base.card_version == dear != pinned
    assert now.charge == base.charge
    assert apart.card_version not in {pinned, dear}


def test_the_admin_gives_an_adapter_its_bases_list_or_one_of_its_own_and_no_other_model_none(stored, tmp_path, terms):
    cards.ensure_card("general", "chat")
    cards.ensure_card("dear", "chat")
    base = add_model(name="base", kinds=["chat"], context_length=512, rate_card="general", source="/m").model
    law = add_adapter_folder(save(tmp_path / "law"), base="base", name="law").model
    operator = Client()
    user = User.objects.create_superuser("root@example.com")
    operator.force_login(user, backend="django.contrib.auth.backends.ModelBackend")

    def given(model, card):
        data = {"name": model.name, "kinds": ["chat"], "context_length": 512, "rate_card": card, "is_active": "on"}
        answer = operator.post(reverse("admin:routing_publicmodel_change", args=[model.pk]), data)
        errors = answer.context["adminform"].form.errors if answer.status_code == 200 else {}
        listed = operator.get(reverse("admin:routing_publicmodel_changelist")).content.decode()
        return dict(errors).keys(), catalogue.load().models[model.name].rate_card, "general, its base&#x27;s" in listed

    assert given(law, "dear") == (set(), "dear", False)
    assert given(law, "") == (set(), "general", True)
    assert given(base, "") == ({"rate_card"}, "general", True)
