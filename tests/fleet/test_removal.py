"""A model is withdrawn with what stands on it told before and mended: `auto` never answers 400 for want of a target."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from base.errors import ServiceError
from billing.services import cards, plans
from fleet.adapters import add_adapter_folder
from fleet.removal import losses_of, withdraw
from routing import catalogue
from routing.decision import route
from routing.errors import RoutingError
from routing.models import Adapter, ModelAlias, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model, set_alias
from routing.services.defaults import ensure_default_routes
from routing.types import RouteQuery
from tests.fleet.adapters.files import save
from tests.routing.test_decision import ready

pytestmark = pytest.mark.django_db


def add(name, *kinds):
    cards.ensure_card(name, kinds[0])
    return add_model(name=name, kinds=kinds, context_length=512, rate_card=name, source="/m", backend="fake").model


@pytest.fixture
def two(settings, tmp_path, monkeypatch, terms):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    first = add("first", "chat")
    ensure_default_routes()
    return first, add("second", "chat")


def by_auto(allowed=frozenset()):
    return route(RouteQuery("auto", "chat", "business", "chat", allowed, task=""), catalogue.load(), ready).model


def said(*words):
    out = StringIO()
    call_command("models", *words, stdout=out)
    return out.getvalue()


def test_what_auto_stands_on_is_not_withdrawn_silently(two):
    """It was, and each chat of auto was answered 400 no_route beside a model that serves chats."""
    assert by_auto() == "first"
    with pytest.raises(CommandError, match=r"first is not withdrawn\. .*general chat.* --force withdraws it"):
        said("remove", "first")
    assert by_auto() == "first"
    told = said("remove", "first", "--force")
    assert "The rule “general chat” gets second." in told
    assert by_auto() == "second"
    assert "No model serves chat now" in said("remove", "second", "--force")
    with pytest.raises(RoutingError, match="No routing rule"):
        by_auto()


def test_a_rule_that_has_another_model_needs_no_force(two):
    _first, second = two
    RouteTarget.objects.create(rule=RouteRule.objects.get(), model=second)
    assert losses_of("first").rules == ("general chat",)
    assert "first is withdrawn" in said("remove", "first")
    assert by_auto() == "second"
    with pytest.raises(CommandError, match="no model 'first'"):
        said("remove", "first")


def test_all_that_stands_on_it_is_told_and_mended(two, tmp_path, acme):
    base = add_model(name="base", kinds=["chat"], context_length=512, rate_card="first", source="/m").model
    add_adapter_folder(save(tmp_path / "lora"), base="base", name="law")
    set_alias("gpt-4o", "base")
    for name, model in (("own", base), ("legal", PublicModel.objects.get(name="law"))):
        RouteTarget.objects.create(rule=RouteRule.objects.create(name=name, priority=1, task="legal"), model=model)
    plans.publish_version(plans.latest_version("free").plan, allowed_models=["base"])
    acme.key.allowed_models = ["base"]
    acme.key.save()
    losses = losses_of("base")
    assert (losses.empty, losses.adapters, losses.aliases) == (("legal", "own"), ("law",), ("gpt-4o",))
    assert losses.users == "base by plan Free and 1 key"
    with pytest.raises(ServiceError, match=r"own.*law.*gpt-4o.*plan Free and 1 key"):
        withdraw("base", mends=False)
    assert PublicModel.objects.get(name="base").is_active
    told = " ".join(withdraw("base", mends=True))
    assert "“own” gets first" in told
    assert "“legal” gets first" in told  # its adapter's
    assert "law, an adapter of it, is withdrawn" in told
    assert "gpt-4o is no alias any more" in told
    assert "Publish plans anew" in told
    assert not Adapter.objects.exists()
    assert not ModelAlias.objects.exists()
    assert set(catalogue.load().models) == {"first", "second"}
