"""The engine and its seam: scheduler, KV blocks, model execution, the worker process, the gateway's clients of it.

Imports no other package of ours and no Django. The gateway imports ``types``, ``errors``, ``engine`` and ``open``, and
for the worker's spec ``config``.
"""
