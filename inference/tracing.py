"""The trace that a call of an engine belongs to."""

from __future__ import annotations

from contextvars import ContextVar

traceparent: ContextVar[str] = ContextVar("traceparent", default="")
"""W3C Trace Context's header of the caller's span, which remote engines are sent; empty where nothing is traced."""
