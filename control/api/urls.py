"""The management API's addresses."""

from __future__ import annotations

from django.urls import path

from control.api import audit, budgets, keys, openapi, routes, tenancy, usage, wallet  # noqa: F401 - openapi registers its extensions

urlpatterns = [
    path("keys/", keys.KeysView.as_view(), name="api-keys"),
    path("keys/<uuid:pk>/", keys.KeyView.as_view(), name="api-key"),
    path("keys/<uuid:pk>/revoke/", keys.KeyRevokeView.as_view(), name="api-key-revoke"),
    path("keys/<uuid:pk>/rotate/", keys.KeyRotateView.as_view(), name="api-key-rotate"),
    path("keys/<uuid:pk>/end-previous/", keys.KeyEndPreviousView.as_view(), name="api-key-end-previous"),
    path("tenant/", tenancy.TenantSettingsView.as_view(), name="api-tenant"),
    path("tenant/export/", tenancy.TenantExportView.as_view(), name="api-tenant-export"),
    path("projects/", tenancy.ProjectsView.as_view(), name="api-projects"),
    path("members/", tenancy.MembersView.as_view(), name="api-members"),
    path("members/<uuid:pk>/", tenancy.MemberView.as_view(), name="api-member"),
    path("usage/", usage.UsageView.as_view(), name="api-usage"),
    path("wallet/", wallet.WalletView.as_view(), name="api-wallet"),
    path("wallet/transfers/", wallet.TransfersView.as_view(), name="api-wallet-transfers"),
    path("budgets/", budgets.BudgetsView.as_view(), name="api-budgets"),
    path("budgets/<uuid:pk>/", budgets.BudgetView.as_view(), name="api-budget"),
    path("audit/", audit.AuditView.as_view(), name="api-audit"),
    path("routes/explain/", routes.RouteExplainView.as_view(), name="api-route-explain"),
]
