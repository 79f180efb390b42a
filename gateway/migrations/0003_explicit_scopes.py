import django.db.models.deletion
import gateway.models.access
from django.db import migrations, models


def name_all(apps, schema_editor):
    """Name what an empty list meant until now, so that no key in use loses what it can do."""
    keys = apps.get_model("gateway", "APIKey")._base_manager
    keys.filter(scopes=[]).update(scopes=["inference", "management"])


class Migration(migrations.Migration):

    dependencies = [
        ('gateway', '0002_proved_addresses'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='parent',
            field=models.ForeignKey(blank=True, help_text='The key that made this one and bounds it; revoked together.', null=True, on_delete=django.db.models.deletion.PROTECT, related_name='children', to='gateway.apikey'),
        ),
        migrations.AlterField(
            model_name='apikey',
            name='scopes',
            field=models.JSONField(default=gateway.models.access.only_inference, help_text='"inference", "management"; empty means none.'),
        ),
        migrations.RunPython(name_all, migrations.RunPython.noop),
    ]
