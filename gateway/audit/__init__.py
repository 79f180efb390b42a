"""The audit trail: `origin` holds who makes the request, `trail` writes events, `tracked` and `sign_ins` record changes
and sign-ins.
"""
