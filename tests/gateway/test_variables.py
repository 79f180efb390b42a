"""Every variable of docs/settings.md: the same from a file as from the environment, and not set where it is empty."""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path

import pytest

from base import home

ROOT = Path(__file__).resolve().parents[2]
DEFAULTS = dict(re.findall(r"^\| `([A-Z_]+)` \| (?:`([^`]*)`)?", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
TRIED = {
    "SLUICE_HOME": "/nowhere/sluice",
    "SLUICE_ENV": "production",
    "SLUICE_SECRET_KEY_FALLBACKS": "older, oldest",
    "SLUICE_KEY_HASH_FALLBACKS": "older, oldest",
    "SLUICE_CREDENTIAL_FALLBACKS": "older, oldest",
    "SLUICE_GATEWAY_KEY": "k" * 40,
    "SLUICE_KV_SHARE": "0.5",
    "SLUICE_TASKS": "chat, sing",
    "SLUICE_REMOTE_NETWORKS": "192.0.2.0/24",
    "SLUICE_BASE_URL": "https://sluice.example",
    "SLUICE_DATA_PLANE": "http://10.0.0.3:9000",
    "SLUICE_ALLOWED_HOSTS": "a.example, b.example",
    "SLUICE_TRUSTED_ORIGINS": "https://a.example, https://b.example",
    "SLUICE_PROXIES": "192.0.2.1, 192.0.2.2",
    "OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318",
    "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://traces.example/own/",
    "SLUICE_TRACE_SHARE": "0.5",
    "SLUICE_CORS_ORIGINS": "https://a.example, https://b.example",
    "SLUICE_FILES_STORAGE": "storages.backends.s3.S3Storage",
    "SLUICE_FILES_OPTIONS": '{"bucket_name": "sluice"}',
    "SLUICE_AUDIT_DAYS": "400",
    "DATABASE_URL": "postgresql://user:password@host:5432/name",
    "SLUICE_DIRECT_DATABASE_URL": "postgresql://user:password@server:5432/name",
    "REDIS_URL": "redis://host:6379/0",
    "SLUICE_REDIS_SECONDS": "0.1",
    "SLUICE_CREDIT_PACKS": "10.00 EUR = 1000",
    "SLUICE_DISPUTE_FREEZES": "grant",
    "SLUICE_EMAIL_URL": "smtp+tls://user:password@host:587",
}
"""Values of variables for which `tried` makes none."""


def tried(name):
    """A value of the variable that isn't its default."""
    default = DEFAULTS[name]
    if name in TRIED:
        return TRIED[name]
    if default in {"true", "false"}:
        return "true" if default == "false" else "false"
    if re.fullmatch(r"\d+(/\w+)?", default):
        return re.sub(r"\d+", lambda number: str(int(number[0]) + 1), default)
    if re.fullmatch(r"0\.\d+", default):
        return str(float(default) * 2)
    return "given"


@pytest.fixture
def read(monkeypatch, tmp_path):
    """Read the settings of an environment in which these variables alone are set."""
    for name in os.environ:
        if name.removesuffix("_FILE") in DEFAULTS:
            monkeypatch.delenv(name)
    monkeypatch.setattr(Path, "mkdir", lambda *_, **__: None)  # a home of the defaults isn't this test's to make
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv("SLUICE_SECRET_KEY", "one")  # else one is made there

    def reading(**variables):
        with pytest.MonkeyPatch.context() as given:
            for name, value in variables.items():
                if value is None:
                    given.delenv(name, raising=False)
                else:
                    given.setenv(name, value)
            found = runpy.run_path(str(ROOT / "gateway/settings.py"))
            settings = {name: value for name, value in found.items() if name.isupper()}
            return {**settings, "sockets": home.named_runtime_directory()}

    return reading


def more(name):
    """What else has to be set for the variable to be looked at."""
    of_servers = ("SLUICE_DATABASE_POOL", "SLUICE_DIRECT_DATABASE_URL")
    return {"DATABASE_URL": TRIED["DATABASE_URL"]} if name in of_servers else {}


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_variable_from_a_file_is_the_same(read, tmp_path, name):
    file = tmp_path / "value"
    file.write_text(f"{tried(name)}\n")
    from_file = read(**more(name), **{name: None, f"{name}_FILE": str(file)})
    assert from_file == read(**more(name), **{name: tried(name)})
    if name not in ("SLUICE_HOME", "SLUICE_SECRET_KEY"):  # which have a value here in any case
        assert from_file != read(**more(name))


@pytest.mark.parametrize("name", sorted(DEFAULTS.keys() - {"SLUICE_SECRET_KEY"}))
def test_an_empty_variable_is_not_set(read, tmp_path, name):
    """But for the secret, of which another one would be made."""
    file = tmp_path / "value"
    file.write_text("\n")
    expected = read(**more(name), **{name: None})
    assert read(**more(name), **{name: ""}) == expected
    assert read(**more(name), **{name: None, f"{name}_FILE": str(file)}) == expected
