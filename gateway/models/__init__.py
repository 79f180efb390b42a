"""Who may use Sluice (users, tenants, projects, memberships, keys), and their files, batches and responses."""

from gateway.models.batches import Batch, BatchLine
from gateway.models.files import StoredFile
from gateway.models.kept import KeptAnswer
from gateway.models.refusals import RefusalCount
from gateway.models.responses import StoredResponse
from gateway.models.tasks import TaskState
from tenancy.models.access import APIKey, CatalogueEpoch, Invitation, SignInLink, TenantEpoch
from tenancy.models.admin_keys import AdminAPIKey
from tenancy.models.audit import AuditEvent
from tenancy.models.mail import OutgoingMail
from tenancy.models.tenants import Membership, Project, Tenant, User

__all__ = [
    "APIKey",
    "AdminAPIKey",
    "AuditEvent",
    "Batch",
    "BatchLine",
    "CatalogueEpoch",
    "Invitation",
    "KeptAnswer",
    "Membership",
    "OutgoingMail",
    "Project",
    "RefusalCount",
    "SignInLink",
    "StoredFile",
    "StoredResponse",
    "TaskState",
    "Tenant",
    "TenantEpoch",
    "User",
]
