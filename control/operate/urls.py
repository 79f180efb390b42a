"""The operator's pages: one object, one page."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, path

from control.operate import (
    alerts,
    audit,
    engines,
    money,
    now,
    people,
    requests,
    system,
    tenant,
    tenant_acts,
    tenants,
)

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
    path("tenants/", tenants.tenant_list, name="operate-tenants"),
    path("tenants.csv", tenants.tenants_csv, name="operate-tenants-csv"),
    path("new-tenant/", tenants.new_tenant, name="operate-tenant-new"),
    path("viewing/end/", tenant_acts.view_end, name="operate-view-end"),
    path("people/", people.people_list, name="operate-people"),
    path("people/new/", people.new, name="operate-person-new"),
    path("people/<uuid:pk>/", people.person, name="operate-person"),
    path("people/<uuid:pk>/role/", people.role, name="operate-person-role"),
    path("people/<uuid:pk>/name/", people.rename, name="operate-person-name"),
    path("people/<uuid:pk>/address/", people.address, name="operate-person-address"),
    path("people/<uuid:pk>/sign-in-link/", people.sign_in_link, name="operate-person-link"),
    path("people/<uuid:pk>/deactivate/", people.deactivate, name="operate-person-deactivate"),
    path("people/<uuid:pk>/activate/", people.activate, name="operate-person-activate"),
    path("people/<uuid:pk>/erase/", people.erase, name="operate-person-erase"),
    path("audit/", audit.audit, name="operate-audit"),
]


def _of_tenant(rest: str, view: Callable[..., Any], name: str = "") -> URLPattern:
    """Return the address of a tenant's page or action; its name is that of the first part of `rest` unless given."""
    name = name or rest.partition("/")[0]
    return path(f"tenants/<slug:slug>/{rest}", view, name=f"operate-tenant-{name}" if name else "operate-tenant")


urlpatterns += [
    _of_tenant("", tenant.overview),
    _of_tenant("people/", tenant.people),
    _of_tenant("keys/", tenant.keys),
    _of_tenant("projects/", tenant.projects),
    _of_tenant("wallet/", tenant.wallet),
    _of_tenant("limits/", tenant.limits),
    _of_tenant("audit/", tenant.audit),
    _of_tenant("grant/", tenant_acts.grant),
    _of_tenant("adjust/", tenant_acts.adjust),
    _of_tenant("freeze/", tenant_acts.freeze),
    _of_tenant("plan/", tenant_acts.plan),
    _of_tenant("end/", tenant_acts.end),
    _of_tenant("suspend/", tenant_acts.suspend),
    _of_tenant("activate/", tenant_acts.activate),
    _of_tenant("invite/", tenant_acts.invite),
    _of_tenant("settings/", tenant_acts.settings),
    _of_tenant("export/", tenant_acts.export),
    _of_tenant("erase/", tenant_acts.erase),
    _of_tenant("view/", tenant_acts.view),
    _of_tenant("people/<uuid:pk>/", tenant_acts.member, "member"),
    _of_tenant("invitations/<uuid:pk>/withdraw/", tenant_acts.withdraw, "withdraw"),
    _of_tenant("grants/<uuid:pk>/refund/", tenant_acts.refund, "refund"),
    _of_tenant("grants/<uuid:pk>/void/", tenant_acts.void, "void"),
    _of_tenant("keys/new/", tenant_acts.key_new, "key-new"),
    _of_tenant("keys/<uuid:pk>/made/", tenant_acts.key_made, "key-made"),
    _of_tenant("keys/<uuid:pk>/rename/", tenant_acts.key_rename, "key-rename"),
    _of_tenant("keys/<uuid:pk>/revoke/", tenant_acts.key_revoke, "key-revoke"),
    _of_tenant("keys/admin/<uuid:pk>/revoke/", tenant_acts.admin_key_revoke, "admin-key-revoke"),
    _of_tenant("projects/new/", tenant_acts.project_new, "project-new"),
    _of_tenant("projects/<uuid:pk>/rename/", tenant_acts.project_rename, "project-rename"),
    _of_tenant("projects/<uuid:pk>/archive/", tenant_acts.project_archive, "project-archive"),
]
