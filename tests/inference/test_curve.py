"""Keys of connections: what a key file must be, and that nothing listens over tcp without one."""

from __future__ import annotations

from pathlib import Path

import pytest

from inference.config import WorkerConfig
from inference.curve import WorkerKeys, is_key, new_pair, public_key_of


def make_keys(*gateways: str) -> WorkerKeys:
    return WorkerKeys(*new_pair(), gateways or (new_pair()[0],))


def test_a_key_file_is_read_as_it_was_written_and_is_the_owners_alone(tmp_path: Path) -> None:
    keys = make_keys()
    keys.save(tmp_path / "k")
    assert WorkerKeys.load(tmp_path / "k") == keys
    assert (tmp_path / "k").stat().st_mode & 0o777 == 0o600
    assert keys.secret_key not in repr(keys)


def test_a_key_file_that_others_may_read_is_refused(tmp_path: Path) -> None:
    make_keys().save(tmp_path / "k")
    (tmp_path / "k").chmod(0o640)
    with pytest.raises(ValueError, match="chmod 600"):
        WorkerKeys.load(tmp_path / "k")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"public_key": 1, "secret_key": "x", "gateways": []}'])
def test_a_damaged_key_file_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "k").touch(mode=0o600)
    (tmp_path / "k").write_text(text)
    with pytest.raises(ValueError, match="key file"):
        WorkerKeys.load(tmp_path / "k")


def test_keys_belong_together_and_somebody_may_connect() -> None:
    public, secret = new_pair()
    assert public_key_of(secret) == public
    with pytest.raises(ValueError, match="pair"):
        WorkerKeys(new_pair()[0], secret, (public,))
    with pytest.raises(ValueError, match="no gateway"):
        WorkerKeys(public, secret)
    with pytest.raises(ValueError, match="not a public key"):
        WorkerKeys(public, secret, ("short",))
    assert not is_key("é" * 40)


def test_no_worker_listens_over_tcp_in_the_clear() -> None:
    with pytest.raises(ValueError, match="key file"):
        WorkerConfig(endpoint="tcp://127.0.0.1:7411", record="r", secret="s", engines=())
    with pytest.raises(ValueError, match="key file"):
        WorkerConfig(endpoint="ipc:///tmp/x", keys="k", record="r", secret="s", engines=())
    with pytest.raises(ValueError, match="listens at"):
        WorkerConfig(endpoint="udp://127.0.0.1:7411", keys="k", record="r", secret="s", engines=())
