"""Adapters in the catalogue: checked, within the limits of a plan, offered to the workers of their base, withdrawn."""

from __future__ import annotations

import json
import os
import re
import time
from datetime import timedelta
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils import timezone
from structlog.testing import capture_logs

from base.errors import ServiceError
from base.storage import storage
from billing.services import cards, plans
from fleet import adapter_files as files
from fleet import worker_specs
from fleet.adapters import adapters_of, add_adapter_folder, remove_adapter
from fleet.local_models import add_local_model
from fleet.remote_models import add_remote_model
from inference.config import EngineConfig
from inference.sources.adapters import WEIGHTS
from routing import catalogue
from routing.hook import OwnTerms
from routing.models import Adapter, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import add_model, remove_model
from routing.services.defaults import ensure_default_routes
from tenancy.models import CatalogueEpoch, Project
from tenancy.services.tenants import activate_tenant, archive_project, deactivate_tenant
from tests.fleet.adapters.files import save, tensors

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


class KilledError(BaseException):
    """The end of the process."""


def test_tensors_that_no_adapter_has_are_swept_once_they_are_old(tmp_path, base, monkeypatch):
    kept = add_adapter_folder(save(tmp_path / "a"), base="base", name="kept")
    with monkeypatch.context() as dying:
        # Whoever is killed between storing and commit removes nothing.
        dying.setattr(files, "remove", Mock())
        dying.setattr(Adapter, "save", Mock(side_effect=KilledError))
        with pytest.raises(KilledError):
            add_adapter_folder(save(tmp_path / "b"), base="base", name="lost")
    stored = tmp_path / "files" / "adapters"
    stored.joinpath("not-ours").touch()
    assert len(list(stored.iterdir())) == 3
    now = timezone.now()
    assert files.sweep(now + timedelta(hours=1), limit=9) == 0  # it may still be on its way
    assert files.sweep(now + timedelta(days=2), limit=9) == 1
    assert {path.name for path in stored.iterdir()} == {kept.id.hex, "not-ours"}
    assert files.sweep(now + timedelta(days=2), limit=9) == 0


def test_tensors_that_cant_be_removed_delay_no_others(tmp_path, base, monkeypatch):
    stored = tmp_path / "files" / "adapters"
    stored.mkdir(parents=True)
    for _ in range(5):
        (stored / uuid4().hex).touch()
    delete = type(storage()).delete
    refused = []

    def refuse_first(self, name):
        if not refused or name in refused:
            refused.append(name)
            raise PermissionError("not yours")
        delete(self, name)

    monkeypatch.setattr(type(storage()), "delete", refuse_first)
    with capture_logs() as logs:
        assert files.sweep(timezone.now() + timedelta(days=2), limit=9) == 4
    assert [path.name for path in stored.iterdir()] == [Path(refused[0]).name]
    assert [line["name"] for line in logs if line["event"] == "adapter_not_removed"] == refused


def test_a_storage_without_adapters_is_swept_of_nothing():
    assert files.sweep(timezone.now(), limit=9) == 0


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


def test_what_a_killed_process_was_bringing_goes_a_day_later(tmp_path, base):
    add_adapter_folder(save(tmp_path / "a"), base="base", name="law")
    [served] = offered().values()
    old = time.time() - files.FORGOTTEN.total_seconds() - 60
    left, works = (served.parent / name for name in (".left", ".works"))
    for work in (left, works):
        save(work / "adapter")
        for path in (*work.rglob("*"), work):
            os.utime(path, (old, old))
    os.utime(works / "adapter" / WEIGHTS)
    os.utime(served, (old, old))
    assert [*offered().values()] == [served]
    assert {path.name for path in served.parent.iterdir()} == {served.name, ".works"}


