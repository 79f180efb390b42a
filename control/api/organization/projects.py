"""Projects, their API keys and their service accounts."""

from __future__ import annotations

from datetime import datetime, timedelta

from django.db.models import QuerySet
from django.shortcuts import get_object_or_404
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from control.api.organization.base import Body, OrganizationView, unix
from gateway.errors.refusal import Refusal
from tenancy.models import APIKey, Project
from tenancy.services import keys, tenants
from tenancy.services.scopes import ALL, READ_ONLY

_ALL_READ = "api.all.read"
_LONGEST_SECONDS = 100 * 366 * 24 * 3600


def shown_project(project: Project) -> Body:
    """Return a project as OpenAI shows it."""
    return {
        "id": str(project.id),
        "object": "organization.project",
        "name": project.name,
        "created_at": unix(project.created_at),
        "archived_at": None,
        "status": "active" if project.is_active else "archived",
    }


class ProjectsView(OrganizationView):
    """The tenant's projects."""

    def get(self, request: Request) -> Response:
        """List the projects; archived ones where that is asked for."""
        projects = Project.objects.of(self.tenant)
        if request.query_params.get("include_archived", "").lower() != "true":
            projects = projects.filter(is_active=True)
        return self.page(projects, shown_project)

    def post(self, request: Request) -> Response:
        """Make a project."""
        project = tenants.create_project(tenant=self.tenant, name=self.text(self.body("name"), "name"))
        project.refresh_from_db(from_queryset=Project.objects.of(self.tenant))
        return Response(shown_project(project))


class ProjectView(OrganizationView):
    """One project."""

    def get(self, request: Request, project: str) -> Response:
        """Show the project."""
        return Response(shown_project(_project(self, project)))

    def post(self, request: Request, project: str) -> Response:
        """Rename the project."""
        name = self.text(self.body("name"), "name")
        renamed = tenants.rename_project(tenant=self.tenant, project=_project(self, project), name=name)
        return Response(shown_project(renamed))


class ProjectArchiveView(OrganizationView):
    """The end of one project."""

    def post(self, request: Request, project: str) -> Response:
        """Archive the project: its keys are refused within a second."""
        archived = tenants.archive_project(tenant=self.tenant, project=_project(self, project))
        return Response(shown_project(archived))


def shown_key(key: APIKey) -> Body:
    """Return a key as OpenAI shows it: its owner is who made it, or itself as a service account."""
    if key.created_by is None:
        account = {"id": str(key.id), "name": key.name, "created_at": unix(key.created_at), "role": "member"}
        owner: Body = {"type": "service_account", "service_account": account}
    else:
        by = key.created_by
        person = {"id": str(by.id), "email": by.email, "name": by.name, "created_at": unix(by.date_joined)}
        owner = {"type": "user", "user": {**person, "role": "member"}}
    return {
        "id": str(key.id),
        "object": "organization.project.api_key",
        "name": key.name,
        "created_at": unix(key.created_at),
        "last_used_at": unix(key.last_used_at),
        "expires_at": unix(key.expires_at),
        "redacted_value": f"{key.prefix}…{key.last_four}",
        "owner": owner,
        "owner_project_access": "active",
        "scopes": key.scopes,
    }


class ProjectKeysView(OrganizationView):
    """A project's keys; revoked ones are gone."""

    def get(self, request: Request, project: str) -> Response:
        """List the keys."""
        return self.page(_keys(self, project), shown_key)


class ProjectKeyView(OrganizationView):
    """One key of a project."""

    def get(self, request: Request, project: str, key: str) -> Response:
        """Show the key, without its secret."""
        return Response(shown_key(_key(self, project, key)))

    def post(self, request: Request, project: str, key: str) -> Response:
        """Change the key's scopes or its end. No scopes are all of them."""
        data, found = self.body("scopes", "expires_in_seconds"), _key(self, project, key)
        change: Body = {}
        scopes = data.get("scopes", [])
        if not isinstance(scopes, list) or not all(isinstance(scope, str) for scope in scopes):
            raise Refusal(400, "invalid_value", "'scopes' must be a list of texts.", param="scopes")
        if "scopes" in data:
            change["scopes"] = [READ_ONLY if scope == _ALL_READ else scope for scope in scopes] or [ALL]
        if "expires_in_seconds" in data:
            change["expires_at"] = expiry_of(data, None)
        changed = keys.change_key(
            tenant=self.tenant,
            key=found,
            change=change,
            by=self.access.person,
        )
        return Response(shown_key(changed))

    def delete(self, request: Request, project: str, key: str) -> Response:
        """Revoke the key."""
        keys.revoke_key(tenant=self.tenant, key=_key(self, project, key))
        return Response({"object": "organization.project.api_key.deleted", "id": key, "deleted": True})


def shown_account(key: APIKey) -> Body:
    """Return a service account: a key that nobody's name stands behind."""
    return {
        "id": str(key.id),
        "object": "organization.project.service_account",
        "name": key.name,
        "role": "member",
        "created_at": unix(key.created_at),
    }


class ServiceAccountsView(OrganizationView):
    """A project's service accounts: each is one key."""

    def get(self, request: Request, project: str) -> Response:
        """List the accounts."""
        return self.page(_keys(self, project).filter(created_by=None), shown_account)

    def post(self, request: Request, project: str) -> Response:
        """Make an account, with its key."""
        data, found = self.body("name", "expires_in_seconds"), _project(self, project)
        key, secret = keys.create_key(
            tenant=self.tenant, project=found, name=self.text(data, "name"), expires_at=expiry_of(data, None)
        )
        shown = {"object": "organization.project.service_account.api_key", "value": secret, "name": key.name}
        made = {**shown, "id": str(key.id), "created_at": unix(key.created_at), "expires_at": unix(key.expires_at)}
        return Response({**shown_account(key), "api_key": made}, headers={"Cache-Control": "no-store"})


class ServiceAccountView(OrganizationView):
    """One service account."""

    def get(self, request: Request, project: str, key: str) -> Response:
        """Show the account."""
        return Response(shown_account(self._account(project, key)))

    def delete(self, request: Request, project: str, key: str) -> Response:
        """Revoke the account's key."""
        keys.revoke_key(tenant=self.tenant, key=self._account(project, key))
        return Response({"object": "organization.project.service_account.deleted", "id": key, "deleted": True})

    def _account(self, project: str, key: str) -> APIKey:
        account: APIKey = get_object_or_404(_keys(self, project).filter(created_by=None), pk=key)
        return account


def expiry_of(data: Body, otherwise: datetime | None) -> datetime | None:
    """Return the moment that `expires_in_seconds` names."""
    seconds = data.get("expires_in_seconds")
    if seconds is None:
        return otherwise
    if type(seconds) is not int or not 0 < seconds <= _LONGEST_SECONDS:
        message = f"'expires_in_seconds' is a whole number from 1 to {_LONGEST_SECONDS}."
        raise Refusal(400, "invalid_value", message, param="expires_in_seconds")
    return timezone.now() + timedelta(seconds=seconds)


def _project(view: OrganizationView, identifier: str) -> Project:
    project: Project = get_object_or_404(Project.objects.of(view.tenant), pk=identifier)
    return project


def _keys(view: OrganizationView, project: str) -> QuerySet[APIKey]:
    mine = APIKey.objects.of(view.tenant).filter(project=_project(view, project), revoked_at=None)
    return mine.select_related("created_by")


def _key(view: OrganizationView, project: str, key: str) -> APIKey:
    found: APIKey = get_object_or_404(_keys(view, project), pk=key)
    return found
