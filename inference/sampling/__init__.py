"""Sampling: the next token of each row, from its logits, parameters and counter-based noise."""
