"""The management API (DRF)."""
