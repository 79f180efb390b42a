"""The operator's pages of adapters: adding one from its folder, seeing what it is and how it is, withdrawing it."""

import re
from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.test import Client
from django.urls import reverse

from billing.services import cards, plans
from fleet.adapters import add_adapter_folder
from gateway.runtime.data_plane import Live
from gateway.runtime.engines import EngineEntry, Engines
from inference.types import EngineInfo, Health, Kind
from routing import catalogue
from routing.catalogue import NodeEntry, ReplicaEntry
from routing.models import Adapter, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from tenancy.models import User
from tests.fleet.adapters.files import save, tensors

pytestmark = pytest.mark.django_db(transaction=True)
ADD = "admin:routing_publicmodel_add_adapter"
WITHDRAW = "admin:routing_publicmodel_withdraw"


@pytest.fixture(autouse=True)
def base(settings, tmp_path, terms):
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    cards.ensure_card("base", "chat")
    return add_model(name="base", kinds=["chat"], context_length=512, rate_card="base", source="/m").model


@pytest.fixture
def operator(db):
    client = Client()
    user = User.objects.create_superuser("root@example.com")
    client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
    return client


@pytest.fixture
def law(tmp_path):
    return add_adapter_folder(save(tmp_path / "law"), base="base", name="law").model


def change(model):
    return reverse("admin:routing_publicmodel_change", args=[model.pk])


def test_a_folder_is_checked_and_added(operator, tmp_path, acme):
    assert operator.get(reverse(ADD)).status_code == 200
    data = {"folder": str(save(tmp_path / "a")), "base": "base", "name": "own", "tenant": acme.tenant.pk}
    refused = operator.post(reverse(ADD), data)
    assert refused.status_code == 400
    assert set(refused.context["form"].errors) == {"base"}  # that tenant's plan hasn't got it
    response = operator.post(reverse(ADD), {**data, "tenant": ""}, follow=True)
    assert "own is in the catalogue" in response.content.decode()
    assert "adapter of base" in response.content.decode()


@pytest.mark.parametrize(
    ("changes", "at"),
    [
        ({"folder": "/nowhere"}, "folder"),
        ({"name": "a b"}, "name"),
        ({"base": "gone"}, "base"),
        ({"name": "base"}, "name"),
    ],
)
def test_a_mistake_is_told_at_its_field(operator, tmp_path, changes, at):
    data = {"folder": str(save(tmp_path / "a", weights=tensors())), "base": "base", "name": "own", **changes}
    response = operator.post(reverse(ADD), data)
    assert response.status_code == 400
    assert set(response.context["form"].errors) == {at}
    assert not Adapter.objects.exists()


def test_a_model_says_what_serves_it(operator, base, law):
    assert "adapter of base" in operator.get(change(law)).content.decode()
    assert "1 deployment" in operator.get(change(base)).content.decode()


def test_looking_withdraws_nothing(operator, law):
    """A link to it that an operator followed, wherever it stood, withdrew the adapter."""
    rule = RouteRule.objects.create(name="contracts")
    RouteTarget.objects.create(rule=rule, model=law)
    page = operator.get(reverse(WITHDRAW, args=[law.pk]))
    assert Adapter.objects.exists()
    assert "contracts" in page.content.decode()
    response = operator.post(reverse(WITHDRAW, args=[law.pk]), follow=True)
    assert "law is withdrawn" in response.content.decode()
    assert not Adapter.objects.exists()
    assert not PublicModel.objects.get(pk=law.pk).is_active


def test_a_model_is_withdrawn_on_its_page_which_says_who_loses_it(operator, base, law):
    url = reverse(WITHDRAW, args=[base.pk])
    assert url in operator.get(change(base)).content.decode()
    data = {"name": "base", "kinds": ["chat"], "context_length": "512", "rate_card": "base", "description": ""}
    refused = operator.post(change(base), data)
    assert "is_active" in refused.context["adminform"].form.errors
    assert "Adapters of it that are withdrawn too: law." in operator.get(url).content.decode()
    assert PublicModel.objects.get(pk=base.pk).is_active
    done = operator.post(url, follow=True).content.decode()
    assert "base is withdrawn" in done
    assert "law, an adapter of it, is withdrawn" in done
    assert not PublicModel.objects.filter(is_active=True).exists()
    assert operator.post(url).status_code == 403


def test_an_address_of_no_model_leads_back_to_the_list(operator):
    response = operator.get("/admin/routing/publicmodel/nothing/change/", follow=True)
    assert response.redirect_chain
    assert response.status_code == 200
    assert operator.get(reverse(WITHDRAW, args=["nothing"])).status_code == 404


