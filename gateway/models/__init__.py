"""Who may use Sluice: users, tenants, projects, memberships, API keys; audit trail, refusals, epochs, tasks."""

from gateway.models.access import APIKey, CatalogueEpoch, Invitation, SignInLink, TenantEpoch
from gateway.models.audit import AuditEvent
from gateway.models.mail import OutgoingMail
from gateway.models.refusals import RefusalCount
from gateway.models.tasks import TaskState
from gateway.models.tenancy import Membership, Project, Tenant, User

__all__ = [
    "APIKey",
    "AuditEvent",
    "CatalogueEpoch",
    "Invitation",
    "Membership",
    "OutgoingMail",
    "Project",
    "RefusalCount",
    "SignInLink",
    "TaskState",
    "Tenant",
    "TenantEpoch",
    "User",
]
