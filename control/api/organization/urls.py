"""Addresses of the administration API, below /v1/organization."""

from __future__ import annotations

from django.urls import path, re_path

from control.api.organization import audit, base, people, projects, usage

_PROJECT = "projects/<uuid:project>"

_SERVED = [
    path("admin_api_keys", people.AdminKeysView.as_view(), name="organization-admin-keys"),
    path("admin_api_keys/<uuid:key>", people.AdminKeyView.as_view(), name="organization-admin-key"),
    path("projects", projects.ProjectsView.as_view(), name="organization-projects"),
    path(_PROJECT, projects.ProjectView.as_view(), name="organization-project"),
    path(f"{_PROJECT}/archive", projects.ProjectArchiveView.as_view(), name="organization-project-archive"),
    path(f"{_PROJECT}/api_keys", projects.ProjectKeysView.as_view(), name="organization-project-keys"),
    path(f"{_PROJECT}/api_keys/<uuid:key>", projects.ProjectKeyView.as_view(), name="organization-project-key"),
    path(f"{_PROJECT}/service_accounts", projects.ServiceAccountsView.as_view(), name="organization-accounts"),
    path(
        f"{_PROJECT}/service_accounts/<uuid:key>",
        projects.ServiceAccountView.as_view(),
        name="organization-account",
    ),
    path("users", people.UsersView.as_view(), name="organization-users"),
    path("users/<uuid:user>", people.UserView.as_view(), name="organization-user"),
    path("invites", people.InvitesView.as_view(), name="organization-invites"),
    path("invites/<uuid:invite>", people.InviteView.as_view(), name="organization-invite"),
    path("usage/completions", usage.CompletionsUsageView.as_view(), name="organization-usage-completions"),
    path("usage/embeddings", usage.EmbeddingsUsageView.as_view(), name="organization-usage-embeddings"),
    path("costs", usage.CostsView.as_view(), name="organization-costs"),
    path("audit_logs", audit.AuditLogsView.as_view(), name="organization-audit-logs"),
]

_PATHS = [str(served.pattern) for served in _SERVED]

urlpatterns = [
    *_SERVED,
    # Ids are UUIDs: any other text in an id's place is the id of nothing.
    *(
        path(at.replace("<uuid:", "<str:"), base.NoSuchView.as_view(), name="organization-no-such")
        for at in _PATHS
        if "<uuid:" in at
    ),
    re_path(r"^(?P<path>.*)$", base.NotServedView.as_view(), name="organization-not-served"),
]
