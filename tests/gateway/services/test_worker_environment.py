"""The environment of processes that run foreign models and never need a secret."""

from __future__ import annotations

import os
import sys

import pytest
from django.core.management import call_command

from gateway.services.worker_environment import fetch_environment

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
    assert environment["PATH"] == os.environ["PATH"]


def test_what_fetches_models_gets_the_hubs_token_and_no_other_secret():
    given = {**SECRETS, "HF_TOKEN": "hub", "HTTPS_PROXY": "http://proxy", "PATH": "/bin"}
    assert fetch_environment(given) == {"HF_TOKEN": "hub", "HTTPS_PROXY": "http://proxy", "PATH": "/bin"}
