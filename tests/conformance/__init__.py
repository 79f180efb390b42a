"""Unmodified clients against a real gateway: `make conformance` runs them and writes docs/clients.md anew."""
