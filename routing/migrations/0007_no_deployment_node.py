from __future__ import annotations

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ("routing", "0006_replicas"),
    ]

    operations = [migrations.RemoveField(model_name="deployment", name="node")]
