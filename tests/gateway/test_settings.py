"""Every variable that the gateway reads is documented, and nothing else is; production refuses what can't be right."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from django.test import Client

from gateway import checks

ROOT = Path(__file__).resolve().parents[2]


def test_every_setting_is_documented():
    code = "".join((ROOT / name).read_text() for name in ("gateway/settings.py", "gateway/home.py"))
    read = set(re.findall(r'(?:env\.\w+|environ\.get)\(\s*"([A-Z_]+)"', code))
    documented = set(re.findall(r"^\| `([A-Z_]+)` \|", (ROOT / "docs/settings.md").read_text(), re.MULTILINE))
    assert len(read) > 10
    assert read == documented


@pytest.fixture
def production(settings, tmp_path):
    settings.SLUICE_ENV = "production"
    settings.SLUICE_HOME = tmp_path
    settings.DEBUG = False
    settings.SLUICE_SECRET_IS_GENERATED = False
    settings.SLUICE_BASE_URL = "https://sluice.example.com"
    settings.SLUICE_EMBEDDED = False
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
        ("SLUICE_ENV", "prod", "sluice.E001", "SLUICE_ENV"),
    ],
)
def test_production_refuses(production, name, value, identifier, hint):
    setattr(production, name, value)
    messages = found()
    assert set(messages) == {identifier}
    assert hint in messages[identifier].hint
    assert messages[identifier].is_serious() == ("E" in identifier.partition(".")[2])


def test_production_refuses_demo_credentials(production):
    (production.SLUICE_HOME / "demo.json").write_text("{}")
    assert set(found()) == {"sluice.E004"}


def test_development_may_have_them_all(settings):
    settings.SLUICE_ENV = "development"
    settings.DEBUG = True
    assert found() == {}


@pytest.mark.django_db
def test_policy_is_strict_but_for_the_admin():
    strict = Client().get("/accounts/login/").headers["content-security-policy"]
    relaxed = Client().get("/admin/").headers["content-security-policy"]
    assert "'unsafe" not in strict
    assert "frame-ancestors 'none'" in strict
    assert "'unsafe-eval'" in relaxed
    assert "frame-ancestors 'none'" in relaxed
