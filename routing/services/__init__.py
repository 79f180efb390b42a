"""Writes of the catalogue: one transaction for each."""
