"""A careless environment: each wrong value is one error that names its variable, before anything runs with it."""

from __future__ import annotations

import os
import re
import runpy
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
from django.core.exceptions import ImproperlyConfigured

from base.environment import Environment
from gateway.checks import check_files_storage

ROOT = Path(__file__).resolve().parents[2]
NAME = "SLUICE_TRIED"
WRONG = {
    "whole": (7, ["garbage", "-5", "0", "nan", "1e3", "1.5", "10 MB", "9" * 30]),
    "number": (7.5, ["garbage", "-5", "0", "nan", "inf", "10s", "1,5"]),
    "str": ("as it was", []),
    "parts": (["one"], []),
    "switch": (False, ["garbage", "2", "tru"]),
    "rate": ("30/m", ["garbage", "30", "0/m", "-1/m", "30/fortnight", "30/minute/ip", "nan/m"]),
    "address": ("http://x", ["garbage", "sluice.example", "ftp://x", "https://", "https://x/?a=b", "http://["]),
    "networks": (["::1"], ["garbage", "10.0.0.0/33", "10.0.0.1/8", ","]),
    "origins": (None, ["garbage", "https://app.example/", "https://app.example/page"]),
    "mail": ("consolemail://", ["garbage", "nan", "smpt://x"]),
    "options": ({}, ["garbage", '{"secret_key": "hidden"', '["hidden"]']),
    "redis": (None, ["garbage", "redis//:hidden@host:6379/0", "redis://:hidden@host:63x79/0", "redis://:hid/den@host"]),
    "curve_key": (None, ["garbage", "hidden" * 7]),
    "database": (
        "sqlite:////tmp/sluice",
        ["garbage", "postgresql//u:hidden@h/n", "postgresql://u:hid/den@h/n", "postgresql://u:hidden@h", "mysql://h/n"],
    ),
}
SECRET = ("options", "redis", "curve_key", "database")


@pytest.fixture
def read(monkeypatch):
    """Return a function that reads a value as a kind of variable."""

    def reading(kind, value):
        monkeypatch.setenv(NAME, value)
        default = WRONG[kind][0]
        return getattr(Environment(), kind)(NAME, **({} if default is None else {"default": default}))

    return reading


@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind, (_, wrong) in WRONG.items() for value in wrong])
def test_what_cannot_be_meant_is_refused_by_name(read, kind, value):
    with pytest.raises(ImproperlyConfigured, match=NAME):
        read(kind, value)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("kind", "value"), [(kind, value) for kind in SECRET for value in WRONG[kind][1]])
def test_what_may_hold_a_secret_is_not_repeated(read, kind, value):
    """The line is in the log of whatever starts Sluice."""
    with pytest.raises(ImproperlyConfigured, match=f"^{NAME} has to be ") as refused:
        read(kind, value)
    assert "hid" not in "".join(traceback.format_exception(refused.value))


def test_an_address_of_a_database_that_is_empty_is_none(read):
    assert read("database", "")["NAME"] == "/tmp/sluice"
    assert read("database", " postgresql://u:hid%2Fden@h/n\n")["PASSWORD"] == "hid/den"


@pytest.mark.parametrize(
    ("kind", "value", "meant"),
    [
        ("whole", " 12 ", 12),
        ("number", "0.5", 0.5),
        ("switch", "Yes", True),
        ("switch", "off", False),
        ("rate", "30/minute", "30/m"),
        ("rate", "5/h", "5/h"),
        ("address", "https://sluice.example:8443/base/", "https://sluice.example:8443/base"),
        ("str", " Sluice <a@b.example>\n", "Sluice <a@b.example>"),
        ("parts", " one, two,\nthree,\n", ["one", "two", "three"]),
        ("networks", "10.0.0.0/8, 192.0.2.1", ["10.0.0.0/8", "192.0.2.1/32"]),
        ("origins", "https://a.example,http://localhost:3000", ["https://a.example", "http://localhost:3000"]),
        ("origins", "*", ["*"]),
    ],
)
def test_what_is_meant_is_read(read, kind, value, meant):
    assert read(kind, value) == meant


