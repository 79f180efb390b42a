"""Writes of the catalogue: one verb, one transaction."""
