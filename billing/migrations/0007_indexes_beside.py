"""Indexes on tables that grow, made while they are in use."""

from __future__ import annotations

from django.db import migrations, models

from base.database.operations import AddIndexBeside


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("billing", "0006_budgets_of_records")]

    operations = [
        AddIndexBeside(
            model_name="usagerecord",
            index=models.Index(
                condition=models.Q(("waived", True)), fields=["day", "request"], name="usage_record_waived"
            ),
        ),
        AddIndexBeside(
            model_name="ledgertransfer",
            index=models.Index(
                condition=models.Q(("code", 2), _negated=True), fields=["code", "id"], name="ledger_transfer_no_charges"
            ),
        ),
        AddIndexBeside(
            model_name="creditgrant",
            index=models.Index(fields=["created_at"], name="credit_grant_newest"),
        ),
    ]
