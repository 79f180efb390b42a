from django.db import migrations, models

_RESTRICTION = {
    "blank": True,
    "db_default": "",
    "default": "",
    "help_text": "Names of the models that it pays for, a line each; empty: all.",
}


class Migration(migrations.Migration):

    dependencies = [
        ("billing", "0017_carry_budgets"),
    ]

    operations = [
        migrations.AddField("creditgrant", "restriction", models.TextField(**_RESTRICTION)),
        migrations.AddField("scheduledgrant", "restriction", models.TextField(**_RESTRICTION)),
        migrations.AddField(
            "wallet",
            "pools",
            models.TextField(
                blank=True,
                db_default="",
                default="",
                editable=False,
                help_text="What is left of restricted grants: models to [rest, held] as JSON.",
            ),
        ),
    ]
