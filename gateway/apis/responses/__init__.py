"""Responses that are kept: their rows, the conversations that they make, and who may have them."""
