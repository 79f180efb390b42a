"""Tokenizer, incremental text, stop strings."""
