"""Guided decoding: what an answer has to be, compiled into a grammar that says which tokens may come next."""