def test_one_is_withdrawn_though_its_storage_does_not_answer(tmp_path, monkeypatch):
    adapter = add_adapter_folder(save(tmp_path / "a"), base="base", name="law")

    def unreachable(key):
        raise OSError("no storage")

    monkeypatch.setattr(storage(), "delete", unreachable)
    assert remove_adapter("law")
    assert offered() == {}
    assert "law" not in catalogue.load().models
    assert storage().exists(adapter.key)


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
    assert not remove_adapter("acme/a", OwnTerms(tenant=other.tenant.id))
    assert remove_adapter("acme/a", OwnTerms(tenant=acme.tenant.id))
    assert [adapter.model.name for adapter, _ in adapters_of(OwnTerms(tenant=acme.tenant.id))] == ["acme/b"]
    # A name that another tenant had is not taken over with what was its own.
    PublicModel.objects.filter(name="acme/a").update(tenant=other.tenant)
    with pytest.raises(ServiceError, match="already"):
        add("a")


def test_those_of_a_tenant_that_ended_are_offered_to_no_worker_until_it_is_back(tmp_path, acme):
    subscribe(acme, adapters=1)
    everybodys = add_adapter_folder(save(tmp_path / "law"), base="base", name="law")
    own = add_adapter_folder(save(tmp_path / "own"), base="base", name="own", tenant=acme.tenant)
    deactivate_tenant(tenant=acme.tenant)
    assert offered().keys() == {str(everybodys.id)}
    activate_tenant(tenant=acme.tenant)
    assert offered().keys() == {str(everybodys.id), str(own.id)}


def test_those_of_an_archived_project_take_no_place_and_nobody_is_led_to_them(tmp_path, acme):
    subscribe(acme, adapters=1)
    project = Project.objects.create(tenant=acme.tenant, name="Old")
    own = OwnTerms(most=1, tenant=acme.tenant.id)
    old = add_adapter_folder(save(tmp_path / "old"), base="base", name="old", tenant=acme.tenant)
    PublicModel.objects.filter(name="acme/old").update(project=project)
    assert catalogue.load().models["acme/old"].number == 1
    before = CatalogueEpoch.objects.get().epoch
    archive_project(tenant=acme.tenant, project=project)
    assert CatalogueEpoch.objects.get().epoch > before
    assert "acme/old" not in catalogue.load().models
    new = add_adapter_folder(save(tmp_path / "new"), base="base", name="new", tenant=acme.tenant)
    assert catalogue.load().models["acme/new"].number == 1
    assert offered().keys() == {str(old.id), str(new.id)}, "workers read no projects"
    assert adapters_of(own) == [(new, ""), (old, "Its project is archived.")]
    form = acme.client().get("/keys/new/").content.decode()
    assert ['value="acme/old"' in form, 'value="acme/new"' in form] == [False, True]


def test_the_chat_page_and_the_form_of_keys_show_ones_own_alone_while_the_plan_has_adapters(tmp_path, acme, other):
    for party in (acme, other):
        subscribe(party, adapters=1)
        add_adapter_folder(save(tmp_path / party.tenant.slug), base="base", name="own", tenant=party.tenant)

    def shown(party) -> tuple[set[str], set[str]]:
        found = re.search(
            r'<script id="chat-data" type="application/json">(.*?)</script>',
            party.client().get("/chat/").content.decode(),
        )
        form = party.client().get("/keys/new/").content.decode()
        return (
            {model["id"] for model in json.loads(found[1])["models"]},
            {name for name in ("acme/own", "other/own", "base") if f'value="{name}"' in form},
        )

    assert shown(acme) == ({"auto", "base", "acme/own"}, {"base", "acme/own"})
    assert shown(other) == ({"auto", "base", "other/own"}, {"base", "other/own"})
    subscribe(acme, adapters=0)
    assert shown(acme) == ({"auto", "base"}, {"base"})


