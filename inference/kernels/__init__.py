"""Kernels for the CPU: small C sources, built by the system's compiler when they are first needed.

`build.py` builds them, `library.py` loads them, and `linear.py`, `attention.py`, `elementwise.py` and `sampler.py` are
what the engine calls. Every result of a row (a token) is a function of that row's own data, with one order of
summation: it has the same bits in any batch, in any chunks and on any number of threads.
"""
