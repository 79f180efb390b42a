"""Uploading, listing and reading files."""