class Nodes:
    """The base on some nodes, as a gateway sees them: by node its health, and why each adapter can't be served."""

    def __init__(self, **nodes):
        self.engines = Engines(metrics=None)
        prices = dict.fromkeys(PublicModel.objects.values_list("rate_card", flat=True))
        self.catalogue = SimpleNamespace(snapshot=SimpleNamespace(catalogue=catalogue.load(), prices=prices))
        (deployment,) = self.catalogue.snapshot.catalogue.deployments["base"]
        for node, (health, adapters) in nodes.items():
            info = (
                None if adapters is None else EngineInfo("d", "base", frozenset({Kind.CHAT}), 9, 9, adapters=adapters)
            )
            replica = ReplicaEntry(uuid4(), NodeEntry(node))
            engine = SimpleNamespace(info=info)
            self.engines._entries[replica.id] = EngineEntry(deployment, replica, None, engine, health=health)


def seen(operator, monkeypatch, model, **nodes):
    """The row and the page of the model as texts, where the base is on these nodes."""
    live = Live(Nodes(**nodes) if nodes else None)
    monkeypatch.setattr("control.admin.catalogue.live_of", lambda _: live)
    rows = operator.get(reverse("admin:routing_publicmodel_changelist")).content.decode().split("<tr>")
    row = next(row for row in rows if str(model.pk) in row)
    return tuple(
        " ".join(re.sub(r"<[^>]+>", " ", one).split()) for one in (row, operator.get(change(model)).content.decode())
    )


def test_the_state_of_a_shared_adapter_and_its_reason_are_shown(operator, monkeypatch, law):
    """An operator saw neither: tenants alone were told of theirs, by the API."""
    name = str(Adapter.objects.get().id)
    up = Health(ready=True, adapters=(name,))
    bad = {name: "a <rank> of 2 is wrong"}
    for nodes, state, reason in (
        ({"a": (up, {name: ""})}, "ready", "in memory"),
        ({"a": (Health(ready=True), {name: ""})}, "ready", "not in memory, read when the next request wants it"),
        ({"a": (up, {})}, "loading", "its worker hasn&#x27;t read it yet"),
        ({"a": (up, bad)}, "refused", "a &lt;rank&gt; of 2 is wrong"),
        ({"a": (Health(ready=False, reason="worker lost"), bad)}, "not ready", "worker lost"),
        ({"a": (up, {name: ""}), "b": (up, bad)}, "ready", "a: in memory; b: a &lt;rank&gt; of 2 is wrong"),
        ({"a": (up, {}), "b": (up, bad)}, "refused", "a: its worker hasn&#x27;t read it yet; b: a &lt;rank&gt;"),
        ({}, "unknown", "no gateway answers"),
    ):
        row, page = seen(operator, monkeypatch, law, **nodes)
        assert f" {state} " in row, nodes
        assert reason in row, nodes
        assert f"{state}: {reason}" in page, nodes
    monkeypatch.setattr("control.admin.catalogue.live_of", lambda _: Live(Nodes()))
    assert "not ready: no engine of base runs" in operator.get(change(law)).content.decode()


def test_one_that_its_tenants_plan_serves_no_more_says_so(operator, monkeypatch, tmp_path, acme):
    subscription = acme.tenant.subscriptions.get()
    for adapters in (1, 0):
        subscription.version = plans.publish_version(subscription.version.plan, adapters=adapters, allowed_models=[])
        subscription.save()
        if adapters:
            own = add_adapter_folder(save(tmp_path / "own"), base="base", name="own", tenant=acme.tenant)
        row, page = seen(operator, monkeypatch, own.model, a=(Health(ready=True), {str(own.id): ""}))
        assert ("not served" in row, "not served: The plan has no room for adapters" in page) == (not adapters,) * 2


def test_a_model_that_is_no_adapter_has_the_state_of_its_deployments(operator, monkeypatch, base):
    monkeypatch.setattr("control.admin.catalogue.live_of", lambda _: Live(Nodes(a=(Health(ready=True), {}))))
    assert "ready" in operator.get(change(base)).content.decode()
    lost = Live(Nodes(a=(Health(ready=False, reason="worker <lost>"), {})))
    monkeypatch.setattr("control.admin.catalogue.live_of", lambda _: lost)
    assert "not ready: worker &lt;lost&gt;" in operator.get(change(base)).content.decode()
    PublicModel.objects.filter(pk=base.pk).update(is_active=False)
    assert "not ready" not in operator.get(change(base)).content.decode()


def test_the_list_takes_as_many_queries_whatever_there_is(operator, tmp_path, django_assert_max_num_queries):
    for number in range(4):
        add_adapter_folder(save(tmp_path / f"a{number}"), base="base", name=f"a{number}")
    with django_assert_max_num_queries(12):
        operator.get(reverse("admin:routing_publicmodel_changelist"))
