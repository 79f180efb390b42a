"""The verifier that a tenant runs: one file that imports nothing of Sluice."""
