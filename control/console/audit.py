"""The tenant's audit trail as a page, for its owners and admins."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlencode
from uuid import UUID

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from control.console.tenancy import Place, tenant_page
from tenancy.audit.trail import change_of
from tenancy.models import AuditEvent

SHOWN = 100


@dataclass(frozen=True, slots=True)
class EventLine:
    """An event and what changed, in one line."""

    event: AuditEvent
    change: str


@require_safe
@tenant_page
def audit(request: HttpRequest, place: Place) -> HttpResponse:
    """Show a page of events, newest first; `action` chooses, `before` is where the page before ended."""
    if not place.access.may("audit"):
        raise Http404
    mine = AuditEvent.objects.of(place.tenant)
    actions = list(mine.order_by("action").values_list("action", flat=True).distinct())
    chosen = request.GET.get("action", "")
    events = mine.filter(action=chosen) if chosen in actions else mine
    if before := request.GET.get("before", ""):
        events = events.filter(id__lt=_uuid(before))
    found = list(events.order_by("-id")[: SHOWN + 1])
    lines = [EventLine(event, change_of(event)) for event in found[:SHOWN]]
    older = ""
    if found[SHOWN:]:
        named = {"action": chosen} if chosen in actions else {}
        older = "?" + urlencode({**place.name, **named, "before": str(found[SHOWN - 1].id)})
    context = place.context(page="audit", lines=lines, actions=actions, chosen=chosen, older=older)
    return render(request, "console/audit.html", context)


def _uuid(text: str) -> UUID:
    try:
        return UUID(text)
    except ValueError:
        raise Http404 from None
