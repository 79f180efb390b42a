"""Paged attention: the reference, and what replaces it where the machine allows."""
