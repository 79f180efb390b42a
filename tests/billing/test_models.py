import pytest
from django.db import connection

pytestmark = [pytest.mark.contract, pytest.mark.django_db]


def test_tables_exist():
    assert "billing_wallet" in connection.introspection.table_names()
