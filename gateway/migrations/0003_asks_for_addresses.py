"""The last ask for another address of a user, the only one whose link works."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gateway", "0002_hosted_tools")]

    operations = [
        migrations.AddField(
            model_name="user",
            name="address_ask",
            field=models.CharField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="What a link to a new address says.",
                max_length=43,
            ),
        )
    ]
