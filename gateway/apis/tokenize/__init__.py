"""Tokens of a text, and back."""
