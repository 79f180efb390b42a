"""Tenant pages and chat."""
