"""Writes: one verb, one transaction."""
