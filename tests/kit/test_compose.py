"""docker-compose.yml names only what exists: targets, volumes, commands, options, settings. No engine is needed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
import yaml
from django.core.management import get_commands, load_command_class

from base.heartbeat import REPLACES, VARIABLE
from base.http import open_directly
from deploy.docker import healthy
from operation.backup.secrets import EFFECTIVE
from tests.services.proxies import DEPLOY, Scripted, caddy

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES = COMPOSE["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("sluice-")}

CONDITIONS = {"service_healthy", "service_completed_successfully", "service_started"}


def variables(service):
    return dict(service.get("environment") or {})


def documented():
    return set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))


def words(service):
    """The words of what a service runs."""
    line = [*(service.get("entrypoint") or ["python", "manage.py"]), *service.get("command", [])]
    return " ".join(line).split() if line[0] == "sh" else line


def managed():
    """Every manage.py command that the file names, with its options."""
    for name, service in OURS.items():
        if service.get("entrypoint", [""])[0] == "sh":
            for line in service["command"][0].splitlines():
                for words_after in re.findall(r"manage\.py ([^|&;\\]+)", line):
                    yield name, words_after.split()
        elif "entrypoint" not in service:
            yield name, service["command"]


def interpolated(value, **given):
    """What Compose makes of a value, from within: an empty variable counts as not set."""
    value, before = str(value), ""
    while value != before:
        before = value
        value = re.sub(r"\$\{(\w+):-([^${}]*)\}", lambda found: given.get(found[1]) or found[2], value)
    return value


def by_the_specification(file):
    """What the schema of the Compose specification says of a file, as `check-jsonschema` has it."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=100)


def test_the_file_is_valid_by_the_specification(tmp_path):
    done = by_the_specification(ROOT / "docker-compose.yml")
    assert done.returncode == 0, done.stdout + done.stderr
    wrong = (ROOT / "docker-compose.yml").read_text().replace("stop_grace_period:", "stop_grace_perriod:", 1)
    (tmp_path / "docker-compose.yml").write_text(wrong)
    done = by_the_specification(tmp_path / "docker-compose.yml")
    assert done.returncode == 1
    assert "stop_grace_perriod" in done.stdout


def test_what_services_name_is_there():
    for service in SERVICES.values():
        for other, how in service.get("depends_on", {}).items():
            assert other in SERVICES
            assert how["condition"] in CONDITIONS
            if how["condition"] == "service_healthy":
                assert "test" in SERVICES[other]["healthcheck"], other
            else:
                assert SERVICES[other].get("restart") == "no", other
        assert set(service.get("networks", [])) <= set(COMPOSE["networks"])
        for volume in service.get("volumes", []):
            source = interpolated(volume).partition(":")[0]
            assert (ROOT / source).is_file() if source.startswith("./") else source in COMPOSE["volumes"], volume


def test_all_that_has_to_run_is_there():
    needed = {
        "postgres",
        "redis",
        "setup",
        "gateway-1",
        "gateway-2",
        "control",
        "worker",
        "celery",
        "beat",
        "backup",
        "proxy",
    }
    assert needed <= set(SERVICES)
    assert {name for name, service in SERVICES.items() if service.get("profiles") == ["gpu"]} == {
        "node-gpu",
        "worker-gpu",
    }
    for name, service in SERVICES.items():
        assert "healthcheck" in service, name
    assert not (ROOT / ".env").exists()
    assert "env_file" not in (ROOT / "docker-compose.yml").read_text()


def test_no_log_and_no_service_takes_what_others_need():
    """Docker's own log has no end, and the kernel ends whatever is largest when memory is short."""
    for name, service in SERVICES.items():
        options = service["logging"]["options"]
        assert (service["logging"]["driver"], set(options)) == ("json-file", {"max-size", "max-file"}), name
        assert re.fullmatch(r"\d+[mg]", interpolated(service["mem_limit"])), name
    [memory] = [word for word in SERVICES["redis"]["command"] if word.endswith("mb")]
    assert int(SERVICES["redis"]["mem_limit"][:-1]) >= 2 * int(memory[:-2]), "counters, and copies of what is sent"


