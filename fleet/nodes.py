"""Nodes on other machines: added with keys of their own, given new ones, and removed."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured, ValidationError
from django.db import transaction

from base import clock
from base.environment import made_once
from base.errors import ServiceError
from inference.curve import WorkerKeys, new_pair, public_key_of
from routing.models import Node
from routing.services.catalogue import LOCAL


def gateway_key() -> str:
    """Return the secret key by which this installation's gateways prove themselves to workers.

    It is SLUICE_GATEWAY_KEY or, where that is not set, made once and kept in SLUICE_HOME/gateway.key.
    """
    key: str = settings.SLUICE_GATEWAY_KEY or made_once(settings.SLUICE_HOME / "gateway.key", lambda: new_pair()[1])
    try:
        public_key_of(key)
    except ValueError as error:
        raise ImproperlyConfigured(f"SLUICE_GATEWAY_KEY: {error}") from error
    return key


def key_file(node: str) -> Path:
    """Return where the key file of `node` lies: made on a gateway's machine, then moved to the same place of the node's
    home.
    """
    path: Path = settings.SLUICE_HOME / f"node-{node}.key"
    return path


def make_keys(node: str) -> str:
    """Make a key pair for the worker of `node`, write its key file and return the public key."""
    public, secret = new_pair()
    WorkerKeys(public, secret, (public_key_of(gateway_key()),)).save(key_file(node))
    return public


def add_node(name: str, address: str) -> Node:
    """Make a node whose worker is reached at `address`, with a key pair: its secret half is in the node's key file.

    Raise ServiceError for a name or an address that can't be or is taken.
    """
    node = Node(name=name, address=address, public_key="0" * 40)
    if name == LOCAL:
        raise ServiceError("name", f"{LOCAL!r} is the node of this machine: choose another name")
    try:
        node.full_clean()
    except ValidationError as error:
        raise ServiceError("node", "; ".join(error.messages)) from error
    with transaction.atomic():
        node.public_key = make_keys(name)
        node.save()
    return node


def renew_keys(name: str) -> Node:
    """Give the node a new key pair; its worker is unreachable until it runs with the new key file."""
    node = _remote(name)
    with transaction.atomic():
        node.public_key = make_keys(name)
        node.save(update_fields=["public_key"])
    return node


@transaction.atomic
def remove_node(name: str) -> None:
    """Delete the node and the replicas on it; requests that run there end by themselves."""
    node = _remote(name)
    for replica in node.replicas.all():
        replica.delete()
    node.delete()


def note_seen(names: Iterable[str]) -> None:
    """Note that a gateway hears from these nodes now."""
    Node.objects.filter(name__in=list(names)).update(seen_at=clock.now())


def _remote(name: str) -> Node:
    node = Node.objects.exclude(address="").filter(name=name).first()
    if node is None:
        raise ServiceError("name", f"there is no node {name!r} with an address: see `manage.py nodes list`")
    return node
