"""Adapters in the catalogue: checked, within the limits of a plan, offered to the workers of their base, withdrawn."""

from __future__ import annotations

from pathlib import Path

import pytest

from billing.services import cards, plans
from gateway.errors.service import ServiceError
from gateway.files.storage import storage
from gateway.services import worker_specs
from gateway.services.adapters import adapters_of, add_adapter_folder, remove_adapter
from inference.config import EngineConfig
from routing import catalogue
from routing.models import Adapter, PublicModel
from routing.services.catalogue import add_model, remove_model
from tests.gateway.adapters.files import save, tensors

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def base(settings, tmp_path, monkeypatch, terms):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    cards.ensure_card("base", "chat")
    return add_model(name="base", kinds=["chat"], context_length=512, rate_card="base", source="/m")


def subscribe(party, **terms):
    """Give the plan of the party's tenant a version with these terms."""
    subscription = party.tenant.subscriptions.get()
    subscription.version = plans.publish_version(subscription.version.plan, allowed_models=[], **terms)
    subscription.save()


def offered() -> dict[str, Path]:
    [engine] = worker_specs.worker_spec("local").engines
    return {name: Path(folder) for name, folder in engine.adapters.items()}


def test_a_folder_becomes_a_model_and_is_offered_where_its_base_is_placed(tmp_path, base):
    weights = tensors(content=7)
    adapter = add_adapter_folder(save(tmp_path / "a", weights=weights), base="base", name="law")
    assert (adapter.rank, adapter.bytes) == (2, len(weights))
    [(identifier, folder)] = offered().items()
    assert identifier == str(adapter.id)
    assert folder.joinpath("adapter_model.safetensors").read_bytes() == weights
    before = folder.stat().st_ino
    assert offered()[identifier].stat().st_ino == before
    found = catalogue.load()
    entry = found.models["law"]
    assert (entry.base, entry.rate_card, entry.context_length, entry.tenant) == ("base", "base", 512, None)
    [law], [plain] = found.deployments["law"], found.deployments["base"]
    assert (law.id, law.replicas, law.adapter, plain.adapter) == (base.id, plain.replicas, str(adapter.id), "")
    assert found.all_deployments() == (plain,)
    assert found.engine_of("law") == "base"
    # Adapters are no reason to load their base anew.
    config = EngineConfig("d", "/m")
    assert EngineConfig("d", "/m", adapters={"a": "/f"}).revision == config.revision


def test_a_withdrawn_one_leaves_nothing_but_its_name(tmp_path, base):
    for _ in range(2):  # and its name may be had again
        adapter = add_adapter_folder(save(tmp_path / "a"), base="base", name="law")
        [folder] = offered().values()
        assert remove_adapter("law")
        assert not remove_adapter("law")
        assert offered() == {}
        assert not folder.exists()
        assert not storage().exists(adapter.key)
        assert "law" not in catalogue.load().models
        assert not Adapter.objects.exists()


def test_with_its_base_it_is_withdrawn_and_back(tmp_path, base):
    add_adapter_folder(save(tmp_path / "a"), base="base", name="law")
    remove_model("base")
    assert catalogue.load().models == {}
    add_model(name="base", kinds=["chat"], context_length=512, rate_card="base", source="/m")
    assert "law" in catalogue.load().models


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"name": "a b"}, "name", "letters"),
        ({"name": "base"}, "name", "already"),
        ({"base": "nobody"}, "base", "no model"),
        ({"base": "vectors"}, "base", "no chat model"),
        ({"base": "first"}, "base", "no model"),
        ({"config": {"use_dora": True}}, "config", "use_dora"),
        ({"config": {"r": 129}}, "config", "128"),
        ({"config": {"r": 4}}, "file_id", "rank 4"),
        ({"config": {"target_modules": ["k_proj"]}}, "file_id", "not among target_modules"),
        ({"weights": b"\x80\x04pickle"}, "file_id", "safetensors"),
        ({"weights": tensors()[:-1]}, "file_id", "shape"),
        ({"weights": tensors(module="lm_head")}, "file_id", "no low-rank pair"),
    ],
)
def test_what_cannot_be_served_is_refused_with_its_field(tmp_path, changes, field, says):
    add_model(name="vectors", kinds=["embedding"], context_length=512, rate_card="base", source="/e")
    add_adapter_folder(save(tmp_path / "first"), base="base", name="first")
    config, weights = changes.pop("config", {}), changes.pop("weights", None)
    folder = save(tmp_path / "a", weights=weights, **config)
    with pytest.raises(ServiceError, match=says) as caught:
        add_adapter_folder(folder, **{"base": "base", "name": "law", **changes})
    assert caught.value.field == field
    assert Adapter.objects.count() == 1
    assert len(storage().listdir("adapters")[1]) == 1


def test_a_tenants_own_are_within_the_terms_of_its_plan(tmp_path, acme, other, settings):
    def add(name, party=acme, **changes):
        weights = tensors(changes.get("r", 2))
        folder = save(tmp_path / name, weights=weights, **changes)
        return add_adapter_folder(folder, base="base", name=name, tenant=party.tenant)

    subscribe(acme, adapters=0)
    with pytest.raises(ServiceError, match="doesn't include adapters"):
        add("a")
    subscribe(acme, adapters=2)
    settings.SLUICE_MOST_ADAPTER_RANK = 8
    with pytest.raises(ServiceError, match="at most 8"):
        add("a", r=9)
    assert add("a").model.name == "acme/a"
    settings.SLUICE_MOST_ADAPTER_BYTES = 600
    with pytest.raises(ServiceError, match="600 bytes together"):
        add("b")
    settings.SLUICE_MOST_ADAPTER_BYTES = 6000
    add("b")
    with pytest.raises(ServiceError, match="You have 2 adapters"):
        add("c")
    subscribe(other, adapters=1)
    assert add("a", other).model.name == "other/a"
    assert not remove_adapter("acme/a", other.tenant)
    assert remove_adapter("acme/a", acme.tenant)
    assert [adapter.model.name for adapter in adapters_of(acme.tenant)] == ["acme/b"]
    # A name that another tenant had is not taken over with what was its own.
    PublicModel.objects.filter(name="acme/a").update(tenant=other.tenant)
    with pytest.raises(ServiceError, match="already"):
        add("a")


def test_an_adapter_whose_bytes_are_gone_keeps_no_other_from_being_served(tmp_path):
    lost = add_adapter_folder(save(tmp_path / "a"), base="base", name="lost")
    kept = add_adapter_folder(save(tmp_path / "b"), base="base", name="kept")
    storage().delete(lost.key)
    assert offered().keys() == {str(kept.id)}
