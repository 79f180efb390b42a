"""Project and front door: tenancy, keys, data plane, consoles."""