def test_the_dry_run_leads_to_ones_own_alone_while_the_plan_has_adapters(tmp_path, acme, other):
    """By its name and by a rule, as requests are led."""
    made = RouteRule.objects.create(name="to all own")
    for party in (acme, other):
        subscribe(party, adapters=1)
        own = add_adapter_folder(save(tmp_path / party.tenant.slug), base="base", name="own", tenant=party.tenant)
        RouteTarget.objects.create(rule=made, model=own.model)
    RouteTarget.objects.create(rule=made, model=PublicModel.objects.get(name="base"), is_fallback=True)

    def led(party, model) -> str:
        answer = Client().post(
            "/api/v1/routes/explain/", {"model": model}, content_type="application/json", headers=party.bearer
        )
        body = answer.json()
        return body["model"] if answer.status_code == 200 else body["error"]["code"]

    names = ("acme/own", "other/own", "auto")
    assert [led(acme, name) for name in names] == ["acme/own", "model_not_found", "acme/own"]
    assert [led(other, name) for name in names] == ["model_not_found", "other/own", "other/own"]
    subscribe(acme, adapters=0)
    assert [led(acme, name) for name in names] == ["adapter_not_served", "model_not_found", "base"]


def test_no_rule_is_made_for_all_that_leads_to_a_tenants_own(tmp_path, acme):
    subscribe(acme, adapters=1)
    own = add_adapter_folder(save(tmp_path / "a"), base="base", name="own", tenant=acme.tenant)
    ensure_default_routes()
    [rule] = catalogue.load().rules
    assert (own.model.name < "base", rule.targets) == (True, (("base", 1),))
    RouteTarget.objects.all().delete()
    remove_model("base")
    ensure_default_routes()
    assert not RouteTarget.objects.exists()


def test_a_tenants_names_are_bounded_and_may_be_had_again(tmp_path, acme, monkeypatch):
    """Each stays in the catalogue when its model is withdrawn."""
    monkeypatch.setattr("fleet.adapters.MOST_NAMES", 2)
    subscribe(acme, adapters=1)

    def had(name) -> None:
        add_adapter_folder(save(tmp_path / name), base="base", name=name, tenant=acme.tenant)
        remove_adapter(f"acme/{name}", OwnTerms(tenant=acme.tenant.id))

    had("a")
    had("b")
    with pytest.raises(ServiceError, match="2 names") as caught:
        had("c")
    assert caught.value.field == "name"
    had("a")
    assert PublicModel.objects.filter(tenant=acme.tenant).count() == 2
    add_adapter_folder(save(tmp_path / "law"), base="base", name="law")  # an operator's own are not counted


def test_an_operators_model_takes_over_no_name_of_an_adapter_or_a_tenant(tmp_path, acme, monkeypatch):
    subscribe(acme, adapters=1)
    add_adapter_folder(save(tmp_path / "law"), base="base", name="law")
    add_adapter_folder(save(tmp_path / "own"), base="base", name="own", tenant=acme.tenant)
    found = {"name": "x", "folder": "/m", "kinds": ["chat"], "context_length": 512}
    monkeypatch.setattr("fleet.local_models._fetch", lambda *_: found)
    trial = SimpleNamespace(vector_width=0)
    tried = SimpleNamespace(info=SimpleNamespace(max_context=512), trials=(trial,))
    monkeypatch.setattr("fleet.remote_models.try_remote", lambda _: tried)

    def assert_refused(name: str) -> None:
        with pytest.raises(ServiceError) as local:
            add_local_model(source="/x", name=name)
        with pytest.raises(ServiceError) as remote:
            add_remote_model(address="https://192.0.2.1/v1", dialect="vllm", model="x", name=name)
        assert (local.value.field, remote.value.field) == ("name", "name")

    assert_refused("law")
    assert_refused("acme/own")
    remove_adapter("acme/own")
    assert_refused("acme/own")
    assert PublicModel.objects.get(name="acme/own").tenant == acme.tenant
    remove_adapter("law")
    assert add_local_model(source="/x", name="law").model.name == "law"


def test_what_an_operator_put_out_of_use_stays_so(tmp_path, acme):
    subscribe(acme, adapters=2)
    own = add_adapter_folder(save(tmp_path / "a"), base="base", name="own", tenant=acme.tenant)
    PublicModel.objects.filter(id=own.model_id).update(is_active=False)
    with pytest.raises(ServiceError, match="already") as caught:
        add_adapter_folder(save(tmp_path / "b"), base="base", name="own", tenant=acme.tenant)
    assert caught.value.field == "name"
    assert len(storage().listdir("adapters")[1]) == 1


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_config_that_no_database_keeps_is_refused(tmp_path, number):
    folder = save(tmp_path / "a", lora_dropout=number)
    with pytest.raises(ServiceError, match="not finite") as caught:
        add_adapter_folder(folder, base="base", name="law")
    assert caught.value.field == "config"


