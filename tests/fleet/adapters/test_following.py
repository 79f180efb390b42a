"""Adapters that the storage didn't give are served once it has them again, though no epoch tells of that."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from structlog import get_logger
from structlog.testing import capture_logs

from base.storage import storage
from fleet.adapters import add_adapter_folder
from fleet.worker_specs import spec_file
from inference.config import WorkerConfig
from operation.serve import following as module
from operation.serve.following import RETRY_SECONDS, Following
from tests.fleet.adapters.files import save
from tests.fleet.adapters.test_service import base

__all__ = ["base"]

pytestmark = pytest.mark.django_db(transaction=True)


def served() -> dict[str, str]:
    """The adapters in the worker's spec file."""
    [engine] = WorkerConfig.load(spec_file("local")).engines
    return dict(engine.adapters)


@pytest.mark.parametrize(
    ("error", "event"),
    [(ConnectionError("no answer"), "adapter_not_stored"), (FileNotFoundError("lost"), "adapter_lost")],
)
def test_a_missing_adapter_is_asked_for_again(tmp_path, monkeypatch, error, event):
    """It was served only once something else in the catalogue changed."""
    adapter = add_adapter_folder(save(tmp_path / "a"), base="base", name="law")
    folder = str(tmp_path / "adapters" / adapter.id.hex)
    now, restarts, saves, asked = [100.0], [], [], []
    save_spec = module.save_spec

    def fails(*_):
        asked.append(now[0])
        raise error

    def saving(spec, node):
        saves.append(now[0])
        return save_spec(spec, node)

    monkeypatch.setattr(module, "log", get_logger())  # one that another test has bound is captured no more
    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(module, "save_spec", saving)
    supervisor = SimpleNamespace(restart=restarts.append, enable=lambda _: None)
    following = Following("local", pytest.fail)
    with monkeypatch.context() as away, capture_logs() as logs:
        away.setattr(storage(), "open", fails)
        for later in (0.0, 1.0, RETRY_SECONDS, RETRY_SECONDS + 1.0):
            now[0] = 100.0 + later
            following.look(supervisor)
        assert folder not in served().values()
    assert asked == [100.0, 100.0 + RETRY_SECONDS]
    assert saves == [100.0], "a worker reads anew what it refuses whenever the file is written"
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [event], "once"
    now[0] = 100.0 + 2 * RETRY_SECONDS
    following.look(supervisor)
    assert served() == {str(adapter.id): folder}
    assert restarts == ["worker"], "no more than the first"
    now[0] += 10 * RETRY_SECONDS
    following.look(supervisor)
    assert saves == [100.0, 100.0 + 2 * RETRY_SECONDS]


def test_a_storage_that_is_slow_to_refuse_takes_a_tenth_of_the_supervisors_time(tmp_path, monkeypatch):
    add_adapter_folder(save(tmp_path / "a"), base="base", name="law")
    now, asked = [0.0], []

    def hangs(*_):
        asked.append(now[0])
        now[0] += 60.0
        raise TimeoutError

    monkeypatch.setattr(module, "monotonic", lambda: now[0])
    monkeypatch.setattr(storage(), "open", hangs)
    following = Following("local", pytest.fail)
    for moment in (0.0, 70.0, 599.0, 600.0):
        now[0] = moment
        following.look(None)
    assert asked == [0.0, 600.0]
