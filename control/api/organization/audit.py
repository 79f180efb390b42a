"""The audit trail's events that OpenAI's have a name for; all of them stand in the management API's list."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from control.api.organization.base import Body, OrganizationView, unix
from gateway.errors.refusal import Refusal
from tenancy.models import AuditEvent

TYPES = {
    "key.created": "api_key.created",
    "key.changed": "api_key.updated",
    "key.spend_limits": "api_key.updated",
    "key.revoked": "api_key.deleted",
    "admin_key.created": "api_key.created",
    "admin_key.revoked": "api_key.deleted",
    "project.created": "project.created",
    "project.changed": "project.updated",
    "invitation.created": "invite.sent",
    "invitation.accepted": "invite.accepted",
    "invitation.deleted": "invite.deleted",
    "membership.created": "user.added",
    "membership.changed": "user.updated",
    "sign_in.succeeded": "login.succeeded",
    "sign_in.failed": "login.failed",
}
"""Our actions by OpenAI's types. A change that ends its row has a type of its own (`_type_of`)."""
_ENDED = {"project.updated": "project.archived", "user.updated": "user.deleted"}


def _type_of(event: AuditEvent) -> str:
    kind = TYPES[event.action]
    return _ENDED.get(kind, kind) if event.after.get("is_active") is False else kind


def shown_event(event: AuditEvent) -> Body:
    """Return an event as OpenAI shows it: what changed stands under its type."""
    kind = _type_of(event)
    if event.api_key_id is not None:
        actor: Body = {"type": "api_key", "api_key": {"id": str(event.api_key_id), "type": "service_account"}}
    else:
        user = {"id": None if event.user_id is None else str(event.user_id), "email": event.actor}
        actor = {"type": "session", "session": {"user": user, "ip_address": event.address}}
    field = "data" if kind.endswith((".created", ".added", ".sent")) else "changes_requested"
    return {
        "id": str(event.id),
        "object": "organization.audit_log",
        "type": kind,
        "effective_at": unix(event.at),
        "actor": actor,
        kind: {"id": event.target_id, field: event.after},
    }


class AuditLogsView(OrganizationView):
    """The tenant's audit log under OpenAI's names: changes and sign-ins."""

    reads = "audit"

    def get(self, request: Request) -> Response:
        """List the events, newest first."""
        for name in ("before", "actor_ids", "project_ids"):
            if self.several(name):
                raise Refusal(400, "unsupported_parameter", f"'{name}' is not supported here.", param=name)
        events = AuditEvent.objects.of(self.tenant).filter(action__in=self._actions(), **self._period())
        if emails := self.several("actor_emails"):
            events = events.filter(user__email__in=[email.lower() for email in emails])
        if resources := self.several("resource_ids"):
            events = events.filter(target_id__in=resources)
        return self.page(events, shown_event, order="-id")

    def _actions(self) -> list[str]:
        asked = set(self.several("event_types"))
        if ended := asked & {*_ENDED.values()}:
            message = (
                f"Ask for {', '.join(sorted(_ENDED))} instead of {', '.join(sorted(ended))}: these are among them."
            )
            raise Refusal(400, "unsupported_parameter", message, param="event_types")
        return [action for action, kind in TYPES.items() if not asked or kind in asked]

    def _period(self) -> dict[str, Any]:
        found = {}
        for name in ("gt", "gte", "lt", "lte"):
            if f"effective_at[{name}]" in self.request.query_params:
                seconds = self.number(f"effective_at[{name}]", None, least=0, most=253_402_300_799)
                found[f"at__{name}"] = datetime.fromtimestamp(seconds, UTC)
        return found
