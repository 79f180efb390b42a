"""Opening the engine of a deployment: what the gateway adds to what the catalogue says of a remote one."""

from __future__ import annotations

import hashlib
from dataclasses import replace

from django.conf import settings

from base.sealing import unseal
from inference.engine import Engine, EngineSpec
from inference.open import open_engine

REMOTE = "openai"


def open_deployment(spec: EngineSpec) -> Engine:
    """Return the engine of `spec`, whose credential is sealed; raise ValueError as `open_engine` does."""
    return open_engine(opened(spec) if spec.backend == REMOTE else spec)


def opened(spec: EngineSpec) -> EngineSpec:
    """Return how to reach a remote engine: its API key unsealed, with the networks that settings allow."""
    salt_key = hashlib.blake2b(
        b"cache-salt", key=settings.SLUICE_CACHE_SECRET.encode()[:64], digest_size=32
    ).hexdigest()
    added = {"networks": settings.SLUICE_REMOTE_NETWORKS, "salt_key": salt_key}
    return replace(spec, credential=unseal(spec.credential), options={**spec.options, **added})