@pytest.fixture
def backups(tmp_path):
    """Run the service's script with programs of our own until it rests, and return the lines of `manage.py`."""
    folder, programs = tmp_path / "backups", tmp_path / "programs"
    folder.mkdir()
    programs.mkdir()
    (programs / "python").write_text(
        '#!/bin/sh\necho "$@" >> "$ASKED"\n[ -z "$FAILS" ] && touch "$3/sluice-20260103T032000Z.tar.gz"\n'
    )
    (programs / "sleep").write_text('#!/bin/sh\nkill "$PPID"\n')
    for program in programs.iterdir():
        program.chmod(0o755)
    entry, [script] = SERVICES["backup"]["entrypoint"], SERVICES["backup"]["command"]
    script = script.replace("$$", "$").replace("/var/backups/sluice", str(folder))

    def run(**more):
        asked = tmp_path / "asked"
        asked.write_text("")
        path = f"{programs}:{os.environ['PATH']}"
        subprocess.run([*entry, script], env={"PATH": path, "ASKED": str(asked), **more}, check=False, timeout=100)
        return asked.read_text().splitlines()

    run.folder = folder
    return run


def test_a_backup_is_made_each_day_and_kept_for_two_weeks_outside_what_it_protects(backups):
    old, recent = (backups.folder / f"sluice-2026010{day}T032000Z.tar.gz" for day in (1, 2))
    for archive, days in ((old, 16), (recent, 1)):
        archive.touch()
        os.utime(archive, (time.time() - days * 86_400,) * 2)
    assert backups(FAILS="1") == [f"manage.py backup {backups.folder}"]
    assert old.exists(), "nothing is deleted where none was made"
    assert backups() == [f"manage.py backup {backups.folder}"]
    assert not old.exists()
    assert recent.exists()
    assert backups() == [], "there is one of today"
    [place] = [volume for volume in SERVICES["backup"]["volumes"] if volume.endswith(":/var/backups/sluice")]
    assert interpolated(place) == "backups:/var/backups/sluice"
    assert interpolated(place, SLUICE_BACKUPS="/mnt/elsewhere") == "/mnt/elsewhere:/var/backups/sluice"
    assert all("backups" not in str(service.get("volumes")) for name, service in SERVICES.items() if name != "backup")
    assert re.search(r"install -d -o 10001 [^&]*/var/backups/sluice", (ROOT / "Dockerfile").read_text())


def test_a_container_without_a_recent_backup_is_not_healthy(tmp_path, monkeypatch):
    monkeypatch.setattr(healthy, "BACKUPS", tmp_path)
    assert SERVICES["backup"]["healthcheck"]["test"] == ["CMD", "python", "deploy/docker/healthy.py", "backup"]
    assert not healthy.is_healthy("backup")
    archive = tmp_path / "sluice-20260101T032000Z.tar.gz"
    archive.touch()
    assert healthy.is_healthy("backup")
    os.utime(archive, (time.time() - 27 * 3600,) * 2)
    assert not healthy.is_healthy("backup")


