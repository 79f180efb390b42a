"""The usage and cost of single requests."""
