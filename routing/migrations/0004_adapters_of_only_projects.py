"""Give adapters that were shared by one project alone to that project, whose keys made them and delete them."""

from __future__ import annotations

from typing import Any

from django.db import migrations


def fill(apps: Any, schema_editor: Any) -> None:
    """Fill the project of tenants' adapters where the tenant has exactly one, archived ones counted."""
    project_ids = apps.get_model("gateway", "Project").objects.values_list("id", flat=True)
    own = apps.get_model("routing", "PublicModel").objects.filter(project=None, adapter__isnull=False)
    for tenant in own.exclude(tenant=None).values_list("tenant", flat=True).order_by("tenant").distinct():
        found = list(project_ids.filter(tenant=tenant)[:2])
        if len(found) == 1:
            own.filter(tenant=tenant).update(project=found[0])


class Migration(migrations.Migration):
    dependencies = [("routing", "0003_projects_own_models")]

    operations = [migrations.RunPython(fill, migrations.RunPython.noop)]
