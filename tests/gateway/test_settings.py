"""Every variable that the gateway reads is documented, and nothing else is; production refuses what can't be right."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path
from secrets import token_urlsafe

import pytest
from django.test import Client

from gateway import checks
from routing.services.catalogue import add_model, remove_model

ROOT = Path(__file__).resolve().parents[2]


def test_every_setting_is_documented():
    code = "".join((ROOT / name).read_text() for name in ("gateway/settings.py", "base/home.py"))
    read = set(re.findall(r'(?:env\.\w+|environ\.get)\(\s*"([A-Z_]+)"', code))
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
    assert len(read) > 10
    assert read == documented


pytestmark = pytest.mark.django_db


@pytest.fixture
def production(db, settings, tmp_path):
    settings.SLUICE_ENV = "production"
    settings.SLUICE_HOME = tmp_path
    settings.DEBUG = False
    settings.SLUICE_SECRET_IS_GENERATED = False
    settings.SLUICE_BASE_URL = "https://sluice.example.com"
    settings.SLUICE_EMBEDDED = False
    settings.SECRET_KEY = settings.SLUICE_KEY_HASH_SECRET = token_urlsafe(48)
    settings.SLUICE_CACHE_SECRET = settings.SLUICE_CREDENTIAL_SECRET = settings.SECRET_KEY
    settings.EMAIL_BACKEND = "django.core.mail.backends.smtp.EmailBackend"
    return settings


def found():
    return {message.id: message for message in checks.check_environment(None)}


def test_a_right_production_passes(production):
    assert found() == {}


@pytest.mark.parametrize(
    ("name", "value", "identifier", "hint"),
    [
        ("DEBUG", True, "sluice.E002", "SLUICE_DEBUG"),
        ("SLUICE_SECRET_IS_GENERATED", True, "sluice.E003", "SLUICE_SECRET_KEY"),
        ("SLUICE_BASE_URL", "http://127.0.0.1:8000", "sluice.W001", "SLUICE_BASE_URL"),
        ("SLUICE_EMBEDDED", True, "sluice.W002", "DATABASE_URL"),
        ("SLUICE_SIGNUP_PLAN", "nothing", "sluice.W005", "SLUICE_SIGNUP_PLAN"),
        ("SLUICE_ENV", "prod", "sluice.E001", "SLUICE_ENV"),
        ("SECRET_KEY", "short", "sluice.E005", "SLUICE_SECRET_KEY"),
        ("SECRET_KEY", "x1y2z3w4v5u6t7s8r9q0", "sluice.E005", "SLUICE_SECRET_KEY"),
        ("SECRET_KEY", "a" * 60, "sluice.E005", "SLUICE_SECRET_KEY"),
        ("SECRET_KEY", "django-insecure-x1y2z3w4v5u6t7s8r9q0p1o2n3m4l5", "sluice.E005", "SLUICE_SECRET_KEY"),
        ("SLUICE_KEY_HASH_SECRET", "change-me-0123456789abcdefghijklmnopq", "sluice.E005", "SLUICE_KEY_HASH_SECRET"),
        ("SLUICE_CACHE_SECRET", "short", "sluice.E005", "SLUICE_CACHE_SECRET"),
        ("SLUICE_BASE_URL", "http://sluice.example.com", "sluice.E006", "https"),
        ("EMAIL_BACKEND", "django.core.mail.backends.console.EmailBackend", "sluice.E007", "SLUICE_EMAIL_URL"),
        ("EMAIL_BACKEND", "django.core.mail.backends.dummy.EmailBackend", "sluice.W003", "SLUICE_EMAIL_URL"),
    ],
)
def test_production_refuses(production, name, value, identifier, hint):
    setattr(production, name, value)
    messages = found()
    assert set(messages) == {identifier}
    assert hint in messages[identifier].hint
    assert messages[identifier].is_serious() == ("E" in identifier.partition(".")[2])


def test_one_weak_secret_for_all_is_told_once(production):
    production.SECRET_KEY = production.SLUICE_KEY_HASH_SECRET = production.SLUICE_CACHE_SECRET = "short"
    [message] = checks.check_environment(None)
    assert message.msg.startswith("SLUICE_SECRET_KEY ")


def test_a_secret_that_no_fallback_can_hold_is_told(production):
    production.SLUICE_CACHE_SECRET = f"{token_urlsafe(48)},"  # which has no fallbacks
    assert found() == {}
    production.SLUICE_KEY_HASH_SECRET = f"{token_urlsafe(48)},"
    assert set(found()) == {"sluice.W006"}
    assert found()["sluice.W006"].msg.startswith("SLUICE_KEY_HASH_SECRET has a comma")


def test_production_refuses_demo_credentials(production):
    (production.SLUICE_HOME / "demo.json").write_text("{}")
    assert set(found()) == {"sluice.E004"}


def test_production_refuses_the_fake_backend(production):
    for name, backend, options in (("a", "fake", {}), ("b", "worker", {"architecture": "fake"}), ("c", "worker", {})):
        add_model(
            name=name, kinds=["chat"], context_length=10, rate_card="x", source="", backend=backend, options=options
        )
    assert set(found()) == {"sluice.E008"}
    assert "a, b." in found()["sluice.E008"].msg
    remove_model("a")
    remove_model("b")
    assert found() == {}


SHOW = """
import gateway.settings as s
print([s.SECRET_KEY, s.SLUICE_SECRET_IS_GENERATED, s.SECRET_KEY_FALLBACKS, s.SLUICE_KEY_HASH_SECRET,
       s.SLUICE_KEY_HASH_FALLBACKS, s.SLUICE_CACHE_SECRET])
"""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"SLUICE_SECRET_KEY": "one"}, ["one", False, [], "one", [], "one"]),
        (
            {"SLUICE_SECRET_KEY_FILE": "one\n", "SLUICE_SECRET_KEY_FALLBACKS_FILE": "two,\nthree\n"},
            ["one", False, ["two", "three"], "one", [], "one"],
        ),
        (
            {
                "SLUICE_SECRET_KEY": "one",
                "SLUICE_KEY_HASH_SECRET_FILE": "keys\n",
                "SLUICE_KEY_HASH_FALLBACKS": "one,older",
                "SLUICE_CACHE_SECRET_FILE": "caches",
            },
            ["one", False, [], "keys", ["one", "older"], "caches"],
        ),
    ],
    ids=["one for all", "from files", "each its own"],
)
def test_secrets_are_separate_and_come_from_files_too(tmp_path, given, expected):
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    environment["SLUICE_HOME"] = str(tmp_path)
    for name, value in given.items():
        environment[name] = value
        if name.endswith("_FILE"):
            (tmp_path / name).write_text(value)
            environment[name] = str(tmp_path / name)
    shown = subprocess.run(
        [sys.executable, "-c", SHOW], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(shown.stdout) == expected


def test_development_may_have_them_all(settings):
    settings.SLUICE_ENV = "development"
    settings.DEBUG = True
    assert found() == {}


@pytest.mark.parametrize("path", ["/accounts/login/", "/admin/"])
def test_policy_is_strict(path):
    policy = Client().get(path).headers["content-security-policy"]
    assert "default-src 'self'; " in policy
    assert "'unsafe" not in policy
    assert "frame-ancestors 'none'" in policy
