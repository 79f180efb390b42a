"""What migrations do to rows that are there."""

from __future__ import annotations

from importlib import import_module

import pytest
from django.db import connection
from django.db.migrations.loader import MigrationLoader

from routing.models import Adapter, PublicModel
from tenancy.models import Project, Tenant

pytestmark = pytest.mark.django_db
FILL = "0004_adapters_of_only_projects"


def test_adapters_of_a_tenant_with_one_project_become_the_projects():
    def model(name, tenant=None):
        return PublicModel.objects.create(name=name, kinds=["chat"], context_length=9, rate_card="x", tenant=tenant)

    base, projects = model("base"), {}
    for slug, names in {"one": ["a"], "two": ["a", "b"]}.items():
        tenant = Tenant.objects.create(name=slug, slug=slug)
        projects[slug] = [Project.objects.create(tenant=tenant, name=name) for name in names]
        Adapter.objects.create(model=model(f"{slug}/own", tenant), base=base, config={}, rank=1, bytes=1)
        model(f"{slug}/gone", tenant)
    Adapter.objects.create(model=model("everybodys"), base=base, config={}, rank=1, bytes=1)
    state = MigrationLoader(connection).project_state(("routing", FILL))
    import_module(f"routing.migrations.{FILL}").fill(state.apps, None)
    assert dict(PublicModel.objects.exclude(project=None).values_list("name", "project")) == {
        "one/own": projects["one"][0].id
    }
