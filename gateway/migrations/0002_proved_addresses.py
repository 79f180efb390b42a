from django.db import migrations


def prove(apps, schema_editor):
    """Leave each user one address, the one that they sign in with.

    Who has no row for it came by an invitation's mail or was made by an operator: it is proved. An unproved row for it
    stays unproved: it was claimed on allauth's page of addresses, and its owner proves it at the next sign-in.
    """
    users = apps.get_model("gateway", "User").objects
    addresses = apps.get_model("account", "EmailAddress").objects
    own = dict(users.values_list("id", "email"))
    kept = set()
    for row in addresses.order_by("-verified", "id").iterator():
        if row.user_id in kept or row.email.lower() != own[row.user_id]:
            row.delete()
            continue
        kept.add(row.user_id)
    addresses.filter(primary=False).update(primary=True)
    for user, email in own.items():
        if user not in kept:
            addresses.create(user_id=user, email=email, verified=True, primary=True)


class Migration(migrations.Migration):
    dependencies = [
        ("gateway", "0001_initial"),
        ("account", "0009_emailaddress_unique_primary_email"),
    ]
    operations = [migrations.RunPython(prove, migrations.RunPython.noop)]
