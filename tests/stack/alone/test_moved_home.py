"""A backup that is restored into a home at another place: its models are that home's."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing

import pytest

from tests.stack.stack import Stack, environment_of, migrated

pytestmark = [pytest.mark.stack, pytest.mark.slow]


@pytest.mark.parametrize("is_left", [False, True], ids=["former home is gone", "former home is there"])
def test_a_restored_home_has_its_own_models(tmp_path, is_left):
    former, home, archive = tmp_path / "former", tmp_path / "home", str(tmp_path / "backup.tar.gz")
    (former / "models/own").mkdir(parents=True)
    home.mkdir()
    with migrated(former):
        stack = Stack(former, environment_of(former), 0, {})
        try:
            stack.script("seed", {})
            with closing(sqlite3.connect(former / "sluice.sqlite3")) as connection, connection:
                own = [str(former / "models/own")]  # as rows were before they followed the home
                connection.execute("UPDATE routing_deployment SET source = ? WHERE name = 'fake-chat'", own)
            stack.manage("backup", archive)
        finally:
            stack.close()
    shutil.copytree(former / "models", home / "models") if is_left else shutil.move(former / "models", home)
    if not is_left:
        shutil.rmtree(former)
    restored = Stack(home, environment_of(home), 0, {})
    try:
        restored.manage("restore", archive)
        _, told, _ = restored.script("manage", "doctor")
    finally:
        restored.close()
    assert f"ok    models fake-chat: {home / 'models/own'}" in told
    assert str(former) not in told
