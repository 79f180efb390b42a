"""A worker that is reached over tcp: only by the gateways in its key file, and only as itself."""

from __future__ import annotations

import resource
import socket
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import zmq

from inference.curve import WorkerKeys, new_pair, secure_client
from inference.engine import EngineSpec
from inference.open import open_engine
from inference.protocol import Hello, encode, numbered
from tests.inference.engine_contract import chat, run, text_of, until
from tests.inference.worker.processes import ECHO, WorkerProcess, ready
from tests.services.ports import lease_port

pytestmark = pytest.mark.slow  # real processes


class Far:
    """A worker over tcp, and the keys with which it may be reached."""

    def __init__(self) -> None:
        public, secret = new_pair()
        gateway = new_pair()
        folder = Path(tempfile.mkdtemp(prefix="sw-", dir="/tmp"))
        WorkerKeys(public, secret, (gateway[0],)).save(folder / "keys")
        address = f"tcp://127.0.0.1:{lease_port()}"
        self.worker = WorkerProcess(ECHO, endpoint=address, keys=str(folder / "keys"))
        self.spec = EngineSpec("echo", "worker", address, server_key=public, secret_key=gateway[1])


@pytest.fixture
def far() -> Iterator[Far]:
    found = Far()
    found.worker.start()
    yield found
    found.worker.close()


async def test_a_gateway_with_the_keys_is_served_and_the_worker_ends_cleanly(far: Far) -> None:
    engine = open_engine(far.spec)
    await ready(engine)
    assert text_of(await run(engine, chat("over the wire"))) == "over the wire"
    await engine.close()
    assert far.worker.stop() == 0


async def test_nobody_else_is_served(far: Far) -> None:
    """Neither a gateway with a key of its own, nor one that takes the worker for another, nor a client without keys."""
    known = open_engine(far.spec)
    await ready(known)
    silent = {"silence_seconds": 0.5, "renew_seconds": 0.1}
    strangers = [
        open_engine(replace(far.spec, secret_key=new_pair()[1], options=silent)),
        open_engine(replace(far.spec, server_key=new_pair()[0], options=silent)),
    ]

    async def are_refused() -> bool:
        reasons = [(await engine.health()).reason for engine in strangers]
        return all("silent" in reason or "refuses" in reason for reason in reasons)

    await until(are_refused)
    assert [engine.info for engine in strangers] == [None, None]
    context = zmq.Context()
    bare = context.socket(zmq.DEALER)
    bare.linger = 0
    bare.connect(far.spec.endpoint)
    bare.send_multipart([numbered(1), encode(Hello())])
    assert not bare.poll(500)
    bare.close()
    stranger = context.socket(zmq.DEALER)
    stranger.linger = 0
    secure_client(stranger, server_key=far.spec.server_key, secret_key=new_pair()[1])
    stranger.connect(far.spec.endpoint)
    stranger.send_multipart([numbered(1), encode(Hello())])
    assert not stranger.poll(500)
    stranger.close()
    context.term()
    assert text_of(await run(known, chat("still served"))) == "still served"
    for engine in (known, *strangers):
        await engine.close()
    assert far.worker.stop() == 0
    assert any("unknown key" in line["event"] for line in far.worker.lines())
    assert far.spec.secret_key not in far.worker.output


async def test_who_proves_nothing_is_let_go(far: Far) -> None:
    """Connections that said nothing were kept for half a minute, and a worker had 1,024 of them at most."""
    engine = open_engine(far.spec)
    await ready(engine)
    await engine.close()
    host, _, port = far.spec.endpoint.removeprefix("tcp://").rpartition(":")
    with socket.create_connection((host, int(port)), timeout=20) as silent:
        while silent.recv(1024):  # its greeting; a worker that waits longer ends this with TimeoutError
            pass
    assert far.worker.process is not None
    soft, hard = resource.prlimit(far.worker.process.pid, resource.RLIMIT_NOFILE)
    assert soft == min(hard, 65_536)


async def test_tcp_without_keys_is_not_even_tried() -> None:
    with pytest.raises(ValueError, match="keys of both ends"):
        open_engine(EngineSpec("echo", "worker", "tcp://127.0.0.1:7411"))


def test_an_unusable_key_file_is_one_clear_line() -> None:
    second = WorkerProcess(ECHO, endpoint="tcp://127.0.0.1:0", keys="/nowhere")
    try:
        assert second.start().wait() == 2
        assert "the key file can't be used" in second.lines()[-1]["event"]
    finally:
        second.close()
