"""Seals: signed Merkle roots over what was booked for a tenant on each day, chained day to day."""
