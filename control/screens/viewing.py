"""An operator looks at a tenant's pages as its owner sees them: for half an hour, without changing anything.

The session of the operator says whose pages they see. Only `control.console.tenancy.tenant_page` heeds it, and lets no
request but GET and HEAD through; sockets, APIs and data for scripts know nothing of it, and there an operator is no
member. What a tenant's people wrote isn't shown: neither chats nor files nor an export.
"""

from __future__ import annotations

import time
from uuid import UUID

from django.http import HttpRequest

from tenancy.audit.trail import record
from tenancy.models import Membership, Tenant, User
from tenancy.services.access import Access

SECONDS = 30 * 60
NEEDS = (
    "gateway.view_tenant", "gateway.view_membership", "gateway.view_apikey", "gateway.view_auditevent",
    "gateway.view_invitation", "gateway.view_adminapikey", "gateway.view_project", "gateway.view_alert",
    "gateway.view_webhook", "billing.view_wallet", "billing.view_usagerecord", "billing.view_creditgrant",
    "billing.view_ledgertransfer", "billing.view_subscription",
)  # fmt: skip
"""What an owner's pages show, so what an operator has to be allowed to see anyway."""
_HELD = "sluice.viewing"


def may_view(user: User, tenant: Tenant) -> bool:
    """Return whether `user` may look at the tenant's pages; nobody sees those of a suspended one, its owner neither."""
    return user.is_staff and tenant.is_active and all(map(user.has_perm, NEEDS))


def begin(request: HttpRequest, tenant: Tenant) -> None:
    """Let the operator see the tenant's pages from now on, which stands in its audit trail."""
    record("tenant.viewed", tenant, tenant=tenant.pk)
    request.session[_HELD] = [str(tenant.pk), time.time() + SECONDS]


def end(request: HttpRequest) -> Tenant | None:
    """Let them see their own again, and return whose they saw."""
    held = request.session.pop(_HELD, None)
    return None if held is None else Tenant.objects.filter(pk=held[0]).first()


def access_of_viewer(request: HttpRequest) -> Access | None:
    """Return the access with which an operator looks at the tenant that they chose; None for everybody else."""
    held = request.session.get(_HELD)
    if held is None or not isinstance(request.user, User):
        return None
    tenant = Tenant.objects.filter(pk=UUID(held[0])).first()
    if tenant is None or held[1] < time.time() or not may_view(request.user, tenant):
        del request.session[_HELD]
        return None
    return Access(tenant, Membership.Role.OWNER, request.user, is_viewer=True)
