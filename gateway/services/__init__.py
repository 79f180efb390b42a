"""Writes of tenancy: one verb, one transaction."""
