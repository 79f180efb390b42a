"""Scheduling: pure data in, pure data out. No torch, no I/O, no clock except injected; one thread."""
