"""Writes of tenants, members and keys: one verb, one transaction."""
