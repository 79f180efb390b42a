"""A process of one plane: which paths it serves, what it imports, and what pages know of a gateway elsewhere."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from billing.models import PlanVersion
from gateway import asgi
from gateway.generation.dry_run import Wanted, dry_run
from gateway.lifespan import open_pages
from gateway.runtime.data_plane import EXPLAIN, STANDING, HTTPDataPlane, Live, standing_of
from gateway.runtime.readiness import operator_token
from routing.errors import RoutingError
from tests.gateway.apis.client import ask, assert_error
from tests.gateway.apis.server import serving
from tests.gateway.world import in_database, make_world, opened
from tests.services.ports import lease_port

pytestmark = pytest.mark.django_db(transaction=True)

PAGES = """
import sys
from gateway.asgi import application_of
application_of("data")
pages = ("control.admin", "control.console", "control.api", "control.urls", "billing.admin")
print([name for name in sys.modules if name.startswith(pages)])
"""


def test_the_data_plane_imports_no_page():
    done = subprocess.run([sys.executable, "-c", PAGES], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["[]"]


async def over(application, state, path, **asked):
    async def with_state(scope, receive, send):
        await application({**scope, "state": state}, receive, send)

    return await ask(with_state, path, **asked)


@pytest.fixture
async def gateway(tmp_path):
    """A gateway of the data plane alone: its state, and its address."""
    world = await in_database(make_world)
    async with opened(tmp_path) as runtime:
        state = {"runtime": runtime, "metrics": runtime.metrics}
        data = asgi.application_of(asgi.DATA)
        async with serving(data, runtime=runtime) as place:
            yield world, state, f"http://{place}"


@pytest.mark.parametrize("path", ["/", "/accounts/login/", "/admin/", "/api/v1/keys", "/v1/organization/costs"])
async def test_pages_are_not_the_data_planes(path):
    assert_error(await over(asgi.application_of(asgi.DATA), {}, path, key=None), 404, "unknown_endpoint")


async def test_requests_are_not_the_control_planes():
    state, close = await open_pages()
    control = asgi.application_of(asgi.CONTROL)
    try:
        assert_error(await over(control, state, "/v1/models", key="any"), 404, "unknown_endpoint")
        for path in (STANDING, EXPLAIN):
            assert (await over(control, state, path, key=operator_token())).status == 404
        assert (await over(control, state, "/accounts/login/", key=None)).status == 200
        assert (await over(control, state, "/healthz", key=None)).status == 200
        told = await over(control, state, "/readyz", key=None)
        assert (told.status, told.json()["checks"]) == (200, {"triggers": "ok", "disk": "ok"})
        assert b"sluice_requests_total" in (await over(control, state, "/metrics", key=operator_token())).body
    finally:
        await close()


@pytest.mark.parametrize("key", [None, "guessed"])
@pytest.mark.parametrize("path", [STANDING, EXPLAIN])
async def test_what_gateways_know_is_for_processes_with_the_token(gateway, path, key):
    _, state, _ = gateway
    method = "GET" if path == STANDING else "POST"
    answer = await over(asgi.application_of(asgi.DATA), state, path, key=key, method=method, address="127.0.0.1")
    assert_error(answer, 401, "operators_only")


async def test_pages_know_of_a_gateway_elsewhere_what_its_own_do(gateway):
    world, state, address = gateway
    runtime, far = state["runtime"], Live(far=HTTPDataPlane(address))
    here = Live(runtime)
    standing = await asyncio.to_thread(far.far.standing)
    assert standing == standing_of(runtime)
    states = await asyncio.to_thread(far.deployment_states)
    assert states == here.deployment_states()
    assert states[world.deployment].is_ready
    [replica] = runtime.catalogue.snapshot.catalogue.replicas_of("fake")
    assert far.usable(replica.id) == here.usable(replica.id) == ""
    version = await in_database(PlanVersion.objects.select_related("plan").get, plan__slug="test")
    for live in (here, far):
        found = await in_database(dry_run, live, version, Wanted(model="fake", text="Hello"), world.tenant.id)
        assert (found.model, found.deployment) == ("fake", world.deployment)
        with pytest.raises(RoutingError) as refused:
            await in_database(dry_run, live, version, Wanted(model="none"), world.tenant.id)
        assert refused.value.code == "model_not_found"


async def test_where_no_gateway_answers_pages_know_nothing(settings):
    far = Live(far=HTTPDataPlane(f"http://127.0.0.1:{lease_port()}"))
    assert await asyncio.to_thread(far.deployment_states) is None
    assert (far.usable("any"), far.adapter("base", "any")) == ("", None)
