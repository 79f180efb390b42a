"""Formats that an answer is held to, as each API writes them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gateway.wire.decode import invalid
from inference.types import Guidance, GuidanceKind

SchemaName = Annotated[str, Meta(pattern="^[a-zA-Z0-9_-]{1,64}$")]
JSONSchema = dict[str, Any]


class TextFormat(msgspec.Struct, tag_field="type", tag="text", forbid_unknown_fields=True):
    """Any text."""


class ObjectFormat(msgspec.Struct, tag_field="type", tag="json_object", forbid_unknown_fields=True):
    """Any JSON object."""


class NamedSchema(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """A JSON Schema. Where it isn't `strict`, keywords that can't be held are left out and told; name and description
    change nothing.
    """

    name: SchemaName
    schema: JSONSchema
    description: str | None = None
    strict: bool | None = None


class ChatSchemaFormat(msgspec.Struct, tag_field="type", tag="json_schema", forbid_unknown_fields=True):
    """JSON by a schema, in Chat Completions."""

    json_schema: NamedSchema


class ResponseSchemaFormat(NamedSchema, tag_field="type", tag="json_schema", kw_only=True, forbid_unknown_fields=True):
    """JSON by a schema, in Responses."""


ChatFormats = TextFormat | ObjectFormat | ChatSchemaFormat
ResponseFormats = TextFormat | ObjectFormat | ResponseSchemaFormat


class StructuredOutputs(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """vLLM's field of that name: one of the first five, and which white space stands between the tokens of JSON."""

    json: str | JSONSchema | None = None
    json_object: bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None  # in Lark
    disable_any_whitespace: bool | None = None
    whitespace_pattern: str | None = None
    disable_fallback: bool | None = None  # there is nothing to fall back to
    disable_additional_properties: bool | None = None

    def guidance(self) -> Guidance:
        """The one format that it asks for; refuses a contradiction."""
        at = "structured_outputs"
        if self.disable_additional_properties:
            raise invalid(f"{at}.disable_additional_properties", "Say 'additionalProperties' in the schema instead.")
        wanted = {
            "json": self.json,
            "json_object": self.json_object or None,
            "regex": self.regex,
            "choice": self.choice,
            "grammar": self.grammar,
        }
        given = [name for name, value in wanted.items() if value is not None]
        if len(given) != 1:
            raise invalid(at, f"'{at}' has to have exactly one of {', '.join(wanted)}.")
        [name] = given
        space = "" if self.disable_any_whitespace else self.whitespace_pattern
        if space is not None and not name.startswith("json"):
            raise invalid(at, f"'{at}': white space can be set for JSON only.")
        param = f"{at}.{name}"
        match name:
            case "json":
                source = self.json if isinstance(self.json, str) else _text(self.json)
                return Guidance(GuidanceKind.JSON_SCHEMA, source, whitespace=space, param=param)
            case "json_object":
                return Guidance(GuidanceKind.JSON_OBJECT, whitespace=space, param=param)
            case "choice":
                return Guidance(GuidanceKind.CHOICE, choices=tuple(self.choice or ()), param=param)
            case "regex":
                return Guidance(GuidanceKind.REGEX, self.regex or "", param=param)
            case _:
                return Guidance(GuidanceKind.LARK, self.grammar or "", param=param)


def guidance_of(
    wanted: ChatFormats | ResponseFormats | None, at: str, structured: StructuredOutputs | None
) -> Guidance | None:
    """Return what the format `wanted` by the field `at`, or vLLM's field, asks for; None for any text."""
    match wanted:
        case ObjectFormat():
            guidance = Guidance(GuidanceKind.JSON_OBJECT, param=at)
        case ChatSchemaFormat(named):
            guidance = _guidance(named, at, f"{at}.json_schema.schema")
        case ResponseSchemaFormat():
            guidance = _guidance(wanted, at, f"{at}.schema")
        case _:
            return None if structured is None else structured.guidance()
    if structured is not None:
        raise invalid("structured_outputs", f"'structured_outputs' and '{at}' can't be given together.")
    return guidance


def _guidance(named: NamedSchema, at: str, schema_at: str) -> Guidance:
    source, strict = _text(named.schema), bool(named.strict)
    return Guidance(GuidanceKind.JSON_SCHEMA, source, strict=strict, param=at, schema_at=schema_at)


def _text(schema: object) -> str:
    return msgspec.json.encode(schema).decode()
