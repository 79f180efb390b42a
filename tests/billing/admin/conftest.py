"""Operators who look at the pages of billing."""

from __future__ import annotations

import pytest
from django.test import Client

from tenancy.models import User


@pytest.fixture
def admin_client(db):
    """A signed-in operator; without a password, since hashing one for each test takes a second."""
    client = Client()
    client.force_login(
        User.objects.create_superuser("admin@example.com"), backend="django.contrib.auth.backends.ModelBackend"
    )
    return client
