"""Keys of the connections between this installation's gateways and the workers of other machines."""

from __future__ import annotations

from pathlib import Path

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured

from base.environment import made_once
from inference.curve import WorkerKeys, new_pair, public_key_of


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
