"""The windows of budgets in which something is held, which are few of all."""

from __future__ import annotations

from django.db import migrations, models

from base.database.operations import AddIndexBeside


class Migration(migrations.Migration):
    atomic = False
    dependencies = [("billing", "0021_checked_sums")]

    operations = [
        AddIndexBeside(
            model_name="budgetwindow",
            index=models.Index(
                condition=models.Q(("held", 0), _negated=True), fields=["wallet"], name="budget_window_held"
            ),
        ),
    ]
