"""The engine in process: one model with its schedulers, stepped by whoever holds it."""