def test_images_are_built_from_targets_that_exist():
    stages = set(re.findall(r"^FROM .* AS ([\w-]+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    arguments = set(re.findall(r"^ARG (\w+)", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    for service in OURS.values():
        assert service["build"]["target"] in stages
        assert set(service["build"].get("args", {})) <= arguments


def test_every_variable_is_a_setting():
    for name, service in OURS.items():
        for variable in variables(service):
            assert variable.removesuffix("_FILE") in documented() | {VARIABLE, REPLACES}, (name, variable)
    text = (ROOT / "docker-compose.yml").read_text()
    asked = set(re.findall(r"\$\{(\w+)", text))
    head = text[: text.index("name: sluice")]
    assert asked == set(re.findall(r"\b(?:SLUICE|TORCH|OTEL)_[A-Z_]+\b", head))
    assert all(f"${{{name}:-" in text for name in asked), "no variable may be needed"
    caddy = set(re.findall(r"\{\$(\w+)", (ROOT / "deploy/Caddyfile").read_text()))
    assert caddy | {"NO_PROXY"} == set(variables(SERVICES["proxy"]))


@pytest.mark.parametrize(
    ("service", "line"), list(managed()), ids=lambda each: each if isinstance(each, str) else each[0]
)
def test_every_command_is_there_and_takes_these_options(service, line):
    command = load_command_class(get_commands()[line[0]], line[0])
    command.create_parser("manage.py", line[0]).parse_args(line[1:])


def test_celery_is_found_where_the_file_says():
    for name in ("celery", "beat"):
        assert words(SERVICES[name])[:4] == ["celery", "-A", "operation", "--quiet"]  # no banner among lines of JSON
        assert SERVICES[name]["restart"] == "unless-stopped"  # it ends when it is silent
        done = subprocess.run(
            [sys.executable, "-m", *words(SERVICES[name])[:5], "--help"],
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        for option in words(SERVICES[name])[5:]:
            if option.startswith("--"):
                assert option.partition("=")[0] in done.stdout


def test_the_volumes_secrets_are_the_ones_that_are_made(tmp_path):
    own, database = tmp_path / "own", tmp_path / "database"
    own.mkdir()
    database.mkdir()
    make = [sys.executable, "deploy/docker/make_secrets.py", str(own), str(database)]
    subprocess.run(make, cwd=ROOT, check=True)
    first = {path.name: path.read_text() for path in [*own.iterdir(), *database.iterdir()]}
    subprocess.run(make, cwd=ROOT, check=True)
    assert first == {path.name: path.read_text() for path in [*own.iterdir(), *database.iterdir()]}
    named = {value for service in OURS.values() for name, value in variables(service).items() if name.endswith("_FILE")}
    assert named == {f"/run/sluice/secrets/{path.name}" for path in own.iterdir()}
    assert {path.stat().st_mode & 0o777 for path in own.iterdir()} == {0o400}
    assert first["password"] in first["database_url"]
    assert len(set(first.values())) == 6
    assert SERVICES["postgres"]["environment"]["POSTGRES_PASSWORD_FILE"].endswith("/password")


def test_a_backups_secrets_take_the_place_of_those_that_were_made(tmp_path):
    own, database, restored = tmp_path / "own", tmp_path / "database", tmp_path / "restored-secrets"
    for folder in (own, database, restored):
        folder.mkdir()
    subprocess.run([sys.executable, "deploy/docker/make_secrets.py", str(own), str(database)], cwd=ROOT, check=True)
    address = (own / "database_url").read_text()
    kept = {variable: f"kept {variable}" for variable in EFFECTIVE}
    for variable, value in {**kept, "SLUICE_GATEWAY_KEY": "others"}.items():
        (restored / variable).write_text(value)
    take = [sys.executable, "deploy/docker/take_secrets.py", str(restored), str(own)]
    said = subprocess.run(take, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    read = {path.name: path.read_text() for path in own.iterdir()}
    assert read == {"database_url": address, **{name.removeprefix("SLUICE_").lower(): kept[name] for name in kept}}
    assert {path.stat().st_mode & 0o777 for path in own.iterdir()} == {0o400}
    assert [path.name for path in restored.iterdir()] == ["SLUICE_GATEWAY_KEY"], "the home's, and no file of these"
    assert f"TO DO: {restored / 'SLUICE_GATEWAY_KEY'}" in said
    (restored / "SLUICE_GATEWAY_KEY").unlink()
    (restored / "SLUICE_SECRET_KEY").write_text("again")
    subprocess.run(take, cwd=ROOT, check=True)
    assert (own / "secret_key").read_text() == "again"
    assert not restored.exists()


def test_only_the_proxy_can_be_reached_and_nothing_of_ours_has_more_rights_than_it_needs():
    assert [name for name, service in SERVICES.items() if "ports" in service] == ["proxy"]
    assert all(port.count(":") >= 1 and ("127.0.0.1" in port) for port in SERVICES["proxy"]["ports"])
    assert COMPOSE["networks"]["inside"]["internal"] is True
    for name in ("postgres", "redis"):
        assert SERVICES[name]["networks"] == ["inside"]
    for name, service in OURS.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name


@pytest.mark.parametrize(
    ("given", "address", "port"),
    [
        ({}, "http://localhost:8000", "8000"),
        ({"SLUICE_PORT": "9000"}, "http://localhost:9000", "9000"),
        ({"SLUICE_PORT": "9000", "SLUICE_BASE_URL": "http://localhost:9000"}, "http://localhost:9000", "9000"),
        ({"SLUICE_BASE_URL": "https://sluice.example.com"}, "https://sluice.example.com", "8000"),
    ],
)
def test_any_port_and_address_may_be_set(given, address, port):
    """Caddy listens where the file publishes and looks, for any host, and gets a public address its certificate."""
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    assert interpolated(variables(OURS["gateway-1"])["SLUICE_BASE_URL"], **given) == address
    proxy = SERVICES["proxy"]
    assert interpolated(proxy["ports"][0], **given) == f"127.0.0.1:{port}:8000"
    assert proxy["healthcheck"]["test"] == ["CMD", "nc", "-z", "127.0.0.1", "8000"]
    own = {name: interpolated(value, **given) for name, value in variables(proxy).items()}
    command = ["caddy", "adapt", "--config", str(DEPLOY / "Caddyfile"), "--adapter", "caddyfile"]
    done = subprocess.run(command, env={**os.environ, **own}, capture_output=True, text=True, check=True)
    servers = {server["listen"][0]: server for server in json.loads(done.stdout)["apps"]["http"]["servers"].values()}
    assert all("host" not in match for route in servers[":8000"]["routes"] for match in route.get("match", []))
    assert "tls_connection_policies" not in servers[":8000"]
    public = [match for route in servers.get(":443", {}).get("routes", []) for match in route["match"]]
    assert public == ([{"host": ["sluice.example.com"]}] if address.startswith("https") else [])


def test_the_proxy_reaches_its_gateways_through_no_other():
    given = variables(SERVICES["proxy"])
    reached = f"{given['SLUICE_GATEWAYS']} {given['SLUICE_CONTROL']}".split()
    assert given["NO_PROXY"].split(",") == [one.partition(":")[0] for one in reached]


@pytest.mark.slow
def test_by_whatever_name_it_is_asked_the_proxy_answers_for_its_gateways(tmp_path):
    """An empty answer of Caddy's own would keep a probe green while no gateway lives."""
    if shutil.which("caddy") is None:
        pytest.skip("caddy is not installed")
    site = interpolated(variables(SERVICES["proxy"])["SLUICE_SITE"]).replace("8000", "{port}")
    with Scripted() as gateway, caddy([gateway.address, gateway.address], tmp_path, site=site) as address:

        def asked(host):
            request = urllib.request.Request(f"{address}/v1/models", headers={"Host": host})
            try:
                with open_directly(request, timeout=100) as answer:
                    return answer.status
            except urllib.error.HTTPError as error:
                return error.code

        hosts = ["localhost:9000", "127.0.0.1:8000", "sluice.example.com"]
        assert [asked(host) for host in hosts] == [200, 200, 200]
        assert len(gateway.seen) == 3
        gateway.stop()
        try:
            assert asked("127.0.0.1:8000") == 503
        finally:
            gateway.__enter__()  # so that it can be stopped once more


@pytest.mark.slow
def test_its_settings_pass_the_checks_of_production(tmp_path):
    own, database = tmp_path / "own", tmp_path / "database"
    own.mkdir()
    database.mkdir()
    subprocess.run([sys.executable, "deploy/docker/make_secrets.py", str(own), str(database)], cwd=ROOT, check=True)
    given = {name: interpolated(value) for name, value in variables(OURS["gateway-1"]).items()}
    given = {name: value.replace("/run/sluice/secrets", str(own)) for name, value in given.items()}
    (own / "database_url").chmod(0o600)
    (own / "database_url").write_text(f"sqlite:///{tmp_path}/books.sqlite3")
    environment = {"PATH": os.environ["PATH"], "SLUICE_HOME": str(tmp_path / "home"), **given}
    for command in (["setup"], ["check", "--fail-level", "ERROR"]):
        done = subprocess.run(
            [sys.executable, "manage.py", *command],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    known = {"sluice.W001", "sluice.W002", "sluice.W003"}  # this machine's address, SQLite here, no mail
    assert set(re.findall(r"sluice\.\w\d+", done.stderr)) <= known
