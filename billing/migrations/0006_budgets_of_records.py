from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('billing', '0005_usage_days'),
    ]

    operations = [
        migrations.AddField(
            model_name='usagerecord',
            name='budget',
            field=models.UUIDField(blank=True, help_text="The key's budget that it counts in; zeros: in none.", null=True),
        ),
    ]
