"""The management API's addresses."""

from __future__ import annotations

from django.urls import path

from control.api import (  # noqa: F401 - openapi registers its extensions
    audit,
    budgets,
    grants,
    keys,
    openapi,
    operators,
    routes,
    statements,
    tenancy,
    usage,
    vouchers,
    wallet,
)

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
    path("vouchers/redeem/", vouchers.RedeemView.as_view(), name="api-voucher-redeem"),
    path("wallet/", wallet.WalletView.as_view(), name="api-wallet"),
    path("wallet/transfers/", wallet.TransfersView.as_view(), name="api-wallet-transfers"),
    path("statements/", statements.StatementsView.as_view(), name="api-statements"),
    path("statements/<str:month>/<str:form>/", statements.StatementView.as_view(), name="api-statement"),
    path("seal-keys/", statements.SealKeysView.as_view(), name="api-seal-keys"),
    path("budgets/", budgets.BudgetsView.as_view(), name="api-budgets"),
    path("budgets/<uuid:pk>/", budgets.BudgetView.as_view(), name="api-budget"),
    path("audit/", audit.AuditView.as_view(), name="api-audit"),
    path("operator/requests/<uuid:pk>/refund/", operators.RefundView.as_view(), name="api-operator-refund"),
    path("operator/tenants/<slug:slug>/grants/", grants.OperatorGrantsView.as_view(), name="api-operator-grants"),
    path(
        "operator/tenants/<slug:slug>/grants/<uuid:pk>/",
        grants.OperatorGrantView.as_view(),
        name="api-operator-grant",
    ),
    path(
        "operator/tenants/<slug:slug>/recurring-grants/",
        grants.RecurringGrantsView.as_view(),
        name="api-operator-recurring",
    ),
    path(
        "operator/tenants/<slug:slug>/recurring-grants/<uuid:pk>/",
        grants.RecurringGrantView.as_view(),
        name="api-operator-recurring-one",
    ),
    path("operator/tenants/<slug:slug>/invoices/", grants.InvoicesView.as_view(), name="api-operator-invoices"),
    path(
        "operator/tenants/<slug:slug>/invoices/<uuid:pk>/pay/",
        grants.InvoicePayView.as_view(),
        name="api-operator-invoice-pay",
    ),
    path(
        "operator/tenants/<slug:slug>/invoices/<uuid:pk>/void/",
        grants.InvoiceVoidView.as_view(),
        name="api-operator-invoice-void",
    ),
    path("operator/reratings/", operators.ReratingsView.as_view(), name="api-operator-reratings"),
    path("operator/reratings/<uuid:pk>/", operators.ReratingView.as_view(), name="api-operator-rerating"),
    path("operator/reratings/<uuid:pk>/commit/", operators.CommitView.as_view(), name="api-operator-rerating-commit"),
    path("operator/reratings/<uuid:pk>/stop/", operators.StopView.as_view(), name="api-operator-rerating-stop"),
    path("routes/explain/", routes.RouteExplainView.as_view(), name="api-route-explain"),
]
