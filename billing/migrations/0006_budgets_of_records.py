from django.db import migrations, models
from django.db.models import OuterRef, Subquery


def fill(apps, schema_editor):
    """Let the records have the budgets that they were counted in, as far as that can be told."""
    alias = schema_editor.connection.alias
    budgets = apps.get_model("billing", "Budget").objects.using(alias)
    records = apps.get_model("billing", "UsageRecord").objects.using(alias)
    theirs = budgets.filter(api_key=OuterRef("api_key"), created_at__lte=OuterRef("reserved_at"))
    records.filter(api_key__in=budgets.values("api_key")).update(budget=Subquery(theirs.values("pk")[:1]))


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0005_usage_days'),
    ]

    operations = [
        migrations.AddField(
            model_name='usagerecord',
            name='budget',
            field=models.UUIDField(blank=True, help_text="The key's budget that it counts in.", null=True),
        ),
        migrations.RunPython(fill, migrations.RunPython.noop),
    ]
