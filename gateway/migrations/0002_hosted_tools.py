"""What a tenant wants to become of tools that would run at a provider."""

from __future__ import annotations

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("gateway", "0001_initial")]

    operations = [
        migrations.AddField(
            model_name="tenant",
            name="hosted_tools",
            field=models.CharField(
                choices=[("refuse", "Are refused"), ("leave_out", "Are left out of the request")],
                db_default="refuse",
                default="refuse",
                help_text="What becomes of tools in a request that would run at a provider, such as a search of the "
                "web. What is left out is told in the header x-sluice-not-enforced.",
                max_length=10,
            ),
        )
    ]
