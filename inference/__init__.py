"""The engine seam and everything behind it: block pool, scheduler, model execution, worker process.

Imports no other package of ours and no Django (``apps.py`` and ``management/`` excepted). The gateway sees of it
only ``types``, ``errors`` and ``engine``.
"""
