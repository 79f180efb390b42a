"""Months whose usage and charges are in files."""

from __future__ import annotations

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

import base.ids


class Migration(migrations.Migration):
    dependencies = [("billing", "0022_windows_held")]

    operations = [
        migrations.CreateModel(
            name="ArchivedMonth",
            fields=[
                (
                    "id",
                    models.UUIDField(default=base.ids.uuid7, editable=False, primary_key=True, serialize=False),
                ),
                ("month", models.DateField(unique=True)),
                ("ends_at", models.DateTimeField()),
                ("manifest", models.CharField(max_length=64)),
                ("written_at", models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ("dropping_at", models.DateTimeField(null=True)),
                ("dropped_at", models.DateTimeField(null=True)),
                ("may_drop", models.BooleanField(default=False)),
            ],
            options={"ordering": ["month"]},
        ),
        migrations.CreateModel(
            name="ArchivedFile",
            fields=[
                (
                    "id",
                    models.UUIDField(default=base.ids.uuid7, editable=False, primary_key=True, serialize=False),
                ),
                (
                    "month",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="files",
                        to="billing.archivedmonth",
                    ),
                ),
                ("tenant", models.UUIDField()),
                ("leaves", models.BigIntegerField()),
                ("size", models.BigIntegerField()),
                ("digest", models.CharField(max_length=64)),
                ("index_digest", models.CharField(max_length=64)),
                ("blocks", models.JSONField(default=dict)),
            ],
            options={
                "constraints": [models.UniqueConstraint(fields=("tenant", "month"), name="archived_file_once")],
            },
        ),
    ]
