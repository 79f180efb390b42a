"""IP networks that a key may be used from."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from base.errors import ServiceError

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

MOST_NETWORKS = 64


def parsed_networks(texts: Iterable[str], field: str = "networks") -> tuple[Network, ...]:
    """Return the networks (single addresses too), each once, in order; raise ServiceError naming one that isn't any."""
    found: dict[Network, None] = {}
    for text in texts:
        try:
            found[ipaddress.ip_network(str(text).strip(), strict=False)] = None
        except ValueError:
            message = f"{str(text)[:60]!r} is no IP address or network: write it like 192.0.2.0/24 or 2001:db8::/32."
            raise ServiceError(field, message) from None
    if len(found) > MOST_NETWORKS:
        raise ServiceError(field, f"A key has at most {MOST_NETWORKS} networks.")
    return tuple(found)


@lru_cache(4096)
def is_within(address: str, networks: tuple[Network, ...]) -> bool:
    """Return whether a client's address, as its server knows it, is in one of the networks; what isn't one is in none.

    An IPv4 address that came over IPv6 is the IPv4 address.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return False
    mapped = parsed.ipv4_mapped if isinstance(parsed, ipaddress.IPv6Address) else None
    return any((mapped or parsed) in network for network in networks)
