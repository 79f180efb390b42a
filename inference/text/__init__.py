"""Prompts to tokens and tokens to text: tokenizers, chat templates, detokenising, stop strings."""
