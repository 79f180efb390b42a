"""Statements: what a tenant's month brought and cost, from the records themselves, in forms to read and to verify."""
