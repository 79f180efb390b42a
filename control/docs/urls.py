"""Addresses of the documents."""

from __future__ import annotations

from django.urls import path

from control.docs import views

urlpatterns = [
    path("", views.home, name="docs"),
    path("search/", views.find, name="docs-search"),
    path("files/<path:path>", views.file, name="docs-file"),
    path("api/", views.endpoints, name="docs-api"),
    path("api/<str:identifier>/", views.endpoint, name="docs-endpoint"),
    path("<path:slug>/", views.page, name="docs-page"),
]
