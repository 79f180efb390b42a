"""The operator's pages: one object, one page."""

from __future__ import annotations

from django.urls import path

from control.operate import alerts, now, requests

urlpatterns = [
    path("", now.now, name="operate-now"),
    path("requests/", requests.listing, name="operate-requests"),
    path("requests/export.csv", requests.export, name="operate-requests-csv"),
    path("requests/<str:text>/", requests.detail, name="operate-request"),
    path("system/alerts/", alerts.operators_alerts, name="operate-alerts"),
]
