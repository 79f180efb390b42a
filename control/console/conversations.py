"""Conversations of the chat page: its scripts list, read, save, change and delete them; members read shared ones."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any
from uuid import UUID

import msgspec
from django.contrib import messages
from django.core.exceptions import RequestDataTooBig
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.http.response import HttpResponseBase
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from base.errors import ServiceError
from control.console.tenancy import Place, tenant_data, tenant_page
from control.screens.tables import Button, Cell, Column, Row, State, Table
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
    """The changes of a PATCH."""

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


MOST_SHARED = 200


@require_safe
@tenant_page
def shared_list(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the members' shared conversations, the latest first; to owners also those of former members."""
    if not place.access.may("chat"):
        raise Http404
    may_end, rows = place.access.may("shared"), []
    found = Conversation.objects.of(place.tenant).exclude(shared_at=None).select_related("user")
    members = set(Membership.objects.of(place.tenant).filter(is_active=True).values_list("user", flat=True))
    if not conversations.may_store(place.tenant):
        found = found.none()
    if not may_end:
        found = found.filter(user__in=members)
    for one in found.defer("content", "words").order_by("-shared_at")[:MOST_SHARED]:
        is_member = one.user_id in members
        href = reverse("console-conversation-shared", args=[one.pk]) + place.query if is_member else ""
        state = State("shared", "good") if is_member else State("not shown", "warn", "its author has left")
        values = [Cell(one.title, href), one.user.name or one.user.email, state, one.shared_at]
        if may_end:
            address = reverse("console-shared-end", args=[one.pk]) + place.query
            acts = [Button("Unshare", address, one.title, post=True, values={"act": "unshare"})]
            if not is_member:
                acts.append(Button("Delete", address, one.title, tone="danger", post=True, values={"act": "delete"}))
            values.append(acts)
        rows.append(Row(values, is_over=not is_member))
    columns = [Column("Conversation", "name"), Column("Of", "wraps"), Column("State", "state"), Column("Since", "time")]
    columns += [Column("Actions", "buttons", is_hidden=True)] * may_end
    table = Table("Shared conversations", columns, rows, "Nobody shares one.", id="shared", csrf=get_token(request))
    return render(request, "console/shared.html", place.context(page="chat", table=table, may_end=may_end))


@require_POST
@tenant_page
def end_shared(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Withdraw a shared conversation; delete one whose author has left."""
    if not place.access.may("shared"):
        raise Http404
    row = get_object_or_404(Conversation.objects.of(place.tenant).exclude(shared_at=None), pk=pk)
    is_member = Membership.objects.of(place.tenant).filter(user=row.user_id, is_active=True).exists()
    if request.POST.get("act") == "delete" and not is_member:
        conversations.delete(conversation=row)
        messages.success(request, f"“{row.title}” is deleted.")
    else:
        conversations.share(conversation=row, shared=False)
        messages.success(request, f"“{row.title}” is shared no more.")
    return redirect(reverse("console-shared") + place.query)


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
