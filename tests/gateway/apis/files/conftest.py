"""The endpoints of files over a database of their own tenants, without engines."""

from __future__ import annotations

from uuid import UUID

import pytest

from base.database.threads import DatabaseThreads
from tenancy.models import Project, Tenant
from tests.gateway.apis.world import KEY, make_world
from tests.gateway.world import in_database

OTHER_KEY, NEIGHBOUR_KEY = "sk-sluice-other", "sk-sluice-neighbour"


def make_rows():
    for number, name in enumerate(("acme", "other")):
        tenant = Tenant.objects.create(id=UUID(int=1 + 100 * number), name=name, slug=name)
        Project.objects.create(id=UUID(int=2 + 100 * number), tenant=tenant, name="Default")
    Project.objects.create(id=UUID(int=50), tenant_id=UUID(int=1), name="Neighbour")


@pytest.fixture
async def world(transactional_db, settings, tmp_path):
    """A gateway whose key KEY is acme's; OTHER_KEY is another tenant's, NEIGHBOUR_KEY another project's of acme."""
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    await in_database(make_rows)
    made = await make_world()
    made.set_principal(KEY)
    made.set_principal(OTHER_KEY, tenant=UUID(int=101), project=UUID(int=102))
    made.set_principal(NEIGHBOUR_KEY, project=UUID(int=50))
    made.runtime.threads = DatabaseThreads(2)
    yield made
    made.runtime.threads.close()


@pytest.fixture
def app(world):
    """The whole application."""
    return world.application()
