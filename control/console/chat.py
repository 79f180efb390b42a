"""The chat page. Answers come over the websocket of the data plane; this only says what may be picked."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import msgspec
from django.conf import settings
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.middleware.csrf import get_token
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_safe

from base.units import format_credits
from billing.models import Subscription
from billing.selectors.balances import Balance, balance_of
from control.console import conversations
from control.console.catalogue import Offer, active_subscription, next_grant, offers_of
from control.console.samples import samples_for
from control.console.tenancy import Place, tenant_data, tenant_page
from gateway.apis.models.wire import auto_card
from gateway.conversations import MOST_BYTES, may_store
from gateway.runtime.data_plane import live_of
from inference.types import Kind
from tenancy.models import Membership, Project


@require_safe
@tenant_page
def chat(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the chat page; who may not chat goes home."""
    if not place.access.may("chat"):
        return redirect(reverse("console-home") + place.query)
    projects = Project.objects.of(place.tenant).filter(is_active=True).order_by("created_at", "id")
    subscription = active_subscription(place.tenant)
    context = place.context()
    catalogue = (live := live_of(request)).catalogue()
    models = chat_models(offers_of(live, catalogue, subscription))
    ready = {model["id"] for model in models if model["is_ready"]}
    data = {
        "tenant": place.tenant.slug,
        "user": str(request.user.pk),
        "projects": [{"id": str(project.id), "name": project.name} for project in projects],
        "models": models,
        "samples": [] if subscription is None else list(map(asdict, samples_for(catalogue, subscription, ready))),
        "csrf": get_token(request),
        "message_bytes": settings.SLUICE_MAX_FRAME_BYTES,
        "conversation_bytes": MOST_BYTES,
        "is_stored": (is_stored := may_store(place.tenant)),
        "is_operator": getattr(request.user, "is_staff", False),
        "account": account_data(context["balance"], subscription),
        "urls": {
            "account": reverse("console-account") + place.query,
            "usage": reverse("console-usage") + place.query,
            "request": reverse("console-request", args=["00000000-0000-0000-0000-000000000000"]) + place.query,
            "sign_in": reverse("account_login"),
            "base": request.build_absolute_uri("/v1"),
            **conversations.addresses(place.query),
        },
    }
    days = min(settings.SLUICE_RESPONSE_DAYS, place.tenant.response_days or settings.SLUICE_RESPONSE_DAYS)
    more = {"data": data, "page": "chat", "is_stored": is_stored, "days": days}
    return render(request, "console/chat.html", {**context, **more})


@require_safe
@tenant_data
def account(request: HttpRequest, place: Place) -> HttpResponse:
    """Answer what is left and whom to ask for more, as JSON."""
    owners = Membership.objects.of(place.tenant).filter(role=Membership.Role.OWNER, is_active=True)
    others = owners.filter(user__is_active=True).exclude(user=place.access.user).order_by("created_at", "id")
    data = account_data(balance_of(place.tenant.id), active_subscription(place.tenant))
    return JsonResponse({**data, "owners": list(others.values_list("user__email", flat=True)[:3])})


def account_data(balance: Balance | None, subscription: Subscription | None) -> dict[str, Any]:
    """Return the balance, what more of it is for which models, and the next month's credit, JSON-ready; amounts are
    decimal strings and µcr.
    """
    available = 0 if balance is None else balance.available
    grant, at = next_grant(subscription)
    return {
        "available": format_credits(available),
        "available_micro": available,
        "restricted": [
            {"models": list(one.models), "more_micro": one.available - available}
            for one in (() if balance is None else balance.restricted)
            if one.available > available
        ],
        "next_grant": format_credits(grant) if grant else None,
        "next_grant_at": at.isoformat() if at and grant else None,
    }


def chat_models(offers: list[Offer]) -> list[dict[str, Any]]:
    """Return those that answer chats, `auto` first, with the model that each is an adapter of (or nothing), the only
    project that may use it (or nothing), and whether they answer now, JSON-ready.
    """
    chats = [offer for offer in offers if offer.entry.serves(Kind.CHAT)]
    if not chats:
        return []
    auto = auto_card([offer.card for offer in chats])
    told = [{**msgspec.to_builtins(auto), "base": "", "project": "", "is_ready": any(one.is_ready for one in chats)}]
    for offer in chats:
        whose = {"base": offer.entry.base, "project": str(offer.entry.project or ""), "is_ready": offer.is_ready}
        told.append({**msgspec.to_builtins(offer.card), **whose})
    return told
