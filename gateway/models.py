"""The models of Django's app `gateway`, for Django, which looks for them here; others import them from their rooms."""

from gateway.apis.responses.models import StoredResponse
from gateway.batches.files import StoredFile
from gateway.batches.models import Batch, BatchLine
from gateway.conversations import Conversation
from gateway.durable.models import KeptAnswer
from gateway.runtime.models import Observation, RefusalCount, RefusedRequest, TaskState
from tenancy.models import (
    AdminAPIKey,
    Alert,
    APIKey,
    AuditEvent,
    CatalogueEpoch,
    Delivery,
    Invitation,
    Membership,
    OutgoingMail,
    Project,
    SignInLink,
    Tenant,
    TenantEpoch,
    User,
    WebHook,
)

__all__ = [
    "APIKey",
    "AdminAPIKey",
    "Alert",
    "AuditEvent",
    "Batch",
    "BatchLine",
    "CatalogueEpoch",
    "Conversation",
    "Delivery",
    "Invitation",
    "KeptAnswer",
    "Membership",
    "Observation",
    "OutgoingMail",
    "Project",
    "RefusalCount",
    "RefusedRequest",
    "SignInLink",
    "StoredFile",
    "StoredResponse",
    "TaskState",
    "Tenant",
    "TenantEpoch",
    "User",
    "WebHook",
]