@pytest.mark.parametrize("value", ["", " \n"])
@pytest.mark.parametrize("kind", ["whole", "number", "str", "parts", "switch", "rate", "address", "networks"])
def test_an_empty_value_is_none(read, kind, value):
    assert read(kind, value) == WRONG[kind][0]


def test_a_value_that_begins_with_a_dollar_is_one(monkeypatch):
    monkeypatch.setenv(NAME, "$ecret")
    assert Environment().str(NAME, default="") == "$ecret"


def test_a_secrets_file_that_cannot_be_read_is_refused_by_name(monkeypatch, tmp_path):
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "absent"))
    with pytest.raises(ImproperlyConfigured, match=f"{NAME}_FILE can't be read: .*absent"):
        Environment().str(NAME, default="")


def test_a_secrets_file_of_bytes_is_refused_by_name_and_not_quoted(monkeypatch, tmp_path):
    tmp_path.joinpath("secret").write_bytes(b"hid\xffden")
    monkeypatch.setenv(f"{NAME}_FILE", str(tmp_path / "secret"))
    with pytest.raises(ImproperlyConfigured, match=f"^{NAME}_FILE names a file that isn't UTF-8 text") as refused:
        Environment().str(NAME, default="")
    said = traceback.format_exception(refused.value)
    assert not re.search("hid|xff|UnicodeDecodeError", "".join(said))


def test_settings_read_nothing_unchecked():
    """Numbers, switches, lists and rates come through the checked readers alone."""
    assert not re.findall(r"env\.(?:int|float|bool|list|email_url)\(", (ROOT / "gateway/settings.py").read_text())


@pytest.mark.parametrize(
    ("name", "value", "meaning"),
    [
        ("SLUICE_MAX_CONNECTIONS", "many", "is 'many': it has to be a whole number from 1 on"),
        ("SLUICE_AUDIT_DAYS", "30", "is 30: it has to be 0, or 365 or more"),
        (
            "OTEL_EXPORTER_OTLP_ENDPOINT",
            "collector:4318",
            "is 'collector:4318': it has to be an address such as http://collector:4318",
        ),
        (
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
            "collector:4318/v1/traces",
            "is 'collector:4318/v1/traces': it has to be an address such as http://collector:4318/v1/traces",
        ),
    ],
)
def test_the_settings_say_what_a_value_has_to_be(monkeypatch, tmp_path, name, value, meaning):
    """A command makes one line of it: tests/operation/test_careless.py."""
    monkeypatch.setenv("SLUICE_HOME", str(tmp_path))
    monkeypatch.setenv(name, value)
    with pytest.raises(ImproperlyConfigured) as refused:
        runpy.run_path(str(ROOT / "gateway/settings.py"))
    assert str(refused.value) == f"{name} {meaning}"


@pytest.mark.parametrize(
    ("storage", "options", "problem"),
    [
        ("storages.backends.s4.S4Storage", {}, "Could not find backend"),
        ("django.core.files.storage.FileSystemStorag", {}, "Could not find backend"),
        ("django.core.files.storage.FileSystemStorage", {"bucket": "hidden"}, "unexpected keyword argument 'bucket'"),
        ("collections.OrderedDict", {"location": "hidden"}, "it is no storage of Django's"),
    ],
)
def test_a_storage_that_cannot_be_made_is_refused_before_anything_is_uploaded(settings, storage, options, problem):
    assert check_files_storage(None) == []
    settings.STORAGES = {**settings.STORAGES, "files": {"BACKEND": storage, "OPTIONS": options}}
    [refused] = check_files_storage(None)
    assert refused.is_serious()
    assert refused.msg.startswith("SLUICE_FILES_STORAGE can't be used: ")
    assert problem in refused.msg
    assert "hidden" not in refused.msg


def test_a_command_ends_with_78_where_the_storage_cannot_be_made(tmp_path):
    given = {**os.environ, "SLUICE_HOME": str(tmp_path), "SLUICE_FILES_STORAGE": "storages.backends.s4.S4Storage"}
    command = [sys.executable, "manage.py", "check"]
    done = subprocess.run(command, cwd=ROOT, env=given, capture_output=True, text=True, check=False)
    assert done.returncode == 78
    assert "?: (sluice.E009) SLUICE_FILES_STORAGE can't be used: " in done.stderr
