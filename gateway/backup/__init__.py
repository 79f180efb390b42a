"""Backups of a whole installation: database, secrets, tenants' files and the workers' records in one archive."""
