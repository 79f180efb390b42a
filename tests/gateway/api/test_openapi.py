"""The schema is the one that is checked in: a change of the API shows up in review.

Refresh it with ``python manage.py spectacular --file tests/gateway/api/openapi.yaml --validate --fail-on-warn``.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from django.test import Client
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.validation import validate_schema

GOLDEN = Path(__file__).with_name("openapi.yaml")


def generated():
    return SchemaGenerator().get_schema(request=None, public=True)


def test_schema_is_the_golden_file():
    from drf_spectacular.renderers import OpenApiYamlRenderer

    rendered = yaml.safe_load(OpenApiYamlRenderer().render(generated()))
    assert rendered == yaml.safe_load(GOLDEN.read_text())


def test_schema_is_valid_openapi():
    validate_schema(generated())


def test_patterns_are_those_of_clients_languages():
    """Python's end of a text is a letter Z elsewhere: generated clients refused every function's name."""
    assert "\\Z" not in str(generated())


@pytest.mark.django_db
def test_schema_and_page_are_public():
    assert Client().get("/api/schema/").status_code == 200
    page = Client().get("/api/docs/")
    assert page.status_code == 200
    text = page.content.decode()
    for path, methods in generated()["paths"].items():
        assert path in text
        for operation in methods.values():
            assert f'id="{operation["operationId"]}"' in text
