"""Pages that ask before something is done: what follows, a form, and what a service refused beside its field."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import ValidationError
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils.html import format_html
from django.utils.safestring import SafeString

from base.errors import ServiceError
from billing.services.errors import CreditError
from control.operate.base import Desk
from control.screens.forms import refuse

METHODS = ["GET", "HEAD", "POST"]
"""The methods of a page that asks."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A question: `back` is where it leads, done or not; `crumb` the name of the page there.

    `follows` are paragraphs, `lists` headings with lines of what goes and what stays.
    """

    title: str
    button: str
    back: str
    crumb: str = ""
    page: str = "tenants"
    follows: Sequence[str] = ()
    lists: Sequence[tuple[str, Sequence[str]]] = ()
    is_danger: bool = False


class ReasonForm(forms.Form):
    """Why something is done."""

    reason = forms.CharField(max_length=200, help_text="Stands in the audit trail, which the tenant reads too.")


def answered(
    request: HttpRequest,
    desk: Desk,
    ask: Ask,
    form: forms.BaseForm,
    act: Callable[[dict[str, Any]], str | HttpResponseBase],
    *,
    template: str = "",
    **renamed: str,
) -> HttpResponseBase:
    """Show the question; once its form is sent and valid, do it: `act` takes what was filled in and returns what it did
    in words, or an answer of its own. `renamed` is that of `refuse`; `template` draws the form.
    """
    if request.method == "POST" and form.is_valid():
        try:
            done = act(form.cleaned_data)
        except (ServiceError, CreditError, ValidationError, ValueError) as error:
            refuse(form, error, **renamed)
        else:
            if isinstance(done, HttpResponseBase):
                return done
            messages.success(request, done)
            return redirect(ask.back)
    context = desk.context(page=ask.page, ask=ask, form=form, template=template)
    return render(request, "operate/ask.html", context, status=400 if form.errors else 200)


def bound(request: HttpRequest) -> Any:
    """Return the data of a sent form: None before."""
    return request.POST if request.method == "POST" else None


def to_copy(text: str, address: str) -> SafeString:
    """Return a message with an address and a button that copies it."""
    html = '{} <code class="address">{}</code> <button type="button" class="quiet" data-copy-text="{}">Copy</button>'
    return format_html(html, text, address, address)
