"""Formats of dates and numbers where Django writes them."""
