from django.db import migrations, models
from django.db.models import F


def follow_their_base(apps, schema_editor):
    """Let adapters follow the prices of their base where they have only copied its price list's name."""
    adapters = apps.get_model("routing", "Adapter").objects
    copied = adapters.filter(model__rate_card=F("base__rate_card")).values_list("model", flat=True)
    apps.get_model("routing", "PublicModel").objects.filter(pk__in=list(copied)).update(rate_card="")


class Migration(migrations.Migration):

    dependencies = [
        ("routing", "0012_rules_that_hold_answers"),
    ]

    operations = [
        migrations.AlterField(
            model_name="publicmodel",
            name="rate_card",
            field=models.CharField(blank=True, help_text="Name of the rate card.", max_length=100),
        ),
        migrations.RunPython(follow_their_base, migrations.RunPython.noop),
    ]
