from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("gateway", "0009_alerts"),
    ]

    operations = [
        migrations.AddField(
            model_name="taskstate",
            name="asked_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
    ]
