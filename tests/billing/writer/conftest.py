from __future__ import annotations

import pytest
from django.db import connection

from billing import reconcile
from tests.billing.writer.world import open_desk


@pytest.fixture
def desk(transactional_db):
    """A writer on the test database; whatever was done through it must reconcile."""
    with open_desk() as desk:
        yield desk
    assert reconcile.check(connection, recompute=False) == []
