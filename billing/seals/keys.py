"""The keys that sign seals: made at first use, replaced on demand, each vouched for by the one before it.

Private keys and the key of the salts lie in the database, encrypted under the secret of credentials.
"""

from __future__ import annotations

import hashlib
import os
from datetime import UTC, datetime

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from django.db import IntegrityError, transaction
from django.views.decorators.debug import sensitive_variables

from base import clock
from base.sealing import SealError, resealed, seal, unseal
from billing.models import SigningKey

KEY_TEXT = "sluice-key-1"


def text_of(moment: datetime) -> str:
    """Return a moment as all signed texts have it: UTC with six decimals, as 2026-11-28T09:00:00.123456Z."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


@transaction.atomic
def latest() -> SigningKey:
    """Return the key that signs now, locked until the transaction ends; the first is made if there is none."""
    while True:
        key = SigningKey.objects.select_for_update().order_by("-number").first()
        if key is None:
            try:
                with transaction.atomic():
                    _make(1, None, seal(os.urandom(32).hex()))
            except IntegrityError:
                pass  # another process made it meanwhile
        elif key.sealed_key:
            return key  # else it was replaced while its lock was waited for


@transaction.atomic
def rotate() -> SigningKey:
    """Replace the key that signs by a new one, which it vouches for; its private key is gone then."""
    before = latest()
    made = _make(before.number + 1, before, before.sealed_salts)
    SigningKey.objects.filter(pk=before.pk).update(sealed_key="")
    return made


@sensitive_variables("private")
def _make(number: int, before: SigningKey | None, salts: str) -> SigningKey:
    private = Ed25519PrivateKey.generate()
    public, since = private.public_key().public_bytes_raw().hex(), clock.now()
    lines = (KEY_TEXT, number, public, text_of(since), before.public_key if before else "")
    text = "\n".join(map(str, lines)).encode()
    return SigningKey.objects.create(
        number=number,
        public_key=public,
        sealed_key=seal(private.private_bytes_raw().hex()),
        sealed_salts=salts,
        since=since,
        signature=private_key(before).sign(text).hex() if before else "",
        own_signature=private.sign(text).hex(),
    )


@sensitive_variables()
def private_key(key: SigningKey) -> Ed25519PrivateKey:
    """Return the private key; raise SealError where it was stored under a secret that isn't given any more."""
    return Ed25519PrivateKey.from_private_bytes(bytes.fromhex(unseal(key.sealed_key)))


class Salts:
    """Makes the salt of a leaf's words: who hasn't got it can't try guesses of erased words on their commitment."""

    def __init__(self) -> None:
        self._key = b""

    def of(self, leaf: str) -> bytes:
        """Return the 16 bytes of the leaf of that name."""
        if not self._key:
            first = SigningKey.objects.order_by("number").first() or latest()
            self._key = bytes.fromhex(unseal(first.sealed_salts))
        return hashlib.blake2b(leaf.encode(), key=self._key, digest_size=16).digest()


def public_keys() -> list[SigningKey]:
    """Return all keys, without what is secret of them."""
    return list(SigningKey.objects.order_by("number").defer("sealed_key", "sealed_salts"))


def pem_of(key: SigningKey) -> str:
    """Return the public key as PEM."""
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(key.public_key))
    return public.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


def told(key: SigningKey) -> dict[str, str | int]:
    """Return a key as statements and the public list have it."""
    return {
        "number": key.number,
        "public_key": key.public_key,
        "since": text_of(key.since),
        "signature": key.signature,
        "own_signature": key.own_signature,
    }


@transaction.atomic
def reseal() -> list[str]:
    """Encrypt with the secret of today every key that isn't; return those that can't be read."""
    lost = []
    for key in SigningKey.objects.select_for_update():
        try:
            fresh = {"sealed_key": resealed(key.sealed_key) if key.sealed_key else ""}
            fresh["sealed_salts"] = resealed(key.sealed_salts)
        except SealError:
            lost.append(str(key))
            continue
        changed = {name: value for name, value in fresh.items() if value != getattr(key, name)}
        if changed:
            SigningKey.objects.filter(pk=key.pk).update(**changed)
    return lost
