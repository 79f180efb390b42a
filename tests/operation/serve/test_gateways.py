"""The gateways of `serve`: how many there may be, and what each is given."""

from __future__ import annotations

import os

import pytest

from operation.serve.gateways import Gateways, gateways_problem, ports_problem
from operation.serve.supervisor import Supervisor
from tests.services.ports import lease_port


@pytest.mark.parametrize(
    ("count", "is_embedded", "redis", "problem"),
    [
        (1, True, "", ""),
        (1, False, "", ""),
        (2, True, "redis://somewhere", "need PostgreSQL and Redis"),
        (2, False, "", "set REDIS_URL"),
        (2, False, "redis://somewhere", ""),
        (0, False, "redis://somewhere", "1 or more"),
    ],
)
def test_several_gateways_need_postgresql_and_redis(settings, count, is_embedded, redis, problem):
    settings.SLUICE_EMBEDDED, settings.REDIS_URL = is_embedded, redis
    found = gateways_problem(count)
    assert problem in found
    assert bool(problem) == bool(found)


@pytest.fixture
def metrics_port(settings):
    settings.SLUICE_METRICS_PORT = lease_port()
    return settings.SLUICE_METRICS_PORT


def test_gateways_share_one_socket_and_have_a_port_of_probes_each(settings, metrics_port):
    port = lease_port()
    gateways = Gateways("127.0.0.1", port, 2)
    try:
        one, other = gateways.specs(["manage.py"], 15.0)
        assert (one.name, other.name) == ("gateway-1", "gateway-2")
        assert one.group == other.group
        assert one.heartbeat != other.heartbeat
        (shared, first), (same, second) = one.descriptors, other.descriptors
        assert shared == same
        assert one.command[-4:] == ["--fd", str(shared), "--metrics-fd", str(first)]
        ports = [gateways._probes[n].getsockname()[1] for n in range(2)]
        assert ports == [metrics_port, metrics_port + 1]
        assert first != second
        assert os.get_inheritable(shared) is False, "other children of `serve` don't get it"
        assert "nothing can listen" in ports_problem("127.0.0.1", port, 1), "a port in use is told before any start"
    finally:
        gateways.close()


class Rolled(Supervisor):
    """Notes how children are started anew."""

    def __init__(self):
        super().__init__([])
        self.done = []

    def roll(self, names):
        self.done.append(("roll", *names))

    def restart(self, name):
        self.done.append(("restart", name))


@pytest.mark.parametrize(("redis", "how"), [("redis://somewhere", "roll"), ("", "restart")])
def test_gateway_is_replaced_beside_the_old_one_only_where_two_may_run(settings, redis, how):
    settings.SLUICE_EMBEDDED, settings.REDIS_URL, settings.SLUICE_METRICS_PORT = False, redis, 0
    gateways = Gateways("127.0.0.1", lease_port(), 1)
    supervisor = Rolled()
    try:
        gateways.replace(supervisor)
    finally:
        gateways.close()
    assert supervisor.done == [(how, "gateway")]
