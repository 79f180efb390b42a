"""Users, tenants, projects, memberships and keys; the audit trail and mail. They belong to Django's app `gateway`."""

from tenancy.models.access import AdminAPIKey, APIKey, CatalogueEpoch, Invitation, SignInLink, TenantEpoch
from tenancy.models.alerts import Alert, Delivery, WebHook
from tenancy.models.audit import AuditEvent
from tenancy.models.mail import OutgoingMail
from tenancy.models.tenants import Membership, Project, Tenant, User

__all__ = [
    "APIKey",
    "AdminAPIKey",
    "Alert",
    "AuditEvent",
    "CatalogueEpoch",
    "Delivery",
    "Invitation",
    "Membership",
    "OutgoingMail",
    "Project",
    "SignInLink",
    "Tenant",
    "TenantEpoch",
    "User",
    "WebHook",
]
