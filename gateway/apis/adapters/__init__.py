"""A project's own adapters."""
