"""A home that is copied, and a backup that is restored into one at another place: models are the new home's."""

from __future__ import annotations

import shutil
import sqlite3
import time
from contextlib import closing

import pytest

from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import save_tiny
from tests.services.ports import lease_port
from tests.stack.stack import Stack, environment_of, migrated, share_kernels
from tests.stack.web import ask

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


@pytest.mark.sweep
def test_a_copied_home_serves(tmp_path):
    """The former one, which is gone, isn't needed for anything."""
    former, home, port = tmp_path / "former", tmp_path / "elsewhere" / "home", lease_port()
    (folder := former / "models" / "tiny").mkdir(parents=True)
    save_tiny("llama", folder, vocab_size=save_tokenizer(folder))
    with migrated(former):
        stack = Stack(former, environment_of(former), 0, {})
        try:
            key = stack.script("seed", {})["max"]["key"]
            stack.manage("models", "add", str(folder), "--name", "own")
        finally:
            stack.close()
    shutil.copytree(former, home)
    shutil.rmtree(former)
    share_kernels(home)
    copied = Stack(home, environment_of(home, SLUICE_BASE_URL=f"http://127.0.0.1:{port}"), port, {})
    try:
        copied.start()
        say = {"model": "own", "messages": [{"role": "user", "content": "fox"}], "max_tokens": 3, "ignore_eos": True}
        while (answer := ask(f"{copied.base_url}/v1/chat/completions", say, key=key)).status == 503:
            time.sleep(0.05)  # until its worker has loaded it; bounded by the test's timeout
        assert answer.status == 200, answer.text
        assert answer.json["usage"]["completion_tokens"] == 3
        assert copied.stop() == 0
    finally:
        copied.close()
