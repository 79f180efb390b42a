"""Every process writes lines of one schema, docs/log-line.schema.json."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "docs" / "log-line.schema.json").read_text())

# What each process does first, and then three kinds of lines: our own within a request, a library's, an error's.
SAID = """
import logging, structlog
from gateway.logs import request_bound
with request_bound("0199c0de-5f6a-7b8c-9d0e-1f2a3b4c5d6e") as about:
    about["tenant"] = about["key"] = "0199c0de-5f6a-7b8c-9d0e-1f2a3b4c5d6f"
    structlog.get_logger("gateway.test").warning("ours", model="m", usage={"input": 3})
    structlog.get_logger("gateway.test").info("more")
logging.getLogger("sluice.jobs").warning("theirs %d", 1, extra={"job": "purge"})
try:
    1 / 0
except ZeroDivisionError:
    structlog.get_logger("gateway.test").exception("failed")
"""
SET_UP = "import os, sys, django; sys.argv = {command!r}; django.setup()\n"
# Celery asks its programs' `setup_logging` hook; the class is the one that each program makes.
NO_DATABASE = "import operation.schema; operation.schema.need_database = lambda: None; "
CELERY_WORKER = f"{NO_DATABASE}from operation.celery import app; app.Worker(pool='threads', quiet=True).setup_logging()"
CELERY_BEAT = "from operation.celery import app; app.Beat(quiet=True).setup_logging()"
PROCESSES = {
    "gateway": """from gateway.logs import background, configure_logs
configure_logs(stream=background())
import gateway.asgi  # which sets Django up once more""",
    "serve": "from gateway.logs import configure_logs; configure_logs()",
    "jobs": "from gateway.logs import configure_logs; configure_logs()",
    "celery worker": CELERY_WORKER,
    "celery beat": CELERY_BEAT,
    "migrate": "",  # any command that configures nothing itself
}


def run(program, tmp_path, *given, **options):
    return subprocess.Popen(
        [sys.executable, "-c", program, *given],
        cwd=ROOT,
        env={
            **os.environ,
            "SLUICE_HOME": str(tmp_path),
            "DJANGO_SETTINGS_MODULE": "gateway.settings",
            "REDIS_URL": "redis://127.0.0.1",  # Celery runs with one alone; nothing connects
        },
        text=True,
        **options,
    )


def validated(lines):
    """Return the lines as objects, each of the schema."""
    found = [json.loads(line) for line in lines]
    for line in found:
        jsonschema.validate(line, SCHEMA)
    return found


# A fork has imported the logs before it knows its name.
NAMED = "from gateway import logs; logs._process['process'] = logs.process_name()\n"
# Each program runs in a fork of one process that has imported what takes long, and configured nothing.
FORKING = """
import os, sys
from django.apps import apps
from django.conf import settings
apps.populate(settings.INSTALLED_APPS)
import celery.apps.beat, celery.apps.worker
for path, program in zip(sys.argv[1::2], sys.argv[2::2]):
    if not (child := os.fork()):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT), 2)
        exec(program, {"__name__": "__main__"})
        sys.exit()
    if os.waitpid(child, 0)[1]:
        sys.exit(path)
"""


@pytest.fixture(scope="module")
def said(tmp_path_factory):
    """The lines of each process, by its name."""
    folder, given = tmp_path_factory.mktemp("said"), []
    for process, program in PROCESSES.items():
        words = process.split()
        command = ["celery", "-A", "operation", *words[1:]] if words[0] == "celery" else ["manage.py", process]
        given += [str(folder / process), SET_UP.format(command=command) + NAMED + program + SAID]
    with run(FORKING, folder, *given) as started:
        pass
    assert started.returncode == 0
    return {process: (folder / process).read_text().splitlines() for process in PROCESSES}


@pytest.mark.parametrize("process", PROCESSES)
def test_each_process_writes_the_same_lines(said, process):
    name = process.partition(" ")[0]
    ours, *more, theirs, failed = validated(said[process])
    assert {line["process"] for line in (ours, theirs, failed)} == {name}
    assert [line["event"] for line in more] == (["more"] if PROCESSES[process] else [])  # those that serve say more
    assert ours["request_id"] == "0199c0de-5f6a-7b8c-9d0e-1f2a3b4c5d6e"
    assert ours["tenant"] == ours["key"] == "0199c0de-5f6a-7b8c-9d0e-1f2a3b4c5d6f"
    assert (theirs["event"], theirs["logger"], theirs["job"]) == ("theirs 1", "sluice.jobs", "purge")
    assert "request_id" not in theirs
    assert "ZeroDivisionError" in failed["exception"]


def test_the_workers_lines_are_of_the_schema_too(tmp_path):
    command = [sys.executable, "-m", "inference.worker", "--spec", str(tmp_path / "none.json")]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    [line] = validated(ended.stdout.splitlines())
    assert (line["process"], line["level"]) == ("worker", "critical")


def test_a_gateway_whose_log_nobody_reads_goes_on_and_ends(tmp_path):
    program = SET_UP.format(command=["manage.py", "gateway"]) + PROCESSES["gateway"] + "\nfor _ in range(2000):" + (
        "\n    structlog.get_logger('gateway.test').warning('x' * 1000)"
    ).replace("structlog", "__import__('structlog')") + "\nprint('here', flush=True)"  # fmt: skip
    reading, writing = os.pipe()
    try:
        with run(program, tmp_path, stdout=subprocess.PIPE, stderr=writing) as started:
            assert started.stdout.readline() == "here\n"
        assert started.returncode == 0
    finally:
        os.close(reading)
        os.close(writing)


def test_a_line_of_another_shape_is_refused_by_the_schema():
    line = {"timestamp": "2026-01-01T00:00:00Z", "level": "info", "event": "e", "process": "p", "pid": 1}
    jsonschema.validate(line, SCHEMA)
    for wrong in ({"message": "m"}, {"request_id": "0199"}, {"pid": "1"}, {"timestamp": "now"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({**line, **wrong}, SCHEMA)
