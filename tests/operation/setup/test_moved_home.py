"""What rows say of models in a home that is moved, copied, or restored elsewhere."""

from __future__ import annotations

import json
import shutil

import pytest

from fleet import local_models
from fleet.worker_specs import engine_config, save_spec, worker_spec
from operation.checks import catalogue
from operation.management.commands.models import _source
from operation.setup.moved_home import take_over
from routing.models import Deployment, Node
from routing.services.catalogue import add_model

pytestmark = [pytest.mark.contract, pytest.mark.django_db]

CHAT = "SmolLM2-135M-Instruct"
HUB = "models/hub/models--Qwen--Qwen3-0.6B/snapshots/" + "a1" * 20
PLACES = (f"models/{CHAT}", HUB, "models/own")


@pytest.fixture
def homes(settings, tmp_path, monkeypatch):
    """A former home, with the folders of its models, and the place of the present one."""
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path / "run"))
    former, present = tmp_path / "former", tmp_path / "present"
    for place in PLACES:
        (former / place).mkdir(parents=True)
    settings.SLUICE_HOME = former
    return former, present


def add(source, name, **more):
    return add_model(name=name, kinds=["chat"], context_length=512, rate_card="card", source=str(source), **more)


def add_absolute(home):
    """Rows as they were before they followed the home."""
    for place in PLACES:
        add(home / place, (home / place).name.lower()[:20] if place != PLACES[0] else CHAT.lower())


def sources():
    return set(Deployment.objects.values_list("source", flat=True))


def served():
    return {engine.source for engine in worker_spec("local").engines}


def below(home):
    return {str(home / place) for place in PLACES}


NAMED = {f"home:{place}" for place in PLACES}


def test_a_model_that_is_added_is_served_from_wherever_the_home_is(homes, settings, monkeypatch):
    former, present = homes
    asked = []
    found = {"name": "own", "folder": str(former / "models/own"), "kinds": ["chat"], "context_length": 512}
    monkeypatch.setattr(local_models, "_fetch", lambda source, *_: asked.append(source) or found)
    row = local_models.add_local_model(source="home:models/own")
    assert asked == [str(former / "models/own")]
    assert row.source == "home:models/own"
    assert _source(row) == engine_config(row).source == str(former / "models/own")
    settings.SLUICE_HOME = present
    assert _source(row) == engine_config(row).source == str(present / "models/own")


def test_a_folder_outside_stays_as_it_is(homes, tmp_path, monkeypatch):
    former, _ = homes
    for place in (tmp_path / "outside", former / "models/../../outside", former.with_name("former-2") / "m"):
        found = {"name": "own", "folder": str(place), "kinds": ["chat"], "context_length": 512}
        monkeypatch.setattr(local_models, "_fetch", lambda *_, found=found: found)
        row = local_models.add_local_model(source="x")
        assert take_over() == []
        row.refresh_from_db()
        assert (row.source, engine_config(row).source) == (str(place), str(place))


def test_rows_of_before_name_the_present_home_once_and_nothing_is_loaded_anew(homes):
    former, _ = homes
    add_absolute(former)
    before = {engine.revision for engine in worker_spec("local").engines}
    assert len(take_over()) == len(PLACES)
    assert sources() == NAMED
    assert served() == below(former)
    assert {engine.revision for engine in worker_spec("local").engines} == before
    assert take_over() == []


@pytest.mark.parametrize("is_left", [False, True], ids=["moved", "copied"])
def test_rows_of_before_follow_a_home(homes, settings, is_left):
    former, present = homes
    add_absolute(former)
    save_spec(worker_spec("local"), "local")
    (shutil.copytree if is_left else shutil.move)(former, present)
    settings.SLUICE_HOME = present
    assert served() == below(former)
    take_over()
    assert sources() == NAMED
    assert served() == below(present)
    assert take_over() == []


@pytest.mark.parametrize("is_left", [False, True], ids=["moved", "copied"])
def test_a_former_home_that_no_file_names_is_known_by_how_models_lie_there(homes, settings, is_left):
    former, present = homes
    add_absolute(former)
    add(former.with_name("elsewhere") / "models/own", "elsewhere")
    (shutil.copytree if is_left else shutil.move)(former, present)
    settings.SLUICE_HOME = present
    take_over()
    assert sources() == {*NAMED, str(former.with_name("elsewhere") / "models/own")}


def test_what_only_another_folder_has_is_served_on_until_this_home_has_it(homes, settings):
    former, present = homes
    add_absolute(former)
    present.mkdir()
    settings.SLUICE_HOME = present
    assert take_over() == []
    assert served() == below(former)
    (present / PLACES[0]).mkdir(parents=True)  # as quickstart makes it
    assert take_over() == [CHAT.lower()]


def test_a_backup_tells_its_home(homes, settings):
    former, present = homes
    add_absolute(former)
    settings.SLUICE_HOME = present
    take_over([former])
    assert sources() == NAMED
    assert served() == below(present)


def test_a_home_in_a_former_one_and_files_that_say_nothing(homes, settings):
    former, _ = homes
    present = former / "present"
    present.mkdir()
    (former / "worker-local.json").write_text(json.dumps({"record": str(former / "worker-local.record")}))
    for name, text in (("worker-a.json", "{"), ("worker-b.json", "[]"), ("worker-c.json", '{"record": "x"}')):
        (present / name).write_text(text)
    add(present / "models/own", "inner")
    settings.SLUICE_HOME = present
    take_over([former])
    assert sources() == {"home:models/own"}


def test_a_path_that_machines_share_stays(homes):
    former, _ = homes
    Node.objects.create(name="far", address="tcp://10.0.0.7:7411", public_key="k" * 40)
    row = add(former / "models/own", "own", nodes=["local", "far"])
    assert take_over() == []
    assert row.source == str(former / "models/own")


def test_the_folder_of_downloads_follows_too(homes, settings):
    former, present = homes
    row = add(former / "models/own", "own", options={"options": {"cache": str(former / "cache"), "tier": "c"}})
    take_over()
    row.refresh_from_db()
    assert row.options == {"options": {"cache": "home:cache", "tier": "c"}}
    settings.SLUICE_HOME = present
    assert engine_config(row).options == {"cache": str(present / "cache"), "tier": "c"}


def test_doctor_names_the_model_that_is_gone_and_what_brings_it_back(homes, settings):
    _, present = homes
    settings.SLUICE_HOME, settings.SLUICE_ENV = present, "development"
    present.mkdir()
    add(f"home:models/{CHAT}", CHAT.lower())
    add(f"home:{HUB}", "qwen")
    add("home:models/own", "own")
    found = {finding.subject: finding.mend for finding in catalogue._models(None)}
    assert "manage.py quickstart`" in found[CHAT.lower()]
    assert "manage.py models add Qwen/Qwen3-0.6B --name qwen`" in found["qwen"]
    assert "put it back there" in found["own"]
    settings.SLUICE_ENV = "production"
    found = {finding.subject: finding.mend for finding in catalogue._models(None)}
    assert "quickstart" not in found[CHAT.lower()]
