"""What a worker leaves behind, and who may remove it."""

from __future__ import annotations

import fcntl
import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from base.home import runtime_directory, worker_endpoint
from billing.services import cards
from fleet import worker_specs
from inference.config import WorkerConfig
from operation.serve.following import Following
from routing.models import Adapter, Deployment, PublicModel
from routing.services.catalogue import add_model

ROOT = Path(__file__).parents[2]


@pytest.fixture
def socket_file(settings, tmp_path, monkeypatch):
    monkeypatch.setattr("base.home.tempfile.gettempdir", lambda: str(tmp_path))
    monkeypatch.delenv("SLUICE_RUNTIME_DIR", raising=False)
    settings.SLUICE_HOME = tmp_path
    path = runtime_directory() / "local.sock"
    assert worker_endpoint("local") == f"ipc://{path}"
    path.touch()
    return path


def test_a_killed_workers_socket_is_removed_with_its_folder(socket_file):
    worker_specs.clear_socket("local")
    assert not socket_file.parent.exists()
    worker_specs.clear_socket("local")
    assert not socket_file.parent.exists()


def test_a_running_workers_socket_stays(socket_file, settings):
    lock = os.open(settings.SLUICE_HOME / "worker-local.record.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(lock, fcntl.LOCK_EX)
    worker_specs.clear_socket("local")
    assert socket_file.exists()
    os.close(lock)


def test_another_nodes_socket_and_a_chosen_folder_stay(socket_file, tmp_path, monkeypatch):
    other = socket_file.with_name("n2.sock")
    other.touch()
    worker_specs.clear_socket("local")
    assert other.exists()
    chosen = tmp_path / "run"
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(chosen))
    worker_specs.clear_socket("local")
    assert chosen.is_dir()


@pytest.mark.django_db
def test_a_deployments_rates_are_its_cards_and_no_reason_to_load_it_anew(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    rates = {"input": 10_000_000, "cache_read": 1_000_000, "output": 50_000_000}
    cards.publish("card", {0: rates}, note="")
    row = add_model(name="m", kinds=["chat"], context_length=512, rate_card="card", source="/m")
    (engine,) = worker_specs.worker_spec("local").engines
    assert {name: engine.rates[name] for name in rates} == rates
    assert engine.revision == worker_specs.engine_config(row).revision
    assert worker_specs.fingerprint(worker_specs.worker_spec("local")) == worker_specs.fingerprint(
        replace(worker_specs.worker_spec("local"), engines=())
    )


@pytest.mark.django_db
def test_a_setting_that_cannot_be_is_said_by_its_name(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_KV_SHARE = 0
    with pytest.raises(worker_specs.WorkerSpecError, match="kv_share"):
        worker_specs.worker_spec("local")


@pytest.mark.django_db
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_rows": "32"}, "max_rows is a whole number"),
        ({"teir": "c"}, "there is no option 'teir'"),
        ({"prefill_seconds": -1}, "prefill_seconds is a number"),
        ({"options": {"teir": "c"}}, "options has no 'teir'"),
        ([1], "options are one object"),
        (5, "options are one object"),
    ],
)
def test_a_deployment_that_cannot_be_meant_keeps_no_other_from_its_worker(
    settings, tmp_path, monkeypatch, options, said
):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    sound = add_model(name="sound", kinds=["chat"], context_length=512, rate_card="card", source="/m")
    wrong = add_model(name="wrong", kinds=["chat"], context_length=512, rate_card="card", source="/m")
    before = worker_specs.worker_spec("local")
    Deployment.objects.filter(id=wrong.id).update(options=options)
    spec = worker_specs.worker_spec("local")
    assert [engine.deployment for engine in spec.engines] == [str(sound.id)]
    assert spec.refused[str(wrong.id)].startswith(f"deployment wrong: {said}")
    assert worker_specs.fingerprint(spec) == worker_specs.fingerprint(before)
    worker_specs.save_spec(spec, "local")
    assert WorkerConfig.load(worker_specs.spec_file("local")) == spec


@pytest.mark.django_db
def test_prefixes_are_keyed_by_the_caches_own_secret(settings, tmp_path, monkeypatch):
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    before = worker_specs.worker_spec("local").secret
    settings.SECRET_KEY = settings.SLUICE_KEY_HASH_SECRET = "another"
    assert worker_specs.worker_spec("local").secret == before
    settings.SLUICE_CACHE_SECRET = "another"
    assert worker_specs.worker_spec("local").secret != before


@pytest.mark.django_db
def test_a_nodes_role_may_read_what_its_worker_asks_for_and_nothing_else(
    settings, tmp_path, monkeypatch, django_assert_max_num_queries
):
    """docs/nodes.md names the tables. A role that might read all would read sessions too."""
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    settings.SLUICE_HOME = tmp_path
    cards.publish("card", {0: {"input": 10, "output": 50}}, note="")
    base = add_model(name="m", kinds=["chat"], context_length=512, rate_card="card", source="/m")
    own = PublicModel.objects.create(name="own", kinds=["chat"], context_length=512, rate_card="card")
    Adapter.objects.create(base=base.model, model=own, config={}, rank=4, bytes=1)
    with django_assert_max_num_queries(20) as asked:
        Following("local", pytest.fail).look(None)
    read = {table for one in asked for table in re.findall(r'(?:FROM|JOIN) "(\w+)"', one["sql"])}
    granted = re.search(r"GRANT SELECT ON(.*?)TO sluice_node", (ROOT / "docs/nodes.md").read_text(), re.DOTALL)
    assert granted is not None
    first = {"django_migrations"}  # whether the schema is of its version
    assert set(re.findall(r"\w+", granted[1])) == read | first
