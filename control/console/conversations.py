"""Conversations of the chat page: its scripts list, read, save, change and delete them; members read shared ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

import msgspec
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from base.errors import ServiceError
from control.console.tenancy import Place, tenant_data, tenant_page
from gateway import conversations
from gateway.conversations import Conversation
from tenancy.models import Membership, User


def _chat_data(view: Callable[..., HttpResponse]) -> Callable[..., HttpResponseBase]:
    """`tenant_data` for members who may chat: a ServiceError is answered as its field and message."""

    @tenant_data
    @wraps(view)
    def inner(request: HttpRequest, place: Place, *args: Any, **named: Any) -> HttpResponse:
        if not place.access.may("chat"):
            return _refused("not_allowed", "Your role doesn't allow chats.", 403)
        try:
            return view(request, place, *args, **named)
        except ServiceError as error:
            return _refused("not_saved", error.message, 400, error.field)
        except RequestDataTooBig:
            return _refused("not_saved", "The conversation is too large to be saved: go on in a new chat.", 413)
        except msgspec.MsgspecError as error:
            return _refused("invalid_json", str(error)[:200], 400)

    return inner


def _refused(code: str, message: str, status: int, field: str = "") -> JsonResponse:
    return JsonResponse({"error": {"code": code, "message": message, "param": field or None}}, status=status)


@require_safe
@_chat_data
def listed(request: HttpRequest, place: Place) -> HttpResponse:
    """Answer the person's conversations, the latest first; with `?q=` those that have its words."""
    lines = conversations.found(tenant=place.tenant, user=_user(place), query=request.GET.get("q", "")[:200])
    return JsonResponse({"data": lines})


class Change(msgspec.Struct, forbid_unknown_fields=True):
    """What a PATCH changes."""

    title: str | None = None
    is_shared: bool | None = None


@require_http_methods(["GET", "PUT", "PATCH", "DELETE"])
@_chat_data
def one(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Answer the conversation; save, change or delete it.

    A PUT that changed an older revision saves nothing: it is answered with the conversation as it is, or null where it
    was deleted. A DELETE is answered with what was deleted, by which it can be undone.
    """
    if request.method == "PUT":
        draft = conversations.draft_of(request.body)
        row, is_saved = conversations.save(tenant=place.tenant, user=_user(place), identifier=pk, draft=draft)
        if row is not None and is_saved:
            return JsonResponse({"is_saved": True, "revision": row.revision, **row.line()})
        return JsonResponse({"is_saved": False, "conversation": row and row.told()})
    row = Conversation.objects.of(place.tenant).filter(user=_user(place), id=pk).first()
    if row is None and request.method == "GET":
        return JsonResponse({"conversation": None})  # a draft's id may be of none yet
    if row is None:
        return _refused("conversation_not_found", "This conversation isn't there any more.", 404)
    if request.method == "PATCH":
        change = msgspec.json.decode(request.body, type=Change)
        if change.title is not None:
            conversations.rename(conversation=row, title=change.title)
        if change.is_shared is not None:
            conversations.share(conversation=row, shared=change.is_shared)
        return JsonResponse(row.line())
    answer = JsonResponse({"conversation": row.told()})
    if request.method == "DELETE":
        row.delete()
    return answer


@require_safe
@tenant_page
def shared(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Show a shared conversation to a member who may chat, to be read alone."""
    members = Membership.objects.of(place.tenant).filter(is_active=True).values("user")  # who left shares nothing
    found = Conversation.objects.of(place.tenant).filter(id=pk, user__in=members).exclude(shared_at=None)
    row = found.select_related("user").first()
    if row is None or not place.access.may("chat") or not conversations.may_store(place.tenant):
        raise Http404
    context = place.context(page="chat", conversation=row, turns=row.path(), by=row.user.name or row.user.email)
    return render(request, "console/conversation.html", context)


def _user(place: Place) -> User:
    assert place.access.user is not None
    return place.access.user


def addresses(query: str) -> dict[str, str]:
    """Return where the page's script finds all this; an id stands as zeros."""
    zeros = UUID(int=0)
    return {
        "conversations": reverse("console-conversations") + query,
        "conversation": reverse("console-conversation", args=[zeros]) + query,
        "shared": reverse("console-conversation-shared", args=[zeros]) + query,
    }
