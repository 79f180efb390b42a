"""Heartbeats reach whoever watches: a file's time under `serve`, a message under systemd."""

from __future__ import annotations

import socket

import pytest

from base.heartbeat import VARIABLE, touch_heartbeat


@pytest.fixture
def systemd(tmp_path, monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.settimeout(20)
        heard.bind(str(tmp_path / "notify"))
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield heard


def test_systemd_hears_that_it_is_ready_and_gets_on(systemd):
    touch_heartbeat()
    assert systemd.recv(4096) == b"READY=1\nWATCHDOG=1"


def test_an_abstract_socket_is_reached_too(monkeypatch):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as heard:
        heard.settimeout(20)
        heard.bind("\0sluice-test-notify")
        monkeypatch.setenv("NOTIFY_SOCKET", "@sluice-test-notify")
        touch_heartbeat()
        assert heard.recv(4096).startswith(b"READY=1")


def test_a_systemd_that_reads_nothing_holds_nobody_up(systemd):
    for _ in range(2000):  # more than any socket takes
        touch_heartbeat()
    systemd.setblocking(False)
    heard = 0
    with pytest.raises(BlockingIOError):
        while systemd.recv(4096):
            heard += 1
    assert 0 < heard < 2000, "the others were dropped"


def test_a_socket_that_is_gone_ends_nobody(monkeypatch, tmp_path):
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "none"))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "beat"))
    touch_heartbeat()
    assert [path.name for path in tmp_path.iterdir()] == ["beat"], "it is told where it can be"


def test_the_file_is_touched(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path / "beat"))
    touch_heartbeat()
    assert (tmp_path / "beat").exists()
