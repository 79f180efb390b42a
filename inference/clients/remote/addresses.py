"""Addresses that remote engines may have, so that a deployment is no way into the operator's network.

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
_LOCAL_NAT64 = ipaddress.ip_network("64:ff9b:1::/48")
_COMPATIBLE = ipaddress.ip_network("::/96")
_SIIT = ipaddress.ip_network("::ffff:0:0:0/96")  # IPv4 as a stateless translator writes it; not the mapped form


class ForbiddenAddressError(OSError):
    """A remote engine may not be at this address."""


def refusal_of(address: Address, networks: Sequence[Network]) -> str:
    """Return why no remote engine may be at `address`, or nothing.

    Public addresses are allowed, others where they are in `networks`; link-local, multicast, unspecified and reserved
    addresses and those of clouds' metadata never. An IPv4 address inside an IPv6 one counts as well.
    """
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or _compatible(address) or address
    for one in (address, *_inner(address)):
        if one in _METADATA or one.is_link_local or one.is_multicast or one.is_unspecified or _is_reserved(one):
            return f"{address} can't be the address of a remote engine"
        if not _is_public(one) and not any(one in network for network in networks):
            allowed = ",".join(map(str, (*networks, ipaddress.ip_network(one))))
            return (
                f"{address} is in no network that SLUICE_REMOTE_NETWORKS allows: set SLUICE_REMOTE_NETWORKS={allowed}"
                " in the environment of gateways, pages and jobs, then start them again"
            )
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


def _is_public(address: Address) -> bool:
    """Whether it is one of the internet's. Some versions of Python count three networks to them that are a site's."""
    if isinstance(address, ipaddress.IPv6Address):
        is_sites = address.is_site_local or address in _LOCAL_NAT64 or address in _SIIT
        return address.is_global and not is_sites
    return address.is_global


def _compatible(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """Return the IPv4 address that one of the old IPv4-compatible form stands for; :: and ::1 stand for none."""
    if address not in _COMPATIBLE or address.is_unspecified or address.is_loopback:
        return None
    return ipaddress.IPv4Address(int(address))


def _inner(address: Address) -> list[Address]:
    """Return the IPv4 addresses to which a gateway passes what is sent to this IPv6 address."""
    if isinstance(address, ipaddress.IPv4Address):
        return []
    found: list[Address | None] = [address.sixtofour, *(address.teredo or ())]
    if address in _NAT64 or address in _SIIT:
        found.append(ipaddress.IPv4Address(int(address) & 0xFFFFFFFF))
    if address in _LOCAL_NAT64:
        found += _behind_local(address.packed)
    return [one for one in found if one is not None]


def _behind_local(packed: bytes) -> list[Address]:
    """Return the IPv4 addresses that one for translation within a site can hold, by each length that the site's prefix
    can have: what is behind the IPv4 address is zero then, and the byte after the first eight is none of it.
    """
    found = [packed[12:]]
    for start in (6, 7, 8):
        after = start + 5
        if not any(packed[after:]):
            found.append(packed[start:8] + packed[9:after])
    return [ipaddress.IPv4Address(inner) for inner in found if any(inner)]
