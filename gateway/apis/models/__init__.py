"""The list of models."""
