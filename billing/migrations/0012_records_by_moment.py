"""The records of a tenant by the moment at which they were booked, for seals and statements."""

from __future__ import annotations

from django.db import migrations, models

from base.database.operations import AddIndexBeside


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("billing", "0011_seals")]

    operations = [
        AddIndexBeside(
            model_name="usagerecord",
            index=models.Index(fields=["tenant", "settled_at"], name="usage_record_tenant_settled"),
        ),
    ]
