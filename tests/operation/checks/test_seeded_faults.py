"""Each seeded fault is found by exactly its check, and the way out that it names makes the installation well again.

A fault is a generator: it breaks something and yields, and is sent the first way out, by which it mends it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import closing, suppress
from datetime import timedelta
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from django.core.files.storage import FileSystemStorage
from django.db import connection
from django.utils import timezone

from base import clock, home
from base.checks import Check, Severity, command
from base.sealing import seal
from billing import triggers
from billing.models import OutboxEvent, Plan, Reconciliation, Subscription
from billing.services import plans
from billing.services.plan_models import include_models, move_subscribers
from gateway.runtime.gateway_lock import KEY
from gateway.runtime.models import Observation, TaskState
from operation.checks import checks, database, machine
from operation.checks.checks import CHECKS
from operation.jobs import states
from routing.models import Deployment, Node, PublicModel
from routing.services.catalogue import add_model, remove_model, set_alias
from tenancy.models import OutgoingMail
from tests.operation.checks.well import commands, installation, paste
from tests.upstream import MODEL, Upstream, serving_in_thread

FAULTS, SERVER_FAULTS = {}, {}


def fault(check, faults=FAULTS):
    """Name the check that finds the fault."""

    def noted(seed):
        faults[seed.__name__] = (check, seed)
        return seed

    return noted


@pytest.fixture
def well(tmp_path, settings, monkeypatch, redis_server, transactional_db):
    with installation(tmp_path / "home", settings, monkeypatch, redis_server) as found:
        yield found


def proven(well, check, seed):
    """Seed the fault, find its check failing alone, mend it, and find nothing."""
    steps = seed(well)
    next(steps)
    found = well.failing()
    assert list(found) == [check], found
    assert all(found[check])
    with suppress(StopIteration):
        steps.send(found[check][0])
    assert well.failing() == {}


def test_nothing_is_found_where_all_is_well(well):
    assert well.failing() == {}


@fault("home")
def home_read_by_others(well):
    well.home.chmod(0o755)
    paste((yield))


@fault("home")
def home_gone(well):
    """Nothing can be written to it, as to one of another user; but as root, as which tests may run, all can be."""
    moved = well.home.rename(well.home.with_name("moved"))
    well.settings.SLUICE_HOME = well.home
    well.home.parent.joinpath("model").mkdir()
    Deployment.objects.update(source=str(well.home.parent / "model"))
    well.settings.STORAGES = well.settings.STORAGES | {"files": {"BACKEND": f"{__name__}.AnyStorage"}}
    paste((yield))
    shutil.rmtree(moved)


class AnyStorage(FileSystemStorage):
    """A storage that is reached; `Dead` is one that isn't."""

    def __init__(self, location=None):
        super().__init__(location or "/tmp/sluice-any-storage")


NOBODY = 65534


class Dead(FileSystemStorage):
    def _save(self, name, content):
        raise ConnectionError("bucket unreachable")


@fault("disk")
def disk_full(well):
    well.patch.setattr(home, "LEAST_FREE", 2**62)
    paste((yield))
    well.patch.setattr(home, "LEAST_FREE", 1)


@fault("settings")
def environment_mistyped(well):
    well.settings.SLUICE_ENV = "prod"
    assert "development or production" in (yield)
    well.settings.SLUICE_ENV = "test"


@fault("files")
def files_unreachable(well):
    stored = well.settings.STORAGES
    well.settings.STORAGES = stored | {"files": {"BACKEND": f"{__name__}.Dead"}}
    yield
    well.settings.STORAGES = stored


@fault("files")
def files_not_ours_to_write(well):
    """No permission binds root: where tests run as root, the check looks as a user who owns the folder."""
    owner, look = os.getuid() or NOBODY, next(one for one in CHECKS if one.name == "files").look
    with tempfile.TemporaryDirectory(prefix="sluice-files-", dir="/tmp") as folder:
        os.chown(folder, owner, -1)
        Path(folder).chmod(0o500)

        def as_owner(of):
            os.seteuid(owner)
            try:
                return list(look(of))
            finally:
                os.seteuid(os.getuid())

        backend = "django.core.files.storage.FileSystemStorage"
        files = {"BACKEND": backend, "OPTIONS": {"location": folder}}
        well.settings.STORAGES = well.settings.STORAGES | {"files": files}
        looked = Check("files", "", Severity.CRITICAL, as_owner)
        well.patch.setattr(checks, "CHECKS", [looked if one.name == "files" else one for one in CHECKS])
        paste((yield))
        well.settings.STORAGES = well.settings.STORAGES | {"files": files}
        assert well.failing() == {}
        well.patch.setattr(checks, "CHECKS", [one for one in CHECKS if one.name != "files"])


