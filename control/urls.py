"""Control-plane URLs; the data plane's are in `gateway.asgi`."""

from __future__ import annotations

from allauth.account.decorators import secure_admin_login
from django.conf import settings
from django.contrib import admin
from django.urls import URLPattern, URLResolver, include, path, re_path
from django.views.generic import RedirectView

from control import payments
from control.accounts import views
from control.api.errors import unknown_endpoint
from control.api.openapi import api_schema
from control.find import find

# One sign-in for everybody: operators too go through allauth, with its second factor and its rate limits.
admin.site.login = secure_admin_login(admin.site.login)  # type: ignore[method-assign]

admin.autodiscover()
admin.site.site_title = admin.site.site_header = "Sluice"
admin.site.index_title = "Tables"
urlpatterns: list[URLPattern | URLResolver] = [
    path("admin/", admin.site.urls),
    path("accounts/", include("control.accounts.urls")),
    path("links/<str:token>/", views.open_link, name="link-open"),
    path("invitations/<str:token>/", views.open_invitation, name="invitation-open"),
    path("addresses/<str:token>/", views.open_address, name="address-open"),
    path("operate/", include("control.operate.urls")),
    path("find/", find, name="find"),
    path("", include("control.console.urls")),
    path("docs/", include("control.docs.urls")),
    path("api/v1/", include("control.api.urls")),
    path("v1/organization/", include("control.api.organization.urls")),
    path("api/schema/", api_schema, name="api-schema"),
    path("api/docs/", RedirectView.as_view(pattern_name="docs-api"), name="api-docs"),
    re_path(r"^api/(?P<path>.*)$", unknown_endpoint, name="api-unknown"),
]
if settings.SLUICE_STRIPE_SECRET_KEY:
    urlpatterns += payments.urlpatterns
handler400 = "control.screens.pages.bad_request"
handler404 = "control.screens.pages.not_found"
handler429 = "control.screens.pages.too_many_requests"  # where allauth looks for it
handler500 = "control.screens.pages.server_error"
