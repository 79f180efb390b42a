"""The operator's pages: one object, one page."""

from __future__ import annotations

from django.urls import path

from control.operate import now

urlpatterns = [
    path("", now.now, name="operate-now"),
]
