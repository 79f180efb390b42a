"""Backups of a whole installation: database, secrets, tenants' files, adapters and workers' records in one archive."""
