"""Tenants' files: how they are received, where their bytes lie, and when they go."""
