"""Keys of connections over tcp (CURVE): both ends prove themselves, and everything between them is encrypted.

A worker serves the gateways that its key file names, and nobody else; a gateway speaks to the worker whose public key
the catalogue has. Keys are 40 characters of Z85.
"""

from __future__ import annotations

import json
import logging
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import zmq
from zmq.auth.thread import ThreadAuthenticator

KEY_LENGTH = 40
_DOMAIN = "sluice"
_MOST_NOTED = 100  # unknown keys of which the log has a line each

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WorkerKeys:
    """A worker's key pair and the public keys of the gateways that it serves."""

    public_key: str
    secret_key: str = field(repr=False)
    gateways: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if public_key_of(self.secret_key) != self.public_key:
            raise ValueError("public_key and secret_key are not a pair")
        if not self.gateways:
            raise ValueError("gateways: no gateway may connect")
        for key in self.gateways:
            if not is_key(key):
                raise ValueError(f"gateways: {key!r} is not a public key")

    @classmethod
    def load(cls, path: Path) -> WorkerKeys:
        """Return the keys in `path`; raise OSError, or a ValueError that names what is wrong with it."""
        if path.stat().st_mode & 0o077:
            raise ValueError(f"{path} may be read by others: chmod 600 {path}")
        try:
            data = json.loads(path.read_text())
            return cls(data["public_key"], data["secret_key"], tuple(data["gateways"]))
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"key file {path}: {error}") from error

    def save(self, path: Path) -> None:
        """Replace the file at `path` in one step, readable by its owner alone."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(self), indent=1) + "\n")
        temporary.replace(path)


def new_pair() -> tuple[str, str]:
    """Return a new key pair: public, secret."""
    public, secret = zmq.curve_keypair()
    return public.decode(), secret.decode()


def is_key(text: str) -> bool:
    """Whether `text` is a key in Z85."""
    try:
        return len(text) == KEY_LENGTH and bool(zmq.curve_public(text.encode()))
    except (ValueError, KeyError, zmq.ZMQError):
        return False


def public_key_of(secret_key: str) -> str:
    """Return the public key of a secret key; raise ValueError for what is none."""
    if not is_key(secret_key):
        raise ValueError(f"a key is {KEY_LENGTH} characters of Z85")
    return zmq.curve_public(secret_key.encode()).decode()


def secure_client(socket: Any, *, server_key: str, secret_key: str) -> None:
    """Let `socket` speak only to the worker with the public key `server_key`; call it before connecting."""
    socket.curve_secretkey = secret_key.encode()
    socket.curve_publickey = public_key_of(secret_key).encode()
    socket.curve_serverkey = server_key.encode()


def secure_server(context: zmq.Context[Any], socket: Any, keys: WorkerKeys) -> ThreadAuthenticator:
    """Let `socket` be reached by the gateways of `keys` alone; call it before binding, and stop what it returns."""
    authenticator = ThreadAuthenticator(context)
    authenticator.start()
    authenticator.configure_curve_callback(domain=_DOMAIN, credentials_provider=_Gateways(keys.gateways))
    socket.zap_domain = _DOMAIN.encode()
    socket.setsockopt(zmq.ZAP_ENFORCE_DOMAIN, 1)  # nobody connects unless the authenticator has said so
    socket.curve_secretkey = keys.secret_key.encode()
    socket.curve_publickey = keys.public_key.encode()
    socket.curve_server = True
    return authenticator


class _Gateways:
    """Answers the authenticator whether a key is a gateway's."""

    def __init__(self, keys: tuple[str, ...]) -> None:
        self._keys = {key.encode() for key in keys}
        self._noted: set[bytes] = set()

    def callback(self, domain: str, key: bytes) -> bool:
        if key in self._keys:
            return True
        if key not in self._noted and len(self._noted) < _MOST_NOTED:
            self._noted.add(key)
            log.warning("a client with the unknown key %s was refused", key.decode(errors="replace"))
        return False
