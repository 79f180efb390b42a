"""Scheduling in plain data: which tokens a step computes, KV blocks, fairness. No torch and no I/O; one thread."""