@fault("compiler")
def compiler_missing(well):
    well.patch.setenv("CC", "/nowhere/cc")
    assert "gcc" in (yield)
    well.patch.setenv("CC", "true")


@fault("engine")
def package_missing(well):
    find = machine.find_spec
    well.patch.setattr(machine, "find_spec", lambda name: None if name == "torch" else find(name))
    assert commands((yield)) == ["make setup"]
    well.patch.setattr(machine, "find_spec", find)


@fault("database")
def database_unreachable(well):
    connection.close()
    name = connection.settings_dict["NAME"]
    (well.home / "letter").write_text("no database")
    well.patch.setitem(connection.settings_dict, "NAME", str(well.home / "letter"))
    assert "DATABASE_URL" in (yield)
    well.patch.setitem(connection.settings_dict, "NAME", name)


@fault("schema")
def migration_not_applied(well):
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE gateway_observation")
        cursor.execute("DELETE FROM django_migrations WHERE app = 'gateway' AND name LIKE '%%observations'")
    paste((yield))
    well.gateway()


@fault("schema")
def database_newer_than_the_code(well):
    with connection.cursor() as cursor:
        cursor.execute("INSERT INTO django_migrations (app, name, applied) VALUES ('gateway', '0999_x', '2026-01-01')")
        assert "start that version" in (yield)
        cursor.execute("DELETE FROM django_migrations WHERE name = '0999_x'")


@fault("triggers")
def trigger_dropped(well):
    with connection.cursor() as cursor:
        cursor.execute(f"DROP TRIGGER {next(iter(triggers.GUARDED[0].statements('sqlite')))[0]}")
    paste((yield))


@fault("writes")
def database_locked(well):
    well.patch.setattr(database, "WAIT_SECONDS", 0.01)
    with closing(database._connect()) as other:
        other.execute("BEGIN IMMEDIATE")
        connection.close()
        mend = yield
        paste(mend)
        other.execute("ROLLBACK")


@fault("clock")
def clock_apart(well):
    well.patch.setattr(database, "APART", -database.APART)
    assert commands((yield)) == ["timedatectl set-ntp true"]
    well.patch.setattr(database, "APART", -database.APART)


@fault("redis")
def redis_gone(well):
    well.redis.kill()
    yield
    well.redis.start_again()


@fault("redis")
def redis_evicts(well):
    well.redis.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    paste((yield))


@fault("redis")
def redis_full(well):
    well.redis.ask("CONFIG", "SET", "maxmemory", "1")
    paste((yield))


@fault("mail")
def mail_server_gone(well):
    well.smtp.end()
    assert "SLUICE_EMAIL_URL" in (yield)
    well.smtp.begin()


@fault("mail")
def mail_given_up(well):
    mail = OutgoingMail.objects.create(to="a@example.com", subject="x", sealed_text=seal("x"), state="failed")
    OutgoingMail.objects.update(ended_at=timezone.now())
    yield
    mail.delete()


@fault("traces")
def collector_gone(well):
    taken = well.http.answers.pop("/v1/traces")
    yield
    well.http.answers["/v1/traces"] = taken


@fault("data plane")
def data_plane_elsewhere(well):
    well.settings.SLUICE_DATA_PLANE = "http://127.0.0.1:1"
    assert "SLUICE_METRICS_PORT" in (yield)
    well.settings.SLUICE_DATA_PLANE = well.address


@fault("remote engines")
def remote_engine_refuses_its_key(well):
    well.settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with serving_in_thread(Upstream("vllm")) as upstream:
        upstream.key = "right"
        wanted = {"model": MODEL, "dialect": "vllm", "kinds": ["chat"]}
        given = {"kinds": ["chat"], "context_length": 8192, "rate_card": "card", "source": upstream.address}
        row = add_model(name="far", backend="openai", options=wanted, credential=seal("wrong"), **given)
        well.gateway(deployments={"sound": "ready", "far": "ready"})
        yield
        Deployment.objects.filter(pk=row.pk).update(credential=seal("right"))
        assert well.failing() == {}
        remove_model("far")


