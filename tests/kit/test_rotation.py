"""A rotation of every secret, step by step as docs/operations.md has it: from files, each step a new process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from secrets import token_urlsafe

import pytest

from tests.databases import FILE

ROOT = Path(__file__).resolve().parents[2]
ALL = {"session": True, "key": True, "link": True, "credential": True}

pytestmark = [pytest.mark.slow, pytest.mark.django_db]  # a migrated database is there


class Installation:
    """A home whose secrets are files that each step replaces."""

    def __init__(self, folder):
        self.home = folder / "home"
        self.files = folder / "secrets"
        self.files.mkdir(parents=True)

    def set(self, **values):
        """Write the secrets of this step; those that aren't named are not set."""
        for path in self.files.iterdir():
            path.unlink()
        for name, value in values.items():
            (self.files / name).write_text(f"{value}\n")

    def step(self, *arguments):
        """Do one step in a process of its own."""
        given = {f"{path.name}_FILE": str(path) for path in self.files.iterdir()}
        environment = {**os.environ, "SLUICE_HOME": str(self.home), "SLUICE_ENV": "test", **given}
        environment.pop("DATABASE_URL", None)
        done = subprocess.run(
            [sys.executable, "-m", "tests.kit.rotation", *arguments],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])

    def look(self, made, *, before=(), after=()):
        found = self.step(*before, json.dumps(made), *after)
        made["session"] = found.pop("cookie")
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An installation that has all to lose, in a database migrated before, and what it made: copied for each test."""
    before = Installation(tmp_path_factory.mktemp("before"))
    before.home.mkdir()
    shutil.copyfile(Path(os.environ["SLUICE_HOME"]) / FILE, before.home / "sluice.sqlite3")
    old = token_urlsafe(48)
    before.set(SLUICE_SECRET_KEY=old)
    return before, old, before.step("setup", "make")


@pytest.fixture
def installation(made, tmp_path):
    copy = Installation(tmp_path / "copy")
    shutil.copytree(made[0].home, copy.home)
    return copy


def test_every_secret_is_replaced_and_nobody_notices(installation, made):
    _, old, facts = made[0], made[1], dict(made[2])
    session, of_keys, of_credentials = (token_urlsafe(48) for _ in range(3))
    # 1. The secret that signs; the other two still were that secret.
    installation.set(
        SLUICE_SECRET_KEY=session,
        SLUICE_SECRET_KEY_FALLBACKS=old,
        SLUICE_KEY_HASH_SECRET=of_keys,
        SLUICE_KEY_HASH_FALLBACKS=old,
        SLUICE_CREDENTIAL_SECRET=of_credentials,
        SLUICE_CREDENTIAL_FALLBACKS=old,
        SLUICE_CACHE_SECRET=token_urlsafe(48),
    )
    assert installation.look(facts, after=["setup"]) == ALL  # which encrypts credentials anew
    # 2. The old value is forgotten: what was used meanwhile has moved. Only what ends by itself has to have ended.
    installation.set(
        SLUICE_SECRET_KEY=session,
        SLUICE_KEY_HASH_SECRET=of_keys,
        SLUICE_CREDENTIAL_SECRET=of_credentials,
        SLUICE_CACHE_SECRET=token_urlsafe(48),
    )
    assert installation.look(facts) == {**ALL, "link": False}


def test_processes_that_are_restarted_in_turn_read_what_another_has_moved(installation, made):
    """Once all of them know the new secrets, as fallbacks: before, what one moves is lost to those that don't."""
    old, facts = made[1], dict(made[2])
    session, of_keys, of_credentials = (token_urlsafe(48) for _ in range(3))

    def secrets(*, is_new):
        pairs = {"SECRET_KEY": session, "KEY_HASH_SECRET": of_keys, "CREDENTIAL_SECRET": of_credentials}
        given = {}
        for name, new in pairs.items():
            fallbacks = name.removesuffix("_SECRET") + "_FALLBACKS"
            given[f"SLUICE_{name}"], given[f"SLUICE_{fallbacks}"] = (new, old) if is_new else (old, new)
        return given

    for is_new in (False, True, False, True):
        installation.set(**secrets(is_new=is_new))
        assert installation.look(facts, before=["setup"] * is_new) == ALL
    installation.set(SLUICE_SECRET_KEY=old)
    assert not any(installation.look(facts)[what] for what in ("session", "key", "credential"))


def test_without_fallbacks_all_would_be_lost(installation, made):
    """What the steps are for."""
    installation.set(SLUICE_SECRET_KEY=token_urlsafe(48))
    assert installation.look(dict(made[2])) == dict.fromkeys(ALL, False)


def test_a_key_nobody_used_ends_with_the_fallback(installation, made):
    """Which is why operators look at when each key was used last."""
    _, old, facts = made[0], made[1], dict(made[2])
    installation.set(SLUICE_SECRET_KEY=old, SLUICE_KEY_HASH_SECRET=token_urlsafe(48))
    assert installation.look(facts) == {**ALL, "key": False}
