"""Which addresses a remote engine may have, so that a deployment is no way into the operator's network.

The check is made of the address that a socket is about to connect to: a name that resolves to something else each time
it is asked changes nothing.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from typing import Any

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Where clouds answer with credentials of the machine, beside link-local addresses.
_METADATA = frozenset(map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192")))
_NAT64 = ipaddress.ip_network("64:ff9b::/96")


class ForbiddenAddressError(OSError):
    """A remote engine may not be at this address."""


def refusal_of(address: Address, networks: Sequence[Network]) -> str:
    """Return why no remote engine may be at `address`, or nothing.

    Public addresses are allowed, others where they are in `networks`; link-local, multicast, unspecified and reserved
    addresses and those of clouds' metadata never. An IPv4 address inside an IPv6 one counts as well.
    """
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    for one in (address, *_inner(address)):
        if one in _METADATA or one.is_link_local or one.is_multicast or one.is_unspecified or _is_reserved(one):
            return f"{address} can't be the address of a remote engine"
        if not one.is_global and not any(one in network for network in networks):
            return f"{address} is in no network that SLUICE_REMOTE_NETWORKS allows"
    return ""


def open_socket(networks: Sequence[Network], info: Sequence[Any]) -> socket.socket:
    """Return a socket for an address as getaddrinfo gives it; raise `ForbiddenAddressError`."""
    family, kind, protocol, _, where = info
    refusal = refusal_of(ipaddress.ip_address(str(where[0]).partition("%")[0]), networks)
    if refusal:
        raise ForbiddenAddressError(refusal)
    return socket.socket(family=family, type=kind, proto=protocol)


def _is_reserved(address: Address) -> bool:
    return isinstance(address, ipaddress.IPv4Address) and address.is_reserved


def _inner(address: Address) -> list[Address]:
    """Return the IPv4 addresses to which a gateway passes what is sent to this IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[Address | None] = [address.sixtofour, *(address.teredo or ())]
    if address in _NAT64:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    return [one for one in found if one is not None]