@fault("backup")
def backup_missing(well):
    well.patch.setattr(machine, "run_checks", lambda **_: [])  # of production's settings
    well.settings.SLUICE_ENV = "production"
    well.settings.SLUICE_BACKUP_HOURS = 1
    old = {"path": str(well.home / "backups" / "old.tar.gz")}
    Observation.objects.create(kind="backup", name="old", facts=old, at=clock.now() - timedelta(hours=2))
    (well.home / "backups").mkdir(mode=0o700)
    paste((yield))


@fault("gateway")
def gateway_not_ready(well):
    ready = well.http.answers["/readyz"]
    well.http.answers["/readyz"] = (503, b'{"checks": {"disk": "nearly full"}}')
    yield
    well.http.answers["/readyz"] = ready


@fault("gateway")
def gateway_gone(well):
    well.settings.OTEL_EXPORTER_OTLP_ENDPOINT = well.settings.SLUICE_DATA_PLANE = ""
    well.http.end()
    assert "manage.py serve" in (yield)
    well.http.begin()


@fault("gateways")
def gateway_of_another_version(well):
    well.gateway("b", version="0.0.9")
    assert "restart" in (yield)
    well.gateway("b")


@fault("gateways")
def gateway_with_a_failing_check(well):
    well.gateway("b", failing={"disk": [["nearly full", "make room"]]})
    assert (yield) == "make room"
    well.gateway("b")


@fault("gateways")
def gateway_that_dies_again_and_again(well):
    for number in range(3):
        well.gateway(f"lost {number}", ago=120 + number, started=200)
    assert commands((yield))[0].startswith("journalctl")
    Observation.objects.filter(name__startswith="lost").update(at=clock.now() - timedelta(hours=1))


@fault("nodes")
def node_silent(well):
    node = Node.objects.create(name="far", address="tcp://127.0.0.1:1", public_key="0" * 40)
    given = {"kinds": ["chat"], "context_length": 512, "rate_card": "card", "source": "/models/big"}
    add_model(name="big", nodes=["far"], **given)
    well.gateway(deployments={"sound": "ready", "big": "ready"})
    [line] = commands((yield))
    assert line.endswith("manage.py worker --node far")
    Node.objects.filter(pk=node.pk).update(seen_at=clock.now())


@fault("models")
def model_ready_nowhere(well):
    Node.objects.create(name="far", address="tcp://127.0.0.1:1", public_key="0" * 40, seen_at=clock.now())
    given = {"kinds": ["chat"], "context_length": 512, "rate_card": "card", "source": "/models/big"}
    add_model(name="big", nodes=["far"], **given)
    well.gateway(deployments={"sound": "ready", "big": "no answer"})
    assert "worker --node far" in (yield)
    well.gateway(deployments={"sound": "ready", "big": "ready"})


@fault("models")
def folder_of_a_model_gone(well):
    well.model.rmdir()
    assert "models add SOURCE --name sound" in (yield)
    well.model.mkdir()


@fault("models")
def options_that_cannot_be_meant(well):
    Deployment.objects.update(options={"tier": "c"})
    yield
    Deployment.objects.update(options={})


@fault("models")
def no_model(well):
    remove_model("sound")
    assert "models add" in (yield)
    PublicModel.objects.update(is_active=True)
    Deployment.objects.update(is_active=True)


@fault("periodic work")
def tasks_late(well):
    well.patch.setattr(states, "_noted", {})
    TaskState.objects.create(name="gateway.mail", succeeded_at=timezone.now() - timedelta(hours=1))
    jobs, once = commands((yield))[0], _once()
    assert f"{jobs} --once" == once.strip("`")
    paste(once)


def _once():
    return command("jobs", "--once")


@fault("periodic work")
def task_failing(well):
    well.patch.setattr(states, "_noted", {})
    TaskState.objects.create(name="gateway.mail", succeeded_at=timezone.now(), failures=3, error="KeyError: x")
    paste((yield))


@fault("periodic work")
def usage_not_summed(well):
    event = OutboxEvent.objects.create(topic="usage", payload={"records": []})
    OutboxEvent.objects.filter(pk=event.pk).update(created_at=timezone.now() - timedelta(hours=1))
    yield
    paste(_once())


@fault("books")
def books_unchecked(well):
    long_ago = timezone.now() - timedelta(days=9)
    Reconciliation.objects.create(started_at=long_ago, finished_at=long_ago, is_running=None, found=0)
    paste((yield))


