"""Backups of a whole installation: database, secrets and the workers' records in one archive."""
