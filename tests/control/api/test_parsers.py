"""Bodies of the management API that Python's own decoder fails on are bad input."""

from __future__ import annotations

from io import BytesIO

import pytest
from rest_framework.exceptions import ParseError

from control.api.parsers import BoundedJSONParser


def test_json_that_nests_too_deeply_is_refused():
    with pytest.raises(ParseError, match="nests too deeply"):
        BoundedJSONParser().parse(BytesIO(b"[" * 200_000), "application/json", {})
