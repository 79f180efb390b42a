"""The forms that say what an API key may do and take, for a tenant's people and for operators."""

from __future__ import annotations

import json
from datetime import UTC, datetime, time, timedelta
from hashlib import sha256
from typing import Any, cast
from uuid import UUID

from django import forms
from django.http import QueryDict
from django.utils import timezone

from base.errors import ServiceError
from base.units import format_credits, parse_credits
from billing.models import Subscription
from routing.catalogue import models_in_use
from routing.services.catalogue import models_seen
from tenancy.models import APIKey, Project
from tenancy.services.access import Access
from tenancy.services.restrictions import LIMITS, Limit, Restrictions, spending_of
from tenancy.services.scopes import ALL, INFERENCE, MANAGEMENT, READ_ONLY

RESTRICTED, NOTHING = "restricted", "nothing"
ACCESS = {
    ALL: "All endpoints",
    READ_ONLY: "Only reading: models, usage, files, batches, stored responses",
    RESTRICTED: "Only the endpoints chosen here",
    NOTHING: "None",
}
LIFETIMES = {"": "Never", "7": "In 7 days", "30": "In 30 days", "90": "In 90 days", "365": "In a year"}


class CreditsInput(forms.CharField):
    """An amount of credits, in µcr once it is clean; empty is None."""

    def __init__(self, **options: Any) -> None:
        super().__init__(
            required=False, max_length=30, widget=forms.TextInput(attrs={"inputmode": "decimal"}), **options
        )

    def clean(self, value: Any) -> Any:
        """Return µcr."""
        text = super().clean(value).replace(",", "").strip()
        try:
            return parse_credits(text) if text else None
        except ValueError:
            raise forms.ValidationError("Write credits like 12.5.") from None


