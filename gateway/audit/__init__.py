"""The audit trail: `origin` knows who asks, `trail` writes events, `tracked` and `sign_ins` receive what happens."""
