"""What a restore refuses before anything is changed, and what it does with the secrets of a backup."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from billing.services import plans
from operation.backup import archive, home, secrets, service
from operation.backup.archive import BackupError, Manifest
from operation.setup import demo, former_migrations
from tenancy.models import APIKey

ROOT = Path(__file__).resolve().parents[3]


def manifest_of(**changed):
    facts = {
        "format": archive.FORMAT,
        "sluice": "9.0",
        "made_at": "2026-01-01T00:00:00+00:00",
        "database": service.connection.vendor,
        "migrations": {"billing": ["0001_initial"], "of_another_app": ["0001_removed_since"]},
        "members": {},
    }
    return Manifest(**{**facts, **changed})


def test_a_backup_of_this_version_is_taken_and_one_of_a_newer_version_or_another_database_is_refused(db):
    service._refuse_foreign(manifest_of())
    with pytest.raises(BackupError, match=r"Sluice 9\.0, which is newer.*billing\.9999_unheard_of"):
        service._refuse_foreign(manifest_of(migrations={"billing": ["0002_initial", "9999_unheard_of"]}))
    with pytest.raises(BackupError, match="is of postgresql, and DATABASE_URL names sqlite: have it name one of postg"):
        service._refuse_foreign(manifest_of(database="postgresql"))


def test_a_backup_of_before_0_1_0_is_taken_if_all_former_migrations_were_applied(db):
    former = {app: ["0001_initial", "0002_of_former_ones", name] for app, name in former_migrations.LAST}
    service._refuse_foreign(manifest_of(migrations=former))
    former["routing"].pop()
    with pytest.raises(BackupError, match=r"some of them are missing: first run `manage\.py setup` of commit"):
        service._refuse_foreign(manifest_of(migrations=former))


@pytest.mark.postgresql
def test_a_backup_of_sqlite_may_go_to_postgresql_unless_it_is_from_before_0_1_0(db):
    service._refuse_foreign(manifest_of(database="sqlite"))
    former = {app: ["0001_initial", "0002_of_former_ones", name] for app, name in former_migrations.LAST}
    with pytest.raises(BackupError, match="restore it into SQLite first, and move a backup of that"):
        service._refuse_foreign(manifest_of(database="sqlite", migrations=former))


def test_the_demo_key_comes_along(db, settings, tmp_path):
    former, present, between = (tmp_path / name for name in ("former", "present", "between"))
    for folder in (former, present, between):
        folder.mkdir()
    plans.ensure_default_plans()
    settings.SLUICE_HOME = former
    made = demo.ensure_demo()
    copies = home.copied(former, between)
    settings.SLUICE_HOME = present
    home.check_names(copies)
    home.put_back(copies, present)
    assert demo.ensure_demo().api_key == made.api_key
    assert APIKey.objects.of(made.tenant).count() == 1
    assert demo.demo_file().stat().st_mode & 0o777 == 0o600


@pytest.fixture
def generated(settings, tmp_path):
    """A new home, whose own secret was just made."""
    settings.SLUICE_SECRET_IS_GENERATED = True
    all_secrets_are(settings, "new")
    settings.SECRET_KEY_FALLBACKS = settings.SLUICE_KEY_HASH_FALLBACKS = []
    return settings


def all_secrets_are(settings, value):
    for name in secrets.EFFECTIVE.values():
        setattr(settings, name, value)
    settings.SLUICE_CREDENTIAL_FALLBACKS = [value]  # the secret that the default was made with always counts


def kept(**values):
    return {**dict.fromkeys(secrets.EFFECTIVE, "old"), "SLUICE_CREDENTIAL_FALLBACKS": "old", **values}


def test_a_generated_secret_is_replaced_and_nothing_is_left_to_do(generated, tmp_path):
    assert secrets.take_over(kept(), tmp_path) == {}
    assert (tmp_path / "secret.key").read_text() == "old"
    assert (tmp_path / "secret.key").stat().st_mode & 0o777 == 0o600


def test_secrets_that_the_environment_decides_are_left_to_the_operator(generated, tmp_path):
    left = secrets.take_over(kept(SLUICE_KEY_HASH_SECRET="of keys", SLUICE_KEY_HASH_FALLBACKS="a,b"), tmp_path)
    assert {name: path.read_text() for name, path in left.items()} == {
        "SLUICE_KEY_HASH_SECRET": "of keys",
        "SLUICE_KEY_HASH_FALLBACKS": "a,b",
    }
    assert {path.stat().st_mode & 0o777 for path in left.values()} == {0o600}
    generated.SLUICE_SECRET_IS_GENERATED = False
    assert set(secrets.take_over(kept(), tmp_path)) == set(secrets.EFFECTIVE)
    all_secrets_are(generated, "old")
    assert secrets.take_over(kept(), tmp_path) == {}


def test_fallbacks_of_credentials_are_asked_for_only_where_they_were_given(generated, tmp_path):
    generated.SLUICE_SECRET_IS_GENERATED = False
    kept_ones = {"SLUICE_SECRET_KEY_FALLBACKS": "f", "SLUICE_CREDENTIAL_FALLBACKS": "given,old,f"}  # as 0.1 wrote them
    left = secrets.take_over(kept(**kept_ones), tmp_path)
    assert set(left) == {*secrets.EFFECTIVE, *kept_ones}
    assert left["SLUICE_CREDENTIAL_FALLBACKS"].read_text() == "given"
    all_secrets_are(generated, "old")
    generated.SECRET_KEY_FALLBACKS, generated.SLUICE_CREDENTIAL_FALLBACKS = ["f"], ["given", "old", "f"]
    assert secrets.in_use()["SLUICE_CREDENTIAL_FALLBACKS"] == "given"
    assert secrets.take_over(kept(**kept_ones), tmp_path) == {}
    generated.SLUICE_CREDENTIAL_FALLBACKS = ["old", "f"]
    assert "SLUICE_CREDENTIAL_FALLBACKS" not in secrets.in_use()


def test_a_backup_keeps_every_secret_that_is_documented(settings):
    documented = (ROOT / "docs/settings.md").read_text()
    names = set(re.findall(r"^\| `(SLUICE_\w+(?:_SECRET|_KEY|_FALLBACKS))` \|", documented, re.MULTILINE))
    assert names == {*secrets.EFFECTIVE, *secrets.FALLBACKS, *secrets.OPTIONAL}
    assert "SLUICE_GATEWAY_KEY" not in secrets.in_use()  # a file of the home, which is kept as such
    settings.SLUICE_GATEWAY_KEY = "given"
    assert secrets.in_use()["SLUICE_GATEWAY_KEY"] == "given"
    settings.SLUICE_KEY_HASH_FALLBACKS = ["one", "two"]
    assert secrets.in_use()["SLUICE_KEY_HASH_FALLBACKS"] == "one,two"
