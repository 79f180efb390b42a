"""Bodies of the management API."""

from __future__ import annotations

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError
from rest_framework.parsers import JSONParser
from rest_framework.serializers import Serializer

from gateway.errors.refusal import Refusal


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


class KnownFields(Serializer[Any]):
    """A body that has no other fields than the serializer's: a limit whose name is misspelt would be none."""

    def to_internal_value(self, data: Any) -> Any:
        """Return the fields' values; raise a 400 Refusal for a field that can't be given here."""
        known = [name for name, field in self.fields.items() if not field.read_only]
        if isinstance(data, Mapping) and (unknown := [str(name)[:60] for name in data if name not in known]):
            message = f"'{unknown[0]}' can't be given here: leave it out. The fields are {', '.join(known)}."
            raise Refusal(400, "unsupported_parameter", message, param=unknown[0])
        return super().to_internal_value(data)
