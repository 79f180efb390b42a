"""Operators of each role, in browsers in which they are signed in."""

from __future__ import annotations

from django.contrib.auth.models import Group
from django.test import Client

from tenancy.models import User
from tenancy.services import roles

BACKEND = "django.contrib.auth.backends.ModelBackend"


def browser_of(user):
    client = Client()
    client.force_login(user, backend=BACKEND)
    return client


def operator(*groups):
    """Return an operator with these roles; without any a superuser."""
    if not groups:
        return User.objects.filter(email="root@example.com").first() or User.objects.create_superuser(
            "root@example.com"
        )
    roles.ensure_roles()
    user = User.objects.create_user(f"{'-'.join(groups)}@example.com", is_staff=True)
    user.groups.set(Group.objects.filter(name__in=groups))
    return user


def text_of(answer):
    return answer.content.decode()
