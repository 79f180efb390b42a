"""Bodies of the management API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser


class BoundedJSONParser(JSONParser):
    """DRF's parser, which refuses JSON that nests too deeply as bad input instead of failing."""

    def parse(
        self,
        stream: IO[Any],
        media_type: str | None = None,
        parser_context: Mapping[str, Any] | None = None,
    ) -> dict[str, Any]:
        """Return the body's JSON; raise ParseError for what is none, or nests too deeply."""
        try:
            parsed: dict[str, Any] = super().parse(stream, media_type, parser_context)
        except RecursionError:
            raise ParseError("The body nests too deeply.") from None
        return parsed
