"""The operator's pages: one object, one page."""

from __future__ import annotations

from django.urls import path

from control.operate import alerts, now

urlpatterns = [
    path("", now.now, name="operate-now"),
    path("system/alerts/", alerts.operators_alerts, name="operate-alerts"),
]
