"""The models of Django's app `gateway`, for Django, which looks for them here; others import them from their rooms."""

from gateway.apis.responses.models import StoredResponse
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.conversations import Conversation
from gateway.durable.models import KeptAnswer
from gateway.runtime.models import Observation, RefusalCount, TaskState
from tenancy.models import (
    AdminAPIKey,
    APIKey,
    AuditEvent,
    CatalogueEpoch,
    Invitation,
    Membership,
    OutgoingMail,
    Project,
    SignInLink,
    Tenant,
    TenantEpoch,
    User,
)

__all__ = [
    "APIKey",
    "AdminAPIKey",
    "AuditEvent",
    "Batch",
    "BatchLine",
    "CatalogueEpoch",
    "Conversation",
    "Invitation",
    "KeptAnswer",
    "Membership",
    "Observation",
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
