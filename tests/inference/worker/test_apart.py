"""What computes beside the step thread leaves it no pool of idle threads."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from inference.worker import loading
from inference.worker.apart import apart
from inference.worker.deployment import Deployment
from inference.worker.record import Record
from tests.inference.worker.test_loading import Bench
from tests.waiting import until


def tasks():
    return len(list(Path("/proc/self/task").iterdir()))


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def compute():
    torch.ones(1 << 22).mul_(2)  # enough for several threads


@pytest.mark.usefixtures("three_threads")
async def test_a_pool_ends_with_what_was_computed_apart():
    before = tasks()
    during = apart(lambda: (compute(), tasks())[1])
    assert during == before + 3
    await until(lambda: tasks() == before)


def test_what_fails_apart_is_raised():
    with pytest.raises(ZeroDivisionError):
        apart(lambda: 1 // 0)


def test_models_are_loaded_and_adapters_read_apart(tmp_path, monkeypatch):
    threads = []

    def noted(*_):
        threads.append(threading.current_thread())

    loaded = loading.Loader._loaded
    monkeypatch.setattr(loading.Loader, "_loaded", lambda *given: (noted(), loaded(*given))[1])
    with Record(tmp_path / "record") as record:
        bench = Bench(tmp_path, record)
        bench.settle()
    adapters = SimpleNamespace(unchecked=lambda: "law", check=noted, load=noted, states=dict)
    deployment = Deployment.__new__(Deployment)
    deployment.engine = SimpleNamespace(model=SimpleNamespace(adapters=adapters))
    deployment.info = bench.serving.deployments["a"].info
    deployment.check_adapter()
    deployment.load_adapter(SimpleNamespace(adapter="law", domain="t"))
    assert len(threads) == 3
    assert not any(thread.is_alive() for thread in threads)
