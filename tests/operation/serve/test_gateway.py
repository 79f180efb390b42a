"""One gateway process as a unit of systemd's runs it, on a socket that it is given."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from django.core.management import call_command

from operation.management.commands import gateway as command
from operation.serve.address import announced, running_address


@pytest.fixture
def addresses(settings, monkeypatch, tmp_path):
    """Where a gateway of the home is said to run, as it is while the gateway serves."""
    settings.SLUICE_HOME, settings.SLUICE_EMBEDDED = tmp_path, False
    for name in ("gc", "signal", "configure_logs"):  # which would be changed for the tests' own process
        monkeypatch.setattr(command, name, Mock())
    monkeypatch.setattr(command, "need_database", lambda: None)
    seen = []

    def run(sockets):
        seen.append(running_address())
        for one in sockets:
            one.close()

    server = SimpleNamespace(started=True, run=run)
    monkeypatch.setattr("gateway.http.listener.server.gateway_server", lambda *_, **__: server)
    return seen


def serve(listening):
    call_command("gateway", "--fd", str(os.dup(listening.fileno())))


def test_commands_find_a_gateway_on_a_socket_that_it_was_given(addresses):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        serve(listening)
        assert addresses == [f"http://127.0.0.1:{listening.getsockname()[1]}"]
    assert running_address() == ""


def test_who_opened_the_socket_has_told_where_it_is(addresses):
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with announced(f"http://127.0.0.1:{port}"):
            serve(listening)
            assert running_address() == addresses[0] == f"http://127.0.0.1:{port}"
