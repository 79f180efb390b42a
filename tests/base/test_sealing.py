"""What is sealed can be read with the secrets of the settings, and with no other."""

from __future__ import annotations

import pytest

from base.sealing import SealError, resealed, seal, unseal


@pytest.fixture
def secrets(settings):
    settings.SLUICE_CREDENTIAL_SECRET, settings.SLUICE_CREDENTIAL_FALLBACKS = "one" * 16, []
    return settings


def test_a_seal_hides_and_gives_back(secrets):
    sealed = seal("sk-secret")
    assert "secret" not in sealed
    assert unseal(sealed) == "sk-secret"
    assert (seal(""), unseal("")) == ("", "")


def test_another_secret_reads_nothing(secrets):
    sealed = seal("sk-secret")
    secrets.SLUICE_CREDENTIAL_SECRET = "two" * 16
    with pytest.raises(SealError):
        unseal(sealed)


def test_a_fallback_reads_what_it_sealed_until_it_is_sealed_anew(secrets):
    sealed = seal("sk-secret")
    secrets.SLUICE_CREDENTIAL_SECRET, secrets.SLUICE_CREDENTIAL_FALLBACKS = "two" * 16, ["one" * 16]
    assert unseal(sealed) == "sk-secret"
    renewed = resealed(sealed)
    secrets.SLUICE_CREDENTIAL_FALLBACKS = []
    assert unseal(renewed) == "sk-secret"
    assert resealed(renewed) == renewed  # nothing to do
    with pytest.raises(SealError):
        resealed(sealed)