@fault("old books")
def old_books_unchecked(well):
    long_ago = timezone.now() - timedelta(days=99)
    Reconciliation.objects.create(
        started_at=long_ago,
        finished_at=long_ago,
        is_running=None,
        found=0,
        is_whole=True,
        transfer=0,
        record=UUID(int=0),
    )
    Reconciliation.objects.create(finished_at=timezone.now(), is_running=None, found=0)
    paste((yield))


@fault("books")
def books_wrong(well):
    now = timezone.now()
    Reconciliation.objects.create(started_at=now, finished_at=now, is_running=None, found=3)
    paste((yield))
    Reconciliation.objects.update(found=0)


@fault("secrets")
def key_hash_secret_changed(well):
    former, well.settings.SLUICE_KEY_HASH_SECRET = well.settings.SLUICE_KEY_HASH_SECRET, "another"
    assert "SLUICE_KEY_HASH_FALLBACKS" in (yield)
    well.settings.SLUICE_KEY_HASH_FALLBACKS = [former]


@fault("secrets")
def credential_secret_lost(well):
    well.settings.SLUICE_CREDENTIAL_SECRET, well.settings.SLUICE_CREDENTIAL_FALLBACKS = "another", []
    with suppress(SystemExit):
        paste((yield))


@fault("secrets")
def secret_key_changed(well):
    former, well.settings.SECRET_KEY = well.settings.SECRET_KEY, "another"
    assert "SLUICE_SECRET_KEY_FALLBACKS" in (yield)
    well.settings.SECRET_KEY_FALLBACKS = [former]
    well.settings.SECRET_KEY = former


@fault("auto")
def model_of_auto_removed(well):
    add_model(name="other", kinds=["chat"], context_length=512, rate_card="card", source=str(well.model))
    include_models("free", ["other"])
    move_subscribers("free")
    remove_model("sound")
    paste((yield))


@fault("auto")
def plan_without_the_model_of_auto(well):
    add_model(name="other", kinds=["embedding"], context_length=512, rate_card="card", source=str(well.model))
    plan = Plan.objects.get(slug="free")
    Subscription.objects.update(version=plans.publish_version(plan, allowed_models=["other"]))
    paste((yield))


@fault("aliases")
def alias_of_a_model_gone(well):
    add_model(name="other", kinds=["chat"], context_length=512, rate_card="card", source=str(well.model))
    set_alias("gpt-5", "other")
    remove_model("other")
    paste((yield))


@fault("API keys")
def no_key(well):
    type(well.key).objects.unscoped().update(revoked_at=timezone.now())
    yield
    type(well.key).objects.unscoped().update(revoked_at=None)


IN_EVERY_RUN = (
    *("home_read_by_others", "trigger_dropped", "redis_evicts", "mail_server_gone", "gateway_of_another_version"),
    *("node_silent", "tasks_late", "key_hash_secret_changed", "model_of_auto_removed", "alias_of_a_model_gone"),
)


@pytest.mark.parametrize(
    "name", [pytest.param(one, marks=[] if one in IN_EVERY_RUN else pytest.mark.sweep) for one in FAULTS]
)
def test_a_fault_is_found_and_its_cure_works(well, name):
    proven(well, *FAULTS[name])


@fault("writes", SERVER_FAULTS)
def server_read_only(well):
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on')
    paste((yield))


@fault("connections", SERVER_FAULTS)
def connections_used_up(well):
    name = connection.settings_dict["NAME"]
    with connection.cursor() as cursor:
        cursor.execute(f'ALTER DATABASE "{name}" CONNECTION LIMIT 1')
    paste((yield))


@fault("locks", SERVER_FAULTS)
def lock_held_long(well):
    well.patch.setattr(database, "LONG_SECONDS", 0.0)
    with closing(database._connect()) as other:
        other.execute("LOCK TABLE billing_hold")
        paste((yield))
        with pytest.raises(psycopg.OperationalError):
            other.execute("SELECT 1")


@fault("redis", SERVER_FAULTS)
def gateway_at_another_redis(well):
    with closing(database._connect()) as other:
        other.execute("SELECT pg_advisory_lock_shared(%s, %s)", KEY)
        other.commit()
        assert "REDIS_URL" in (yield)


@pytest.mark.postgresql
@pytest.mark.sweep
@pytest.mark.parametrize("name", SERVER_FAULTS)
def test_a_fault_of_the_server_is_found_and_its_cure_works(well, name, monkeypatch):
    given = connection.settings_dict
    monkeypatch.setenv("DATABASE_URL", f"postgresql://{given['USER']}@{given['HOST']}:{given['PORT']}/{given['NAME']}")
    proven(well, *SERVER_FAULTS[name])
