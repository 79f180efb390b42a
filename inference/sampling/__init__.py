"""Choosing the next token: rows, filters, counter-based noise."""
