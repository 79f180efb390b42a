"""An operator's options of a remote engine, checked."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field, fields
from typing import Any
from urllib.parse import urlsplit

from inference.clients.remote.addresses import Network
from inference.clients.remote.dialects import DIALECTS
from inference.engine import EngineSpec
from inference.types import Kind

_PATH = re.compile(r"(?:/[!-~]*)?")
_WHOLE = {"max_context": 0, "max_output": 1, "concurrency": 1, "queue": 1, "vector_width": 0, "image_tokens": 1}
_CHOICES = {"dialect": tuple(DIALECTS), "images": ("none", "data", "urls")}
_SECONDS = ("queue_seconds", "connect_seconds", "first_seconds", "idle_seconds")


@dataclass(frozen=True, slots=True)
class RemoteOptions:
    """The keys of `EngineSpec.options`; only `model`, the name that the server gives the model, has no default.

    `max_context` 0 takes what the server says. `max_output` bounds the output of one request and, where the client
    gives no limit, is its limit: credit for all of it is held before the request begins. `concurrency` bounds the
    requests that one gateway has at the endpoint; of its deployments' values the smallest counts. `queue` more wait
    there, each at most `queue_seconds`. `first_seconds` bounds the time to the first event of an answer, `idle_seconds`
    that between two. `shared_prefixes` accepts that tenants share the server's prefix cache. `vector_width` 0 is learnt
    from the first embedding. `images` says what the model sees: ``none``, images that are sent along (``data``), or
    also those that its server fetches from addresses in requests (``urls``); one counts as at most `image_tokens` of
    prompt before the request runs. `probe` is the path at which the server says that it is well, "" the dialect's own.
    The gateway adds `networks`, beside public addresses those in which a server may stand, and `salt_key`, which keys
    the salts of prefix caches.
    """

    model: str = ""
    dialect: str = "generic"
    kinds: tuple[str, ...] = (Kind.CHAT.value,)
    max_context: int = 0
    max_output: int = 4096
    concurrency: int = 64
    queue: int = 256
    queue_seconds: float = 30.0
    connect_seconds: float = 5.0
    first_seconds: float = 300.0
    idle_seconds: float = 60.0
    shared_prefixes: bool = False
    vector_width: int = 0
    images: str = "none"
    image_tokens: int = 4096
    probe: str = ""
    networks: tuple[Network, ...] = ()
    salt_key: str = field(default="", repr=False)

    @classmethod
    def of(cls, spec: EngineSpec) -> RemoteOptions:
        """Return the options of `spec`; raise ValueError naming the one that is wrong."""
        known = {option.name for option in fields(cls)}
        unknown = sorted(set(spec.options) - known)
        if unknown:
            raise ValueError(f"{unknown[0]}: no such option; known are {', '.join(sorted(known - {'salt_key'}))}")
        given = dict(spec.options)
        _check(given)
        given["kinds"] = tuple(given.get("kinds", (Kind.CHAT.value,)))
        given["networks"] = tuple(ipaddress.ip_network(network) for network in given.get("networks", ()))
        options = cls(**given)
        dialect = DIALECTS[options.dialect]
        if Kind.SCORE in options.kinds and not dialect.scores:
            raise ValueError(f"kinds: a server of dialect {options.dialect} isn't asked for scores: leave 'score' out")
        if Kind.CLASSIFICATION in options.kinds:
            raise ValueError("kinds: foreign servers aren't asked for labels: leave 'classification' out")
        if not options.shared_prefixes and not dialect.isolates_prefixes and Kind.CHAT in options.kinds:
            raise ValueError(
                f"shared_prefixes: a server of dialect {options.dialect} shares its prefix cache between tenants;"
                " set it to true to accept that"
            )
        return options


def base_of(address: str) -> str:
    """Return a server's address without ``/v1`` and slashes at its end; raise ValueError for one that can't be."""
    parts = urlsplit(address.strip())
    try:
        is_right = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right = False
    if not is_right or parts.query or parts.fragment:
        raise ValueError("address: write it like http://10.0.0.5:8000")
    if parts.username is not None or parts.password is not None:
        raise ValueError("address: the API key has a field of its own")
    return address.strip().rstrip("/").removesuffix("/v1").rstrip("/")


def _check(given: dict[str, Any]) -> None:
    if not isinstance(given.get("model"), str) or not given["model"]:
        raise ValueError("model: the name that the server gives the model is missing")
    for name, choices in _CHOICES.items():
        if name in given and given[name] not in choices:
            raise ValueError(f"{name}: one of {', '.join(choices)}")
    kinds = given.get("kinds", ("chat",))
    if not isinstance(kinds, (list, tuple)) or not kinds or any(kind not in set(Kind) for kind in kinds):
        raise ValueError(f"kinds: a list of {', '.join(Kind)}")
    _check_numbers(given)
    if not isinstance(given.get("probe", ""), str) or not _PATH.fullmatch(given.get("probe", "")):
        raise ValueError("probe: a path such as /health, without spaces, line breaks and other than ASCII characters")
    if not isinstance(given.get("shared_prefixes", False), bool):
        raise ValueError("shared_prefixes: true or false")  # noqa: TRY004 - every wrong option is a ValueError


def _check_numbers(given: dict[str, Any]) -> None:
    for name, least in _WHOLE.items():
        value = given.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name}: a whole number from {least} on")
    for name in _SECONDS:
        value = given.get(name, 1)
        if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
            raise ValueError(f"{name}: a number of seconds above 0")
