"""Up to where the books were found right, and what rows add up to until then: of the books, and of each key."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("billing", "0020_promises")]

    operations = [
        migrations.CreateModel(
            name="CheckedSum",
            fields=[
                ("id", models.BigAutoField(primary_key=True, serialize=False)),
                (
                    "kind",
                    models.CharField(
                        choices=[("wallet", "Wallet"), ("grant", "Grant"), ("window", "Window"), ("beyond", "Beyond")],
                        max_length=10,
                    ),
                ),
                ("subject", models.UUIDField()),
                ("name", models.CharField(blank=True, max_length=60)),
                ("amount", models.BigIntegerField()),
                ("archived", models.BigIntegerField(db_default=0)),
            ],
            options={
                "indexes": [
                    models.Index(
                        condition=models.Q(("kind", "grant"), models.Q(("amount", 0), _negated=True)),
                        fields=["subject"],
                        name="checked_sum_open_grant",
                    )
                ],
                "constraints": [
                    models.UniqueConstraint(fields=("kind", "subject", "name"), name="checked_sum_once"),
                ],
            },
        ),
        migrations.CreateModel(
            name="KeyTotal",
            fields=[
                ("api_key", models.UUIDField(primary_key=True, serialize=False)),
                ("until", models.DateTimeField()),
                ("charge", models.BigIntegerField(default=0)),
            ],
        ),
        migrations.AddField("reconciliation", "done", models.BigIntegerField(db_default=0)),
        migrations.AddField("reconciliation", "rows", models.BigIntegerField(db_default=0)),
        migrations.AddField(
            "reconciliation",
            "is_whole",
            models.BooleanField(db_default=False, help_text="All rows were read, not those since the last one."),
        ),
        migrations.AddField("reconciliation", "seen_at", models.DateTimeField(null=True)),
        migrations.AddField("reconciliation", "transfer", models.BigIntegerField(null=True)),
        migrations.AddField("reconciliation", "record", models.UUIDField(null=True)),
    ]
