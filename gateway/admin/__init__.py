"""The operator's admin."""
