"""Who may use Sluice: users, tenants, projects, memberships, API keys; and the epoch of what is cached of them."""

from gateway.models.access import APIKey, CatalogueEpoch, Invitation, SignInLink, TenantEpoch
from gateway.models.tenancy import Membership, Project, Tenant, User

__all__ = [
    "APIKey",
    "CatalogueEpoch",
    "Invitation",
    "Membership",
    "Project",
    "SignInLink",
    "Tenant",
    "TenantEpoch",
    "User",
]
