"""A home knows where its gateway listens, while it does."""

import os
import signal
import socket
import subprocess
import sys

import pytest

from operation.serve.address import address_of, address_of_sockets, announced, running_address, usual_address


@pytest.fixture(autouse=True)
def home(settings, monkeypatch, tmp_path):
    settings.SLUICE_HOME = tmp_path
    settings.SLUICE_BASE_URL = "http://127.0.0.1:8000"
    monkeypatch.delenv("SLUICE_BASE_URL", raising=False)
    return tmp_path


def test_the_address_is_known_while_it_is_announced():
    assert running_address() == ""
    assert usual_address() == "http://127.0.0.1:8000"
    with announced("http://127.0.0.1:8123"):
        assert running_address() == "http://127.0.0.1:8123"
        assert usual_address() == "http://127.0.0.1:8123"
    assert running_address() == ""


def test_another_machines_gateway_on_the_same_home_is_not_ours_to_ask(monkeypatch):
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr(socket, "gethostname", lambda: "another container")
        other = announced("http://127.0.0.1:8123")
        other.__enter__()
    assert running_address() == ""
    with announced("http://127.0.0.1:8124"):
        assert running_address() == "http://127.0.0.1:8124"
    other.__exit__(None, None, None)


def test_a_chosen_base_url_goes_first(monkeypatch, settings):
    monkeypatch.setenv("SLUICE_BASE_URL", "https://sluice.example.com")
    settings.SLUICE_BASE_URL = "https://sluice.example.com"
    with announced("http://127.0.0.1:8123"):
        assert usual_address() == "https://sluice.example.com"


def test_a_second_gateway_leaves_the_first_ones_address_and_is_found_when_that_ends(home):
    second = announced("http://127.0.0.1:2")
    with announced("http://127.0.0.1:1"):
        with announced("http://127.0.0.1:1"):
            second.__enter__()
            assert running_address() == "http://127.0.0.1:1"
        assert running_address() == "http://127.0.0.1:1"
    assert running_address() == "http://127.0.0.1:2"
    second.__exit__(None, None, None)
    assert list(home.iterdir()) == []


def test_what_a_killed_gateway_left_is_stale(home):
    code = (
        "import sys, django; from django.conf import settings; from pathlib import Path\n"
        f"settings.configure(SLUICE_HOME=Path({str(home)!r}))\n"
        "from operation.serve.address import announced\n"
        "with announced('http://127.0.0.1:8123'):\n    print('up', flush=True); sys.stdin.read()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env={**os.environ}
    )
    with process:
        assert process.stdout.readline() == b"up\n"
        assert running_address() == "http://127.0.0.1:8123"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert (home / "gateway-8123.address").exists()
    assert running_address() == ""


@pytest.mark.parametrize(
    ("host", "url"),
    [("127.0.0.1", "http://127.0.0.1:80"), ("0.0.0.0", "http://127.0.0.1:80"), ("::", "http://[::1]:80")],
)
def test_an_address_can_be_asked_from_here(host, url):
    assert address_of(host, 80) == url


def test_sockets_tell_where_they_are(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as one, socket.socket(socket.AF_UNIX) as other:
        other.bind(str(tmp_path / "a.sock"))
        assert address_of_sockets([other, one]) == f"http://127.0.0.1:{one.getsockname()[1]}"
        assert address_of_sockets([other]) == ""
