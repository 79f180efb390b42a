"""Forms of pages: fields of credits, typed confirmations, and what a service refused beside its field."""

from __future__ import annotations

import secrets
from typing import Any

from django import forms
from django.core.exceptions import ValidationError
from django.utils import timezone

from base.errors import ServiceError
from base.units import format_credits, parse_credits


class CreditsField(forms.CharField):
    """An amount typed in credits, in µcr once it is clean; empty is None. `is_signed` allows amounts below zero."""

    def __init__(self, *, is_signed: bool = False, **options: Any) -> None:
        attributes = {"inputmode": "text" if is_signed else "decimal", "autocomplete": "off"}
        super().__init__(max_length=30, widget=forms.TextInput(attrs=attributes), **options)
        self.is_signed = is_signed

    def prepare_value(self, value: Any) -> Any:
        """Return the amount as it is typed."""
        return format_credits(value) if isinstance(value, int) else value

    def clean(self, value: Any) -> int | None:
        """Return µcr."""
        text = super().clean(value)
        if not text.strip():
            return None
        try:
            micro = parse_credits(text.replace(",", "").strip())
        except ValueError:
            raise ValidationError("Write credits like 12.5, with at most six decimals.") from None
        if micro < 0 and not self.is_signed:
            raise ValidationError("Write an amount above zero.")
        return micro


class MomentField(forms.DateTimeField):
    """A moment to come, typed as a day and a time of UTC; empty is None."""

    def __init__(self, **options: Any) -> None:
        widget = forms.DateTimeInput(attrs={"type": "datetime-local"}, format="%Y-%m-%dT%H:%M")
        super().__init__(
            required=False, widget=widget, input_formats=["%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S"], **options
        )

    def clean(self, value: Any) -> Any:
        """Return the moment; refuse a past one."""
        moment = super().clean(value)
        if moment is not None and moment <= timezone.now():
            raise ValidationError("Choose a moment that is still to come.")
        return moment


def mint_key() -> str:
    """Return a new idempotency key for a form, so that sending it twice takes effect once."""
    return f"operate:{secrets.token_urlsafe(16)}"


class OnceForm(forms.Form):
    """A form that takes effect once, however often it is sent."""

    key = forms.CharField(max_length=100, widget=forms.HiddenInput, initial=mint_key)


class TypedForm(forms.Form):
    """A confirmation by the typed name of the object."""

    typed = forms.CharField(
        max_length=300, widget=forms.TextInput(attrs={"autocomplete": "off", "spellcheck": "false"})
    )

    def __init__(self, *args: Any, expected: str, **options: Any) -> None:
        super().__init__(*args, **options)
        self.expected = expected
        self.fields["typed"].label = f"Type {expected} to confirm"
        self.order_fields([name for name in self.fields if name != "typed"])

    def clean_typed(self) -> str:
        """Refuse another name."""
        typed: str = self.cleaned_data["typed"].strip()
        if typed != self.expected:
            raise ValidationError(f"That is something else: type {self.expected}.")
        return typed


def refuse(form: forms.BaseForm, error: Exception, **renamed: str) -> None:
    """Show why a service refused beside the field that it names, else above the form.

    Services of credit begin their message with the field's name and a colon. `renamed` has the form's name of a
    service's field where it is another.
    """
    if isinstance(error, ServiceError):
        field, text = error.field, error.message
    elif isinstance(error, ValidationError):
        field, text = "", "; ".join(error.messages)
    else:
        field, _, text = str(error).partition(": ")
        if field not in form.fields and field not in renamed:
            field, text = "", str(error)
    field = renamed.get(field, field)
    form.add_error(field if field in form.fields else None, text[:1].upper() + text[1:])
