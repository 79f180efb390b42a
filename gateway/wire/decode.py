"""Decoding JSON to structs. `decode` raises nothing but a 400 Refusal that names the field."""

from __future__ import annotations

import codecs
import functools
import re
from typing import Any, TypeVar, cast

import msgspec

from gateway.errors.refusal import Refusal

MAX_JSON_DEPTH = 64
MAX_JSON_CONTAINERS = 65_536  # objects and arrays in one body
MAX_JSON_MEMBERS = 131_072  # names in all its objects
MAX_MESSAGES = 2048
MAX_PARTS = 256
MAX_TOOLS = 128  # functions of one request
MAX_EMBEDDING_INPUTS = 2048
MAX_PAIRED_CHARACTERS = 8 * 1024 * 1024  # of one text that is paired with many, each time counted
MAX_EMBEDDING_TOKENS = 65_536  # ids in one input
MAX_LABELS = 256  # to choose from
MAX_LABEL = 200  # characters of one
MAX_PROBABILITIES = 65_536  # of one classification: of each label for each text
MAX_TASK = 40  # characters of a task's name
MAX_OUTPUT_TOKENS = 1_000_000
MAX_PROMPT_TOKENS = 1_000_000  # ids of one prompt
MAX_PROMPTS = 64  # of one request
MAX_CHOICES = 16  # answers of one request
MAX_LOGPROBS = 20  # most probable tokens at one position
MAX_TOKEN_ID = 2**31 - 1
MAX_IMAGES = 64  # in one request, its conversation included
MAX_IMAGE_BYTES = 5 * 1024 * 1024
MAX_IMAGE_SIDE = 8192  # pixels
MAX_IMAGE_PIXELS = 100_000_000  # of all images of one request: a few kilobytes of PNG unpack to 200 MiB
MAX_ADDRESS = 4096  # characters of an image's address


T = TypeVar("T")

_TO_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_WHERE = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_POINT = re.compile(r"Expected `[^`]*\bint\b[^`]*`, got `float`")
_FIELD = re.compile(r"field `([^`]*)`")
_SHOWN = 200
_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_HALF = re.compile(rb"\\u[dD][89aAbB]..(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89aAbB]..)\\u[dD][c-fC-F]")


@functools.cache
def _decoder(kind: Any, is_lax: bool) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind, strict=not is_lax)


def decode(kind: type[T], body: bytes | msgspec.Raw, *, at: str = "", is_lax: bool = False) -> T:
    """Return `body` as a `kind`, or refuse it (400) with the path of the field that is wrong, below `at`.

    Where it `is_lax` numbers may be texts.
    """
    if not at:
        check_depth(bytes(body))
    try:
        value: T = _decoder(cast("Any", kind), is_lax).decode(body)
    except msgspec.ValidationError as error:
        raise _invalid(str(error), at) from None
    except RecursionError:
        raise _too_deep() from None
    except (msgspec.DecodeError, UnicodeDecodeError, ValueError) as error:
        raise Refusal(400, "invalid_json", f"The body is not valid JSON: {_why(bytes(body), error)}") from None
    return value


def _why(body: bytes, error: Exception) -> str:
    """Return what is wrong with a body that can't be read."""
    if body.startswith(_MARKS) or b"\0" in body[:4]:
        return "it is in UTF-16 or UTF-32: send it in UTF-8."
    if body.startswith(codecs.BOM_UTF8):
        return "it begins with a byte order mark: leave that out."
    if isinstance(error, UnicodeDecodeError):
        return "a text in it is not UTF-8."
    if _HALF.search(body):
        return "a text in it has half a character (a lone surrogate, \\ud800 to \\udfff): send both halves, or none."
    return _sentence(str(error))


def check_depth(body: bytes) -> None:
    """Refuse JSON that nests deeper than `MAX_JSON_DEPTH` or has more than `MAX_JSON_CONTAINERS` objects and arrays, or
    `MAX_JSON_MEMBERS` names, before anything recurses into it or makes objects of it. Uses operations on the whole
    text: a Python loop over 8 MB would block the event loop.
    """
    if body.count(b"[") + body.count(b"{") <= MAX_JSON_DEPTH and body.count(b":") <= MAX_JSON_MEMBERS:
        return
    # A quote that isn't escaped ends a string, so a colon behind it ends a name: few bodies need to be taken apart.
    if body.count(b'":') - body.count(b'\\":') > MAX_JSON_MEMBERS:
        raise _too_many_names()
    outside = b"".join(body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')[::2])
    brackets = outside.translate(_TO_SQUARE, _NO_BRACKETS)
    if b"[" * (MAX_JSON_DEPTH + 1) in brackets:
        raise _too_deep()
    if outside.count(b":") > MAX_JSON_MEMBERS:
        raise _too_many_names()
    if brackets.count(b"[") > MAX_JSON_CONTAINERS:
        raise Refusal(400, "json_too_large", f"The body has more than {MAX_JSON_CONTAINERS} objects and arrays.")
    for _ in range(MAX_JSON_DEPTH):
        # Each pass removes the innermost pairs, so one level.
        size, brackets = len(brackets), brackets.replace(b"[]", b"")
        if len(brackets) == size:
            break
    if b"[]" in brackets or brackets.count(b"[") > MAX_JSON_DEPTH:
        raise _too_deep()


def unsupported(param: str, why: str = "") -> Refusal:
    """The 400 for a field or value of the API that can't be honoured here; never ignored."""
    return Refusal(400, "unsupported_parameter", f"'{param}' is not supported{f': {why}' if why else ''}.", param=param)


def invalid(param: str, message: str) -> Refusal:
    """The 400 for a value that is wrong in itself."""
    return Refusal(400, "invalid_value", message, param=param)


def require_no_nul(param: str, text: str) -> None:
    """Refuse (400) a text with a NUL character, which PostgreSQL keeps in no text and no JSON."""
    if "\0" in text:
        raise invalid(param, f"'{param}' has a NUL character.")


def _too_deep() -> Refusal:
    return Refusal(400, "json_too_deep", f"The body nests deeper than {MAX_JSON_DEPTH} levels.")


def _too_many_names() -> Refusal:
    return Refusal(400, "json_too_large", f"The body's objects have more than {MAX_JSON_MEMBERS} names.")


def _invalid(message: str, at: str) -> Refusal:
    match = _WHERE.match(message)
    what, path = (match["what"], match["path"] or "") if match else (message, "")
    param = (at + path).replace("[...]", "").lstrip(".")  # msgspec's name for any value of a mapping
    field = _FIELD.search(what)
    if field and "missing required" in what:
        param = f"{param}.{field[1]}".lstrip(".")
        return Refusal(400, "missing_required_parameter", f"'{param}' is required.", param=param)
    if field and "unknown field" in what:
        param = f"{param}.{field[1]}".lstrip(".")[:_SHOWN]
        return Refusal(400, "unknown_parameter", f"'{param}' is not a parameter of this endpoint.", param=param)
    code = "invalid_type" if ", got `" in what else "invalid_value"
    if _POINT.search(what):
        what = "write a whole number without a point or an exponent: 8, not 8.0"
    return Refusal(400, code, f"'{param or 'body'}': {_sentence(what)}", param=param or None)


def _sentence(text: str) -> str:
    text = text if len(text) <= _SHOWN else text[:_SHOWN] + "…"
    return text if text.endswith(".") else text + "."
