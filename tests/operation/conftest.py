"""Tenants to try things on."""

from __future__ import annotations

from tests.parties import _looks_often, _nothing_counted, _patience, acme, other, terms

__all__ = ["_looks_often", "_nothing_counted", "_patience", "acme", "other", "terms"]
