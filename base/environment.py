"""The environment as settings read it: a value that can't be meant is one error, which names its variable."""

from __future__ import annotations

import ipaddress
import json
import secrets
import warnings
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

import environ
from django.core.exceptions import ImproperlyConfigured
from environ.fileaware_mapping import FileAwareMapping

from base.units import parse_credits, parse_money

T = TypeVar("T")
_MOST = 2**40  # no setting means more
_SWITCH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_POSTGRESQL = "django.db.backends.postgresql"
_DATABASES = frozenset({_POSTGRESQL, "django.db.backends.sqlite3"})
_UNITS = {unit: unit[0] for name in ("second", "minute", "hour", "day") for unit in (name, name[0])}


class _Given(FileAwareMapping):  # type: ignore[misc] # environ has no types
    """Variables that are set, without spaces and line ends around their values; an empty one counts as unset."""

    def __getitem__(self, key: str) -> str:
        value: str = super().__getitem__(key).strip()
        if not value:
            raise KeyError(key)
        return value


class Environment(environ.FileAwareEnv):  # type: ignore[misc] # environ has no types
    """Variables by name, or by the file that `NAME_FILE` names; ImproperlyConfigured says which is wrong and why.

    One that is empty counts as not set.
    """

    ENVIRON = _Given(cache=False)
    READ: ClassVar[set[str]] = set()
    """The names of all variables that were asked for."""

    def get_value(self, var: str, cast: Any = None, **options: Any) -> Any:
        """Return the variable as environ reads it, except that one which begins with $ is no other variable's name."""
        self.READ.add(var)
        try:
            given = self.ENVIRON.get(var, "")
            if given.startswith("$"):
                return self.parse_value(given, cast)
            return super().get_value(var, cast, **options)
        except OSError as error:
            raise ImproperlyConfigured(f"{var}_FILE can't be read: {error}") from error
        except UnicodeDecodeError:  # which quotes the file
            text = f"{var}_FILE names a file that isn't UTF-8 text: write the value as text"
            raise ImproperlyConfigured(text) from None

    def whole(self, name: str, default: int, *, least: int = 1, most: int = _MOST) -> int:
        """Return a whole number within bounds."""
        meaning = f"a whole number {_range(least, most)}"
        return self._read(name, default, int, lambda value: least <= value <= most, meaning)

    def number(self, name: str, default: float, *, least: float = 0.001, most: float = _MOST) -> float:
        """Return a number within bounds."""
        meaning = f"a number {_range(least, most)}"
        return self._read(name, default, float, lambda value: least <= value <= most, meaning)

    def switch(self, name: str, default: bool) -> bool:
        """Return whether something is on."""
        return self._read(name, default, lambda text: _SWITCH[text.lower()], lambda _: True, "true or false")

    def rate(self, name: str, default: str) -> str:
        """Return how often something may happen: a number, a slash and s, m, h or d."""

        def short(text: str) -> str:
            count, _, unit = text.partition("/")
            return f"{int(count)}/{_UNITS[unit]}"

        return self._read(name, short(default), short, lambda rate: rate[0] not in "0-", "a rate such as 30/minute")

    def address(self, name: str, default: str, *, example: str = "https://sluice.example.com") -> str:
        """Return an http(s) address without its last slash."""
        return self.exact_address(name, default, example=example).rstrip("/")

    def exact_address(self, name: str, default: str, *, example: str) -> str:
        """Return an http(s) address as it is given."""
        return self._read(name, default, str, _is_address, f"an address such as {example}")

    def redis(self, name: str) -> str:
        """Return the address of a Redis, empty where none is given."""
        meaning = "an address such as redis://:password@host:6379/0, rediss://… or unix:///path"
        return self._read(name, "", str, _is_redis, meaning, is_secret=True)

    def database(self, name: str, default: str) -> dict[str, Any]:
        """Return Django's settings for the database at an address, which may hold a password."""
        return self._database(name, _DATABASES) or self._parsed(default)

    def server(self, name: str) -> dict[str, Any] | None:
        """Return the same of a database on a PostgreSQL server, None where no address is given."""
        return self._database(name, {_POSTGRESQL})

    def _database(self, name: str, engines: Collection[str]) -> dict[str, Any] | None:
        meaning = "an address such as postgresql://user:password@host:5432/name (in a password %2F for /, %40 for @)"

        def is_known(found: dict[str, Any] | None) -> bool:
            assert found is not None, "an address was given"
            is_named = bool(found.get("NAME") or "service" in found.get("OPTIONS", {}))
            return is_named and found.get("ENGINE") in engines

        return self._read(name, None, self._parsed, is_known, meaning, is_secret=True)

    def _parsed(self, text: str) -> dict[str, Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it would repeat what it doesn't understand
            return dict(self.db_url_config(text))

    def parts(self, name: str, default: list[str]) -> list[str]:
        """Return what stands between commas."""
        return _parts(self.str(name, default="")) or default

    def one_of(self, name: str, default: str, words: Collection[str]) -> str:
        """Return one of the words."""
        return self._read(name, default, str, lambda text: text in words, f"one of {', '.join(words)}")

    def packs(self, name: str) -> list[tuple[int, int, str]]:
        """Return what credit is sold for: µcr, price in minor units, currency."""
        meaning = "prices with credits, such as 10.00 EUR = 1000, 50.00 EUR = 5500"
        return self._read(name, [], lambda text: list(map(_pack, _parts(text))), bool, meaning)

    def networks(self, name: str, default: list[str]) -> list[str]:
        """Return IP addresses and networks."""

        def networks(text: str) -> list[str]:
            return [str(ipaddress.ip_network(one)) for one in _parts(text)]

        return self._read(name, default, networks, bool, "addresses and networks such as 10.0.0.0/8")

    def origins(self, name: str) -> list[str]:
        """Return origins of web pages, ``*`` among them for any."""
        meaning = "origins such as https://app.example.com, or *"
        return self._read(name, [], _parts, lambda found: all(map(_is_origin, found)), meaning)

    def curve_key(self, name: str) -> str:
        """Return a CURVE key, or nothing."""
        return self._read(name, "", str, lambda text: len(text) == 40, "a key of 40 characters, in Z85", is_secret=True)

    def options(self, name: str, default: dict[str, Any]) -> dict[str, Any]:
        """Return an object that is given as JSON, which may hold credentials."""
        meaning = 'a JSON object such as {"bucket_name": "sluice"}'
        return self._read(name, default, json.loads, lambda value: isinstance(value, dict), meaning, is_secret=True)

    def mail(self, name: str, default: str) -> dict[str, Any]:
        """Return Django's settings for the mail server at an address, which may hold a password."""
        try:
            found: dict[str, Any] = self.email_url_config(self.str(name, default=default))
        except (ImproperlyConfigured, ValueError, KeyError):
            meaning = "smtp+tls://user:password@host:587, consolemail:// or dummymail://"
            raise ImproperlyConfigured(f"{name} has to be an address such as {meaning}") from None
        return found

    def _read(
        self,
        name: str,
        default: T,
        read: Callable[[str], T],
        is_right: Callable[[T], bool],
        meaning: str,
        *,
        is_secret: bool = False,
    ) -> T:
        """Return what `name` says, or the default where it is not set or empty; what `is_secret` isn't repeated."""
        text: str = self.str(name, default="")
        if not text:
            return default
        try:
            value = read(text)
            if is_right(value):
                return value
        except (ValueError, KeyError):
            pass  # said below
        said = "" if is_secret else f"is {text!r}: it "
        raise ImproperlyConfigured(f"{name} {said}has to be {meaning}")


def made_once(path: Path, make: Callable[[], str]) -> str:
    """Return the secret kept in the file at `path` (mode 0600), made by `make` if there is none yet."""
    if not path.exists():
        draft = path.with_suffix(f".{secrets.token_hex(4)}")
        draft.touch(mode=0o600)
        draft.write_text(make())
        try:
            path.hardlink_to(draft)
        except FileExistsError:
            pass  # another process made it first: use that one
        finally:
            draft.unlink()
    return path.read_text().strip()


def _range(least: float, most: float) -> str:
    return f"from {least:g} on" if most == _MOST else f"from {least:g} to {most:g}"


def _parts(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _pack(text: str) -> tuple[int, int, str]:
    price, _, credits = text.partition("=")
    amount, (money, currency) = parse_credits(credits), parse_money(price)
    if amount <= 0 or money <= 0 or currency in _ODD_CURRENCIES:
        raise ValueError(text)
    return amount, money, currency


_ODD_CURRENCIES = frozenset({"BHD", "IQD", "ISK", "JOD", "KWD", "LYD", "MGA", "OMR", "TND", "UGX", "XPF"})
"""Currencies whose minor units aren't those that Stripe counts in, or are thousandths."""


def _is_address(text: str) -> bool:
    parts = urlsplit(text)
    return parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)


def _is_redis(text: str) -> bool:
    from redis.connection import parse_url  # who has no Redis needs not wait for its library

    return parse_url(text) is not None  # type: ignore[no-untyped-call] # or ValueError


def _is_origin(text: str) -> bool:
    return text == "*" or (_is_address(text) and text.count("/") == 2)
