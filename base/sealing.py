"""Sealing what must be stored and read again, encrypted under a secret of the settings: API keys of remote engines, the
text of mail that waits, and answers that are kept.

A new secret seals at once; what an earlier one sealed can be read for as long as that is a fallback.
"""

from __future__ import annotations

import base64
import hashlib

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from django.conf import settings
from django.views.decorators.debug import sensitive_variables


class SealError(ValueError):
    """No configured secret opens what was sealed."""


@sensitive_variables("text")
def seal(text: str) -> str:
    """Return `text` encrypted, "" for ""."""
    return _keys().encrypt(text.encode()).decode() if text else ""


def unseal(sealed: str) -> str:
    """Return what was sealed; raise `SealError`."""
    try:
        return _keys().decrypt(sealed).decode() if sealed else ""
    except InvalidToken as error:
        raise SealError("the API key was stored under another secret: enter it again") from error


@sensitive_variables("data")
def seal_bytes(data: bytes) -> bytes:
    """Return `data` encrypted."""
    return _keys().encrypt(data)


def unseal_bytes(sealed: bytes) -> bytes:
    """Return what was sealed; raise `SealError`."""
    try:
        return _keys().decrypt(sealed)
    except InvalidToken as error:
        raise SealError("this was stored under another secret: give that as a fallback") from error


def resealed(sealed: str) -> str:
    """Return what was sealed, sealed with the secret of today, the same text if it is already; raise `SealError`."""
    try:
        Fernet(_key(settings.SLUICE_CREDENTIAL_SECRET)).decrypt(sealed)
    except InvalidToken:
        return seal(unseal(sealed))
    return sealed


def _keys() -> MultiFernet:
    secrets = dict.fromkeys((settings.SLUICE_CREDENTIAL_SECRET, *settings.SLUICE_CREDENTIAL_FALLBACKS))
    return MultiFernet([Fernet(_key(secret)) for secret in secrets])


@sensitive_variables("secret")
def _key(secret: str) -> bytes:
    digest = hashlib.blake2b(b"credential", key=hashlib.sha512(secret.encode()).digest(), digest_size=32).digest()
    return base64.urlsafe_b64encode(digest)
