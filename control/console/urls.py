"""Pages of tenants: chat, usage, batches, models, keys, settings."""

from __future__ import annotations

from django.urls import path

from control.console import (
    admin_keys,
    alerts,
    audit,
    batches,
    catalogue,
    chat,
    conversations,
    keys,
    requests,
    tenancy,
    usage,
)

urlpatterns = [
    path("", chat.home, name="console-home"),
    path("chat/", chat.chat, name="console-chat"),
    path("chat/account/", chat.account, name="console-account"),
    path("chat/estimate/", conversations.estimate, name="console-estimate"),
    path("chat/conversations/", conversations.listed, name="console-conversations"),
    path("chat/conversations/<uuid:pk>/", conversations.one, name="console-conversation"),
    path("chat/shared/<uuid:pk>/", conversations.shared, name="console-conversation-shared"),
    path("usage/", usage.usage, name="console-usage"),
    path("usage/export.csv", usage.export, name="console-usage-export"),
    path("usage/requests/<uuid:request_id>/", requests.former, name="console-request-former"),
    path("requests/", requests.listing, name="console-requests"),
    path("requests/export.csv", requests.export, name="console-requests-csv"),
    path("requests/<str:text>/", requests.detail, name="console-request"),
    path("usage/batches/", batches.batches, name="console-batches"),
    path("usage/batches/<uuid:pk>/cancel/", batches.cancel, name="console-batch-cancel"),
    path("usage/batches/<uuid:pk>/files/<uuid:file_id>/", batches.download, name="console-batch-file"),
    path("usage/models/", catalogue.models, name="console-models"),
    path("usage/models/<uuid:pk>/withdraw/", catalogue.withdraw, name="console-adapter-withdraw"),
    path("settings/", tenancy.tenant_settings, name="console-settings"),
    path("settings/alerts/", alerts.tenant_alerts, name="console-alerts"),
    path("settings/export.zip", tenancy.tenant_export, name="console-export"),
    path("audit/", audit.audit, name="console-audit"),
    path("keys/new/", keys.create, name="console-key-new"),
    path("keys/admin/", admin_keys.admin_key_list, name="console-admin-keys"),
    path("keys/admin/<uuid:pk>/made/", admin_keys.made, name="console-admin-key-made"),
    path("keys/admin/<uuid:pk>/revoke/", admin_keys.revoke, name="console-admin-key-revoke"),
    path("keys/<uuid:pk>/", keys.change, name="console-key-change"),
    path("keys/<uuid:pk>/rotate/", keys.rotate, name="console-key-rotate"),
    path("keys/<uuid:pk>/made/", keys.made, name="console-key-made"),
    path("keys/<uuid:pk>/revoke/", keys.revoke, name="console-key-revoke"),
]
