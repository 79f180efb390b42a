"""Where a remote engine may be: decided of the very address that is connected to."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from inference.clients.remote.addresses import ForbiddenAddressError, open_socket, refusal_of
from inference.engine import EngineSpec
from inference.open import open_engine
from tests.inference.engine_contract import until

PRIVATE = [ipaddress.ip_network(network) for network in ("10.0.0.0/8", "192.168.0.0/16", "fc00::/7")]
ANYWHERE = [ipaddress.ip_network("0.0.0.0/0"), ipaddress.ip_network("::/0")]


@pytest.mark.parametrize(
    "address", ["10.1.2.3", "192.168.7.7", "fd12::1", "8.8.8.8", "2001:4860::8", "::ffff:10.0.0.9", "::10.0.0.9"]
)
def test_private_and_public_addresses_are_allowed(address):
    assert refusal_of(ipaddress.ip_address(address), PRIVATE) == ""


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254", "fe80::1", "0.0.0.0", "::", "224.0.0.1", "ff02::1", "240.0.0.1", "255.255.255.255",
        "fd00:ec2::254", "100.100.100.200", "168.63.129.16", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
        "2002:a9fe:a9fe::1", "::169.254.169.254", "64:ff9b:1::a9fe:a9fe", "64:ff9b:1:2:3:4:a9fe:a9fe",
        "64:ff9b:1:a9fe:a9:fe00::", "64:ff9b:1:2a9:fe:a9fe::", "64:ff9b:1:2:a9:fea9:fe00::", "::ffff:0:a9fe:a9fe",
    ],
)  # fmt: skip
def test_some_addresses_are_never_allowed(address):
    assert "can't be" in refusal_of(ipaddress.ip_address(address), ANYWHERE)


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1", "::1", "172.16.0.1", "100.64.0.1", "::ffff:127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
        "::7f00:1", "fec0::1", "64:ff9b:1::7f00:1", "64:ff9b:1::a01:203", "64:ff9b:1::808:808",
        "::ffff:0:7f00:1", "::ffff:0:ac10:1", "::ffff:0:808:808",
    ],
)  # fmt: skip
def test_other_networks_only_where_they_are_named(address):
    assert "SLUICE_REMOTE_NETWORKS" in refusal_of(ipaddress.ip_address(address), PRIVATE)
    assert refusal_of(ipaddress.ip_address(address), ANYWHERE) == ""


@pytest.mark.parametrize("behind", ["127.0.0.1", "172.16.0.1"])
def test_a_network_that_is_translated_opens_no_other(behind):
    """Who names the translator's addresses names none of those behind it."""
    translated = [*PRIVATE, ipaddress.ip_network("64:ff9b:1::/48")]
    prefix = int(ipaddress.ip_address("64:ff9b:1::"))
    inner = ipaddress.IPv6Address(prefix + int(ipaddress.ip_address(behind)))
    assert "SLUICE_REMOTE_NETWORKS" in refusal_of(inner, translated)
    assert refusal_of(ipaddress.ip_address("64:ff9b:1::a01:203"), translated) == ""  # 10.1.2.3


def test_no_socket_is_made_for_a_forbidden_address():
    info = (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", 80, 0, 2))
    with pytest.raises(ForbiddenAddressError):
        open_socket(ANYWHERE, info)


async def reason_of(address, networks):
    engine = open_engine(EngineSpec("d", "openai", address, {"model": "m", "dialect": "vllm", "networks": networks}))
    try:

        async def is_known():
            return bool((await engine.health()).detail)

        await until(is_known)
        return (await engine.health()).detail
    finally:
        await engine.close()


@pytest.mark.parametrize("host", ["127.0.0.1", "2130706433", "0x7f.1", "localhost", "[::1]", "[::ffff:127.0.0.1]"])
async def test_this_machine_is_not_reached_under_any_of_its_names(host, remote):
    _, upstream = await remote()
    before = len(upstream.seen)
    assert await reason_of(f"http://{host}:{upstream.address.rpartition(':')[2]}", ["10.0.0.0/8"])
    assert len(upstream.seen) == before


async def test_a_name_that_resolves_elsewhere_the_next_time_gains_nothing(remote, monkeypatch):
    """What the name meant when the form was filled in doesn't count."""
    answers = ["127.0.0.1"]

    resolve = socket.getaddrinfo

    def resolve_anew(host, port, *arguments, **more):
        if host != "model.example":
            return resolve(host, port, *arguments, **more)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (answers[0], port))]

    monkeypatch.setattr("socket.getaddrinfo", resolve_anew)
    monkeypatch.setattr("inference.clients.remote.pool.KEEP_SECONDS", 0.0)  # each look connects anew
    monkeypatch.setattr("inference.clients.remote.probe.READY_SECONDS", 0.01)
    monkeypatch.setattr("inference.clients.remote.probe.UNREADY_SECONDS", 0.01)
    _, upstream = await remote()
    port = upstream.address.rpartition(":")[2]
    engine = open_engine(EngineSpec("d", "openai", f"http://model.example:{port}", upstream.options()))
    try:

        async def is_ready():
            return (await engine.health()).ready

        await until(is_ready)
        answers[0] = "169.254.169.254"

        async def is_forbidden():
            return "169.254.169.254 can't be" in (await engine.health()).detail

        await until(is_forbidden)
    finally:
        await engine.close()
