"""The writer: reserve, extend, renew, settle and release, applied in groups by one decision for both databases."""
