"""The writer on PostgreSQL."""
