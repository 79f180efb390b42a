"""Tenants' files: rows, reads and writes; what batches read and write, and adapters are made of."""
