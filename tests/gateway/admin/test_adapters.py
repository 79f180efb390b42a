"""The operator's pages of adapters: adding one from its folder, seeing what it is, withdrawing it."""

import pytest
from django.test import Client
from django.urls import reverse

from billing.services import cards
from gateway.models import User
from gateway.services.adapters import add_adapter_folder
from routing.models import Adapter, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from tests.gateway.adapters.files import save, tensors

pytestmark = pytest.mark.django_db(transaction=True)
ADD = "admin:routing_publicmodel_add_adapter"
WITHDRAW = "admin:routing_publicmodel_withdraw_adapter"


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


def test_only_an_adapter_can_be_withdrawn(operator, base, law):
    url = reverse(WITHDRAW, args=[law.pk])
    assert url in operator.get(change(law)).content.decode()
    assert reverse(WITHDRAW, args=[base.pk]) not in operator.get(change(base)).content.decode()
    assert operator.post(reverse(WITHDRAW, args=[base.pk])).status_code == 403
    assert PublicModel.objects.get(pk=base.pk).is_active


def test_an_address_of_no_model_leads_back_to_the_list(operator):
    response = operator.get("/admin/routing/publicmodel/nothing/change/", follow=True)
    assert response.redirect_chain
    assert response.status_code == 200
    assert operator.get(reverse(WITHDRAW, args=["nothing"])).status_code == 403
