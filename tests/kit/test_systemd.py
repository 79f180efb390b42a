"""The units of deploy/systemd: accepted by systemd, hardened, and running commands that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class

UNITS = Path(__file__).resolve().parents[2] / "deploy/systemd"
SERVICES = sorted(path.name for path in UNITS.glob("*.service"))
ALL = sorted(path.name for path in UNITS.iterdir())
MOST_EXPOSED = 16  # in tenths: systemd's own verdict, where 100 is a service without any bound


@pytest.mark.parametrize("name", SERVICES)
def test_it_runs_a_command_that_exists(name):
    text = (UNITS / name).read_text()
    [line] = re.findall(r"^ExecStart=/opt/sluice/\.venv/bin/python manage\.py (.*)$", text, re.MULTILINE)
    words = line.replace("%i", "8001").split()
    load_command_class(get_commands()[words[0]], words[0]).create_parser("manage.py", words[0]).parse_args(words[1:])
    assert "User=sluice" in text
    assert "EnvironmentFile=/etc/sluice/environment" in text


def test_each_gateway_may_have_a_port_of_its_own_for_its_metrics():
    """What its own file says stands after what all have, so that it counts."""
    text = (UNITS / "sluice-gateway@.service").read_text()
    own = "/etc/sluice/gateway-%i.environment"
    assert re.findall(r"^EnvironmentFile=(.*)$", text, re.MULTILINE) == ["/etc/sluice/environment", f"-{own}"]
    for page in ("operations", "monitoring"):
        assert own.replace("%i", "8001") in (UNITS.parents[1] / f"docs/{page}.md").read_text()


@pytest.mark.parametrize("name", ["sluice.service", "sluice-worker@.service"])
def test_a_worker_may_use_a_gpu_of_older_and_of_newer_drivers(name):
    allowed = set(re.findall(r"^DeviceAllow=char-([\w-]+) rw$", (UNITS / name).read_text(), re.MULTILINE))
    assert allowed == {"nvidia-frontend", "nvidia", "nvidiactl", "nvidia-uvm", "nvidia-caps"}


@pytest.mark.parametrize("name", SERVICES)
def test_no_service_takes_the_memory_of_the_others(name):
    """But what loads models, whose owner knows how large they are."""
    text = (UNITS / name).read_text()
    has_models = name in {"sluice.service", "sluice-worker@.service"}
    assert re.findall(r"^MemoryMax=(.*)$", text, re.MULTILINE) == ([] if has_models else ["2G"])
    assert ("MemoryMax= in a drop-in" in text) == has_models


@pytest.fixture
def analyze():
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")

    def run(*arguments):
        command = ["systemd-analyze", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    return run


def here(name, folder):
    """A copy of the unit whose programs are on this machine; systemd wants an instance of a template."""
    text = (UNITS / name).read_text().replace("/opt/sluice/.venv/bin/python", "/usr/bin/env")
    path = folder / name.replace("@.", "@8001.")
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", ALL)
def test_systemd_accepts_it(analyze, name, tmp_path):
    for each in ALL:
        here(each, tmp_path)
    done = analyze("verify", "--man=no", "--recursive-errors=no", str(here(name, tmp_path)))
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", SERVICES)
def test_it_is_hardened(analyze, name, tmp_path):
    unit = here(name, tmp_path)
    done = analyze("security", "--offline=yes", f"--threshold={MOST_EXPOSED}", "--no-pager", str(unit))
    found = analyze("security", "--offline=yes", "--json=short", str(unit)).stdout
    rows = [(row["json_field"], row["description"]) for row in json.loads(found) if row["set"] is False]
    assert done.returncode == 0, rows
