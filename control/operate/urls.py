"""The operator's pages: one object, one page."""

from __future__ import annotations

from django.urls import path

from control.operate import alerts, engines, money, now, requests, system

urlpatterns = [
    path("", now.now, name="operate-now"),
    path("requests/", requests.listing, name="operate-requests"),
    path("requests/export.csv", requests.export, name="operate-requests-csv"),
    path("requests/<str:text>/", requests.detail, name="operate-request"),
    path("system/alerts/", alerts.operators_alerts, name="operate-alerts"),
    path("engines/", engines.engines, name="operate-engines"),
    path("engines/<uuid:pk>/", engines.engine, name="operate-engine"),
    path("engines/<uuid:pk>/service/", engines.service, name="operate-engine-service"),
    path("engines/<uuid:pk>/test/", engines.test, name="operate-engine-test"),
    path("engines/nodes/<uuid:pk>/", engines.node_service, name="operate-node"),
    path("money/", money.money, name="operate-money"),
    path("money/<str:table>.csv", money.money_csv, name="operate-money-csv"),
    path("system/", system.system, name="operate-system"),
    path("system/run/<str:task>/", system.run, name="operate-run"),
    path("system/mail/", system.retry_mail, name="operate-mail"),
]
