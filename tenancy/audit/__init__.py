"""The audit trail: `origin` holds who makes the request, `trail` writes events, `tracked` and `sign_ins` record changes
and sign-ins.
"""

LEAST_AUDIT_DAYS = 365
"""Days for which the database refuses to delete an event."""
