"""Faults of an installation, and the way out of each."""