class RestrictionsForm(forms.Form):
    """A key's models, networks and limits, a field for each."""

    allowed_models = forms.MultipleChoiceField(
        required=False,
        widget=forms.CheckboxSelectMultiple,
        label="Models",
        help_text="None chosen: all of the plan, also those to come.",
    )
    networks = forms.CharField(
        required=False,
        max_length=4000,
        widget=forms.Textarea(attrs={"rows": 2, "spellcheck": "false"}),
        label="IP addresses",
        help_text="Addresses or networks, such as 192.0.2.0/24, one a line. Empty: from anywhere.",
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.fields |= {name: self.limit_field(limit) for name, limit in LIMITS.items()}

    def limit_field(self, limit: Limit) -> forms.Field:
        """Return the field of a limit, by its name."""
        if limit.in_credits:
            return CreditsInput(label=limit.words)
        return forms.IntegerField(required=False, min_value=limit.least, max_value=limit.most, label=limit.words)

    def restrictions(self) -> Restrictions:
        """Return the choice."""
        asked = self.cleaned_data
        return Restrictions.named({**asked, "networks": asked["networks"].split()})


class KeyTermsForm(RestrictionsForm):
    """A key's name, scopes, expiry and limits; members are offered no scope that outranks them."""

    name = forms.CharField(max_length=120, help_text="Where it will be used, so that you know which one to revoke.")
    access = forms.ChoiceField(choices=list(ACCESS.items()), widget=forms.RadioSelect, initial=ALL)
    endpoints = forms.MultipleChoiceField(
        choices=list(INFERENCE.items()), required=False, widget=forms.CheckboxSelectMultiple
    )
    management = forms.BooleanField(
        required=False, label="Management: list keys, make projects, read usage, wallet and audit trail"
    )
    lifetime = forms.ChoiceField(choices=list(LIFETIMES.items()), required=False, label="Expires")
    expires = forms.DateField(
        required=False,
        widget=forms.DateInput(attrs={"type": "date"}),
        label="Or on a day",
        help_text="The first day on which it no longer works (UTC).",
    )
    seen = forms.CharField(required=False, max_length=16, widget=forms.HiddenInput)

    def __init__(self, data: Any = None, *, access: Access, key: APIKey | None = None) -> None:
        initial = {} if key is None else _initial(key)
        super().__init__(data, initial=initial | {"seen": _stamp(initial)})
        self.label_suffix = ""
        self.key = key
        self.may_manage = access.may_give_scopes([MANAGEMENT])
        names = set(_models_of(access, key)) | set(() if key is None else key.allowed_models)
        self.fields["allowed_models"].choices = [(name, name) for name in sorted(names)]  # type: ignore[attr-defined]

    @property
    def is_narrow(self) -> bool:
        """Whether the restrictions are shown unfolded: some are set, or one is wrong."""
        return any(self[name].value() or self[name].errors for name in ("allowed_models", "networks", *LIMITS))

    @property
    def limits(self) -> list[forms.BoundField]:
        """The fields of rates and of budgets."""
        return [self[name] for name in LIMITS]

    def scopes(self) -> list[str]:
        """Return the scopes that were chosen."""
        asked = self.cleaned_data
        chosen = {RESTRICTED: asked["endpoints"], NOTHING: []}.get(asked["access"], [asked["access"]])
        return [*chosen, *([MANAGEMENT] if asked["management"] and self.may_manage else [])]

    def terms(self) -> dict[str, Any]:
        """Return all that was chosen, by its names in the service."""
        asked = self.cleaned_data
        named = {"name": asked["name"], "scopes": self.scopes(), "expires_at": asked["expires"]}
        return named | self.restrictions().by_name()

    def refuse(self, error: ServiceError) -> None:
        """Show a service's refusal beside its field."""
        field = {"expires_at": "expires", "scopes": "access"}.get(error.field, error.field)
        self.add_error(field if field in self.fields else None, error.message)

    def require_seen(self, key: APIKey) -> None:
        """Raise ServiceError for terms chosen over others than the key has by now; saved again they stand."""
        current = _stamp(_initial(key))
        if self.cleaned_data["seen"] not in ("", current):
            shown = cast("QueryDict", self.data).copy()
            shown["seen"] = current
            self.data = shown
            text = "This key was changed meanwhile. Save again to have what you chose here instead."
            raise ServiceError("", text)

    def clean_expires(self) -> datetime | None:
        """Return when the key ends: the chosen day's beginning in UTC, or the chosen time from now."""
        day, days = self.cleaned_data["expires"], self.cleaned_data.get("lifetime")
        if days:
            return timezone.now() + timedelta(days=int(days))
        end = None if self.key is None else self.key.expires_at
        if end is not None and end.date() == day:
            return end  # not changed
        return None if day is None else datetime.combine(day, time(), tzinfo=UTC)

    def clean(self) -> dict[str, Any]:
        """Refuse a key that may do nothing."""
        asked = super().clean() or self.cleaned_data
        if "access" in asked and "management" in asked and "endpoints" in asked and not self.scopes():
            self.add_error("access", "A key that may do nothing is of no use: choose what it is for.")
        return asked


class NewKeyForm(KeyTermsForm):
    """The terms of a new key, and its project."""

    project = forms.ChoiceField()

    def __init__(self, data: Any = None, *, access: Access) -> None:
        super().__init__(data, access=access)
        found = Project.objects.of(access.tenant).filter(is_active=True).order_by("created_at", "id")
        self.projects = {str(project.id): project for project in found}
        self.fields["project"].choices = [(key, project.name) for key, project in self.projects.items()]  # type: ignore[attr-defined]


def limits_in_words(key: APIKey) -> list[str]:
    """Return a key's limits beside its scopes, with the credits spent of them."""
    words = (
        [f"{len(key.allowed_models)} models" if len(key.allowed_models) > 1 else key.allowed_models[0]]
        if key.allowed_models
        else []
    )
    words += [f"from {', '.join(key.networks[:2])}{'…' if len(key.networks) > 2 else ''}"] if key.networks else []
    chosen, spent = Restrictions.of(key).by_name(), spending_of(key)
    for name, limit in LIMITS.items():
        if (number := chosen[name]) is not None:
            told = format_credits(number) if limit.in_credits else str(number)
            used = f"{format_credits(getattr(spent, name.removesuffix('_limit')))} of " if limit.is_spend else ""
            words.append(f"{used}{told} {limit.unit} {limit.period}")
    return words


def _stamp(initial: dict[str, Any]) -> str:
    """Return a digest of the terms that a page shows."""
    return sha256(json.dumps(initial, default=str).encode()).hexdigest()[:16]


def _initial(key: APIKey) -> dict[str, Any]:
    own = set(key.scopes) - {MANAGEMENT}
    access = next((one for one in (ALL, READ_ONLY) if own == {one}), RESTRICTED if own else NOTHING)
    narrow = Restrictions.of(key)
    chosen = narrow.by_name()
    amounts = {name: chosen[name] for name, limit in LIMITS.items() if limit.in_credits}
    counts = {name: chosen[name] for name, limit in LIMITS.items() if not limit.in_credits}
    return {
        "name": key.name,
        "access": access,
        "endpoints": sorted(own),
        "management": MANAGEMENT in key.scopes,
        "expires": None if key.expires_at is None else key.expires_at.date(),
        "allowed_models": narrow.allowed_models,
        "networks": "\n".join(narrow.networks),
        **counts,
        **{name: None if amount is None else format_credits(amount) for name, amount in amounts.items()},
    }


def _models_of(access: Access, key: APIKey | None) -> list[str]:
    """Return the names of the models that the tenant's plan has, of its own those that the key's project may use."""
    active = Subscription.objects.filter(tenant=access.tenant, state=Subscription.State.ACTIVE)
    allowed, adapters = active.values_list("version__allowed_models", "version__adapters").first() or ([], 0)
    project = None if key is None else key.project_id
    seen = models_seen(access.tenant.id if adapters else None, project).filter(id__in=models_in_use())
    models: list[tuple[str, UUID | None]] = list(seen.values_list("name", "tenant"))
    return [name for name, owner in models if not allowed or owner is not None or name in allowed]
