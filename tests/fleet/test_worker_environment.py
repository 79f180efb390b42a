"""The environment of processes that run foreign models and never need a secret."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
from django.core.management import call_command

from fleet.worker_specs import fetch_environment
from operation.serve import processes
from operation.serve.supervisor import Supervisor
from routing.models import Node

SECRETS = {
    "DATABASE_URL": "postgresql://sluice:password@db/sluice",
    "SLUICE_SECRET_KEY": "secret",
    "SLUICE_EMAIL_URL": "smtp+tls://user:password@host:587",
    "REDIS_URL": "redis://:password@host",
    "AWS_SECRET_ACCESS_KEY": "secret",
}


@pytest.fixture
def executed(monkeypatch, settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    settings.SLUICE_KERNEL_LEVEL = "avx2"
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    seen = []
    monkeypatch.setattr(os, "execve", lambda *arguments: seen.append(arguments))
    monkeypatch.setattr(os, "chdir", lambda _: None)
    return seen


@pytest.mark.django_db
def test_a_worker_inherits_no_secret(executed, monkeypatch, tmp_path):
    for name, value in {**SECRETS, "HF_TOKEN": "hub", "OMP_NUM_THREADS": "2", "SLUICE_HEARTBEAT": "/tmp/beat"}.items():
        monkeypatch.setenv(name, value)
    call_command("worker")
    [(program, command, environment)] = executed
    assert (program, command[1:3]) == (sys.executable, ["-m", "inference.worker"])
    assert not set(environment) & {*SECRETS, "HF_TOKEN"}
    assert not any("password" in value for value in environment.values())
    assert environment["OMP_NUM_THREADS"] == "2"
    assert environment["SLUICE_HEARTBEAT"] == "/tmp/beat"
    assert environment["SLUICE_HOME"] == str(tmp_path)
    assert environment["SLUICE_KERNEL_LEVEL"] == "avx2"
    assert environment["TRITON_CACHE_DIR"] == str(tmp_path / "cache/triton")
    assert environment["PATH"] == os.environ["PATH"]


def test_what_fetches_models_gets_the_hubs_token_and_no_other_secret():
    given = {**SECRETS, "HF_TOKEN": "hub", "HTTPS_PROXY": "http://proxy", "PATH": "/bin"}
    assert fetch_environment(given) == {"HF_TOKEN": "hub", "HTTPS_PROXY": "http://proxy", "PATH": "/bin"}


@pytest.mark.django_db
@pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that shows processes to each other")
def test_a_nodes_supervisor_hides_its_environment_from_its_worker(monkeypatch, settings, tmp_path):
    """The worker, of the same user, could read the database's address in /proc: of the supervisor, and of each
    start of its successor.
    """
    for name, value in SECRETS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(os, "chdir", lambda _: None)
    monkeypatch.setattr("operation.serve.following.connection", SimpleNamespace(vendor="", close=lambda: None))
    settings.SLUICE_HOME = tmp_path
    monkeypatch.setenv("SLUICE_RUNTIME_DIR", str(tmp_path))
    Node.objects.create(name="far", address="tcp://127.0.0.1:1", public_key="k" * 40)
    prctl = ctypes.CDLL(None).prctl
    is_readable, started, get, put = [], [], 3, 4

    def run(supervisor):
        is_readable.append(prctl(get, 0, 0, 0, 0))
        monkeypatch.setattr(subprocess, "Popen", lambda command, env, **_: started.append((command, env)))
        [child] = supervisor._children.values()
        processes.spawn(child.spec, 0.0)

    monkeypatch.setattr(Supervisor, "run", run)
    try:
        with pytest.raises(SystemExit):
            call_command("worker", "--node", "far")
    finally:
        prctl(put, 1, 0, 0, 0)
    assert is_readable == [0]
    [(command, environment)] = started
    assert command[1:] == ["-m", "inference.worker", "--spec", str(tmp_path / "worker-far.json")]
    assert not set(environment) & set(SECRETS)
    assert (tmp_path / "worker-far.json").exists()
