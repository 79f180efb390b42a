"""Alerts and web-hooks, of a tenant or of the operators: the same page for both."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from django import forms
from django.contrib import messages
from django.db.models import Count, Q
from django.http import Http404, HttpRequest, HttpResponse
from django.middleware.csrf import get_token
from django.shortcuts import get_object_or_404, redirect, render

from base.errors import ServiceError
from control.screens.tables import Button, Cell, Column, Row, State, Table
from tenancy.models import Alert, Delivery, Tenant, WebHook
from tenancy.services import alerts, hooks

MOST = 50
_ALERTS = [
    Column("State", "state"),
    Column("Trouble", "name"),
    Column("What was found", "wraps"),
    Column("Since", "time"),
    Column("Over", "time"),
]
_HOOKS = [
    Column("Address", "name"),
    Column("State", "state"),
    Column("Made", "time"),
    Column("Waiting", "number"),
    Column("Actions", "buttons", is_hidden=True),
]
_DELIVERIES = [
    Column("Message", "name"),
    Column("State", "state"),
    Column("Attempts", "number"),
    Column("Answer", "wraps"),
    Column("Made", "time"),
    Column("Actions", "buttons", is_hidden=True),
]
_DELIVERED = {"sent": "good", "failed": "bad", "waiting": ""}


@dataclass(frozen=True, slots=True)
class Side:
    """Whose alerts a page shows: a tenant's, or with None the operators'; with the page's context and its address."""

    tenant: Tenant | None
    context: Callable[..., dict[str, Any]]
    address: str
    may_change: bool


class HookForm(forms.Form):
    """The address of a new web-hook."""

    url = forms.URLField(
        label="Address",
        assume_scheme="https",
        max_length=500,
        help_text="It gets a signed POST for each alert, once when it begins and once when it is over.",
        widget=forms.URLInput(attrs={"placeholder": "https://example.com/hook"}),
    )


def alerts_page(request: HttpRequest, side: Side) -> HttpResponse:
    """Show alerts, web-hooks and deliveries; a POST changes one web-hook or delivery."""
    form, secret = HookForm(), ""
    if request.method == "POST":
        if not side.may_change:
            return _page(request, side, form, "", 403)
        if "url" not in request.POST:
            try:
                _do(request, side)
            except ServiceError as refused:
                messages.error(request, refused.message)
            return redirect(side.address)
        form = HookForm(request.POST)
        if form.is_valid():
            try:
                _, secret = hooks.make_hook(tenant=side.tenant, url=form.cleaned_data["url"])
            except ServiceError as refused:
                form.add_error("url", refused.message)
            else:
                form = HookForm()
    return _page(request, side, form, secret, 400 if form.errors else 200)


def _do(request: HttpRequest, side: Side) -> None:
    mine = WebHook.objects.filter(tenant=side.tenant)
    action = request.POST.get("action", "")
    if action == "replay":
        rows = Delivery.objects.filter(hook__in=mine)
        hooks.replay(get_object_or_404(rows, pk=_id(request)))
        messages.success(request, "It is sent again within seconds.")
        return
    hook = get_object_or_404(mine, pk=_id(request))
    if action == "test":
        hooks.send_test(hook)
        messages.success(request, f"A test message to {hook.url} is sent within seconds: see the deliveries below.")
    elif action in {"on", "off"}:
        hooks.set_active(hook, is_active=action == "on")
        messages.success(request, f"{hook.url} is told of alerts{' again' if action == 'on' else ' no more'}.")
    elif action == "delete":
        hooks.delete_hook(hook)
        messages.success(request, f"{hook.url} is deleted, with all that was to be sent to it.")


def _id(request: HttpRequest) -> UUID:
    try:
        return UUID(request.POST.get("id", ""))
    except ValueError:
        raise Http404 from None


def _page(request: HttpRequest, side: Side, form: HookForm, secret: str, status: int) -> HttpResponse:
    token = get_token(request)
    found = Alert.objects.filter(tenant=side.tenant).exclude(told_at=None)
    is_waiting = Q(deliveries__state=Delivery.State.WAITING)
    mine = WebHook.objects.filter(tenant=side.tenant).annotate(waiting=Count("deliveries", filter=is_waiting))
    sent = Delivery.objects.filter(hook__tenant=side.tenant).select_related("hook")
    context = side.context(
        open=Table("Open", _ALERTS[:-1], [_alert(row) for row in found.filter(resolved_at=None)], "Nothing is wrong."),
        past=Table("Over", _ALERTS, [_past(row) for row in found.exclude(resolved_at=None)[:MOST]], "None."),
        hooks=Table("Web-hooks", _HOOKS, [_hook(row, side) for row in mine], "No web-hook yet.", csrf=token),
        deliveries=Table(
            "Deliveries", _DELIVERIES, [_delivery(row, side) for row in sent[:MOST]], "None yet.", csrf=token
        ),
        receivers=alerts.receivers(side.tenant),
        form=form,
        secret=secret,
        may_change=side.may_change,
    )
    return render(request, "alerts.html", context, status=status)


def _alert(row: Alert) -> Row:
    tone = "bad" if row.severity == "critical" else "warn"
    return Row([State(row.severity, tone), Cell(row.title, row.path), _text(row), row.raised_at])


def _past(row: Alert) -> Row:
    return Row([State("over", "good"), Cell(row.title, row.path), row.text, row.raised_at, row.resolved_at])


def _text(row: Alert) -> Cell:
    return Cell(row.text, detail=row.remedy)


def _hook(row: Any, side: Side) -> Row:
    state = State("on", "good") if row.is_active else State("off")
    buttons = [
        _button("Test", "test", row, side),
        _button("Switch off" if row.is_active else "Switch on", "off" if row.is_active else "on", row, side),
        _button("Delete", "delete", row, side, "danger"),
    ]
    shown = buttons if side.may_change else []
    return Row([_shown(row, side), state, row.created_at, row.waiting, shown], is_over=not row.is_active)


def _shown(hook: WebHook, side: Side) -> str:
    """Return a web-hook's address; whoever can't change it sees where it is, since its path may be a secret."""
    parts = urlsplit(hook.url)
    return hook.url if side.may_change else f"{parts.scheme}://{parts.hostname}/…"


def _delivery(row: Delivery, side: Side) -> Row:
    answer = " ".join(filter(None, (str(row.status or ""), row.error)))
    buttons = []
    if side.may_change and row.state != Delivery.State.WAITING:
        buttons.append(_button("Send again", "replay", row, side))
    state = State(row.state, _DELIVERED[row.state])
    return Row([Cell(row.event, detail=_shown(row.hook, side)), state, row.attempts, answer, row.created_at, buttons])


def _button(name: str, action: str, row: WebHook | Delivery, side: Side, tone: str = "quiet") -> Button:
    return Button(
        name, side.address, about=str(row), tone=tone, post=True, values={"action": action, "id": str(row.pk)}
    )
