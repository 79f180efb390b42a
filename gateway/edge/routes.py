"""Django's `path` and `re_path`, typed for the ASGI applications that Channels' URLRouter calls."""

from __future__ import annotations

from typing import Any

from django import urls
from django.urls import URLPattern


def path(pattern: str, application: Any) -> URLPattern:
    """The URLs that match `pattern` whole go to an ASGI `application`."""
    route: URLPattern = urls.path(pattern, application)
    return route


def re_path(pattern: str, application: Any) -> URLPattern:
    """The URLs that match the regular expression go to an ASGI `application`."""
    route: URLPattern = urls.re_path(pattern, application)
    return route
