"""The writer on SQLite."""