def test_a_name_that_is_had_again_has_nothing_of_the_first(tmp_path, acme):
    """Requests, prefixes and folders know an adapter by its id."""
    subscribe(acme, adapters=1)
    ids, contents = [], []
    for content in (1, 2):
        folder = save(tmp_path / "a", weights=tensors(content=content))
        add_adapter_folder(folder, base="base", name="own", tenant=acme.tenant)
        [(identifier, offered_at)] = offered().items()
        [entry] = catalogue.load().deployments["acme/own"]
        assert entry.adapter == identifier
        ids.append(identifier)
        contents.append(offered_at.joinpath("adapter_model.safetensors").read_bytes())
        assert remove_adapter("acme/own", OwnTerms(tenant=acme.tenant.id))
    assert len(set(ids)) == len(set(contents)) == 2


def test_the_command_makes_lists_and_withdraws_adapters(tmp_path, acme, base):
    def said(*arguments: str) -> str:
        out = StringIO()
        call_command("models", *arguments, stdout=out)
        return out.getvalue()

    subscribe(acme, adapters=1)
    folder = save(tmp_path / "law")
    assert "in the catalogue: law, rank 2" in said("add", str(folder), "--adapter-of", "base")
    told = said("add", str(folder), "--adapter-of", "base", "--name", "own", "--tenant", "acme")
    assert "in the catalogue: acme/own, rank 2" in told
    models = catalogue.load().models
    assert (models["law"].tenant, models["acme/own"].tenant) == (None, acme.tenant.id)
    listed = said("list")
    assert "law  adapter of base, rank 2\n" in listed
    assert "acme/own  adapter of base, rank 2  only acme\n" in listed
    for arguments, says in (
        (("--adapter-of", "base", "--tenant", "nobody"), "there is no tenant 'nobody'"),
        (("--adapter-of", "nobody"), "base: There is no model 'nobody'"),
        (("--adapter-of", "base", "--name", "other", "--tenant", "acme"), "base: You have 1 adapters"),
        (("--tenant", "acme"), "--tenant is for adapters"),
    ):
        with pytest.raises(CommandError, match=says):
            said("add", str(folder), *arguments)
    assert "acme/own is withdrawn" in said("remove", "acme/own")
    assert "acme/own" not in catalogue.load().models
    with pytest.raises(CommandError, match="no model 'acme/own'"):
        said("remove", "acme/own")


def test_an_adapter_whose_tensors_were_lost_is_refused_until_they_are_back(tmp_path):
    """It stayed "loading" for its tenant and its operator, for ever."""
    lost = add_adapter_folder(save(tmp_path / "a"), base="base", name="lost")
    kept = add_adapter_folder(save(tmp_path / "b"), base="base", name="kept")
    storage().delete(lost.key)
    folders = offered()
    assert folders[str(kept.id)].is_dir()
    assert not folders[str(lost.id)].exists(), "which the worker refuses"
    files.put(lost, tmp_path / "a" / WEIGHTS)
    assert offered()[str(lost.id)] not in folders.values(), "the worker reads another folder anew"
    assert offered()[str(lost.id)].is_dir()


def test_a_storage_that_does_not_answer_keeps_no_adapter_from_being_served(tmp_path, monkeypatch):
    class AwayError(Exception):
        """What the client of an object store raises, which is no OSError."""

    def fails(*_):
        raise AwayError

    kept = add_adapter_folder(save(tmp_path / "b"), base="base", name="kept")
    assert offered().keys() == {str(kept.id)}, "brought to this machine"
    add_adapter_folder(save(tmp_path / "a"), base="base", name="away")
    monkeypatch.setattr(storage(), "open", fails)
    assert offered().keys() == {str(kept.id)}
