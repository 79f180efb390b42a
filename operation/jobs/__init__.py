"""Periodic work: the list of it, the loop that does it, notes of how it went."""
