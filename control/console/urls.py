"""Pages of tenants: home, chat, usage, keys, models, batches, billing, people, settings; and where they were before."""

from __future__ import annotations

from collections.abc import Callable

from django.http.response import HttpResponseBase
from django.urls import path
from django.views.generic import RedirectView

from control.console import (
    admin_keys,
    alerts,
    audit,
    batches,
    billing,
    budgets,
    catalogue,
    chat,
    conversations,
    home,
    keys,
    people,
    requests,
    settings,
    usage,
)


def _moved(pattern_name: str) -> Callable[..., HttpResponseBase]:
    return RedirectView.as_view(pattern_name=pattern_name, query_string=True, permanent=True)


urlpatterns = [
    path("", home.home, name="console-home"),
    path("chat/", chat.chat, name="console-chat"),
    path("chat/account/", chat.account, name="console-account"),
    path("chat/conversations/", conversations.listed, name="console-conversations"),
    path("chat/conversations/<uuid:pk>/", conversations.one, name="console-conversation"),
    path("chat/shared/", conversations.shared_list, name="console-shared"),
    path("chat/shared/<uuid:pk>/", conversations.shared, name="console-conversation-shared"),
    path("chat/shared/<uuid:pk>/end/", conversations.end_shared, name="console-shared-end"),
    path("usage/", usage.usage, name="console-usage"),
    path("usage/export.csv", usage.export, name="console-usage-export"),
    path("usage/shown.csv", usage.export_shown, name="console-usage-shown"),
    path("usage/requests/<uuid:request_id>/", requests.former, name="console-request-former"),
    path("requests/", requests.listing, name="console-requests"),
    path("requests/export.csv", requests.export, name="console-requests-csv"),
    path("requests/<str:text>/", requests.detail, name="console-request"),
    path("settings/alerts/", alerts.tenant_alerts, name="console-alerts"),
    path("keys/", keys.listing, name="console-keys"),
    path("keys/new/", keys.create, name="console-key-new"),
    path("keys/admin/", admin_keys.admin_key_list, name="console-admin-keys"),
    path("keys/admin/<uuid:pk>/made/", admin_keys.made, name="console-admin-key-made"),
    path("keys/admin/<uuid:pk>/revoke/", admin_keys.revoke, name="console-admin-key-revoke"),
    path("keys/<uuid:pk>/", keys.change, name="console-key-change"),
    path("keys/<uuid:pk>/rotate/", keys.rotate, name="console-key-rotate"),
    path("keys/<uuid:pk>/made/", keys.made, name="console-key-made"),
    path("keys/<uuid:pk>/revoke/", keys.revoke, name="console-key-revoke"),
    path("models/", catalogue.models, name="console-models"),
    path("models/<uuid:pk>/withdraw/", catalogue.withdraw, name="console-adapter-withdraw"),
    path("batches/", batches.batches, name="console-batches"),
    path("batches/<uuid:pk>/cancel/", batches.cancel, name="console-batch-cancel"),
    path("batches/<uuid:pk>/files/<uuid:file_id>/", batches.download, name="console-batch-file"),
    path("billing/", billing.billing, name="console-billing"),
    path("billing/redeem/", billing.redeem, name="console-redeem"),
    path("billing/ledger.csv", billing.export, name="console-billing-export"),
    path("billing/statements/<str:month>/", billing.statement, name="console-statement"),
    path("billing/statements/<str:month>/<str:form>/", billing.statement_file, name="console-statement-file"),
    path("billing/budgets/new/", budgets.create, name="console-budget-new"),
    path("billing/budgets/<uuid:pk>/", budgets.change, name="console-budget"),
    path("people/", people.people, name="console-people"),
    path("people/invite/", people.invite, name="console-invite"),
    path("people/leave/", people.leave, name="console-leave"),
    path("people/invitations/<uuid:pk>/resend/", people.resend, name="console-invitation-resend"),
    path("people/invitations/<uuid:pk>/withdraw/", people.withdraw, name="console-invitation-withdraw"),
    path("people/<uuid:pk>/", people.member, name="console-member"),
    path("people/<uuid:pk>/remove/", people.remove, name="console-member-remove"),
    path("settings/", settings.tenant_settings, name="console-settings"),
    path("settings/projects/", settings.new_project, name="console-project-new"),
    path("settings/projects/<uuid:pk>/", settings.project, name="console-project"),
    path("settings/projects/<uuid:pk>/archive/", settings.archive_project, name="console-project-archive"),
    path("settings/name/", settings.rename, name="console-rename"),
    path("settings/export.zip", settings.tenant_export, name="console-export"),
    path("audit/", audit.audit, name="console-audit"),
    path("usage/models/", _moved("console-models"), name="moved-models"),
    path("usage/models/<uuid:pk>/withdraw/", _moved("console-adapter-withdraw"), name="moved-adapter-withdraw"),
    path("usage/batches/", _moved("console-batches"), name="moved-batches"),
    path("usage/batches/<uuid:pk>/cancel/", _moved("console-batch-cancel"), name="moved-batch-cancel"),
    path("usage/batches/<uuid:pk>/files/<uuid:file_id>/", _moved("console-batch-file"), name="moved-batch-file"),
]
