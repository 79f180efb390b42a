"""The sums of all tenants by hour, for the operator's chart."""

from __future__ import annotations

from django.db import migrations, models

from base.database.operations import AddIndexBeside


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("billing", "0007_indexes_beside")]

    operations = [
        AddIndexBeside(model_name="usagerollup", index=models.Index(fields=["hour"], name="usage_rollup_hour")),
    ]
