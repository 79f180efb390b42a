"""Public models and adapters. Here and not in `routing`, which knows no price lists."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin, messages
from django.db.models import Count, Q, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString

from base.errors import ServiceError
from billing.admin.base import RowsAdmin, state_mark, tool, two_lines
from control.operate.fields import NameField, NamesField, models, rate_cards, tasks
from control.operate.model_states import TONES, Standing, adapter_of, standing_of
from fleet.adapters import add_adapter_folder, bases
from fleet.removal import losses_of, withdraw
from gateway.runtime.data_plane import Live, live_of
from inference.types import Kind
from routing.models import ModelAlias, PublicModel
from routing.services.catalogue import check_alias
from routing.tasks import AUTO
from tenancy.models import Tenant
from tenancy.services.restrictions import users_of

_FIELDS = {"base": "base", "name": "name", "source": "folder", "config": "folder", "file_id": "folder"}


class NewAdapterForm(forms.Form):
    """The fields of a new adapter."""

    folder = forms.CharField(
        max_length=500,
        help_text="On this machine: adapter_config.json and adapter_model.safetensors, as PEFT writes them.",
    )
    base = NameField(bases, help_text="The model that it changes.")
    name = forms.CharField(max_length=60, help_text="Public name.")
    rate_card = NameField(rate_cards, any_label="that of its base")
    description = forms.CharField(max_length=300, required=False)
    tenant = forms.ModelChoiceField(
        Tenant.objects.filter(is_active=True),
        required=False,
        empty_label="everybody whose plan includes it",
        help_text="Who sees it. A tenant's own has its slug before the name, as acme/law, and counts among its plan's.",
    )

    def asked(self) -> dict[str, Any]:
        """Return the arguments of `add_adapter_folder`."""
        return {**self.cleaned_data, "folder": Path(self.cleaned_data["folder"])}

    def refuse(self, error: ServiceError) -> None:
        """Show why the service refused, at the field that it names."""
        self.add_error(_FIELDS.get(error.field), error.message)


if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm  # can't be subscripted when it runs


class PublicModelForm(ModelForm):
    """A model with its price list, both by name."""

    kinds = NamesField(lambda: [kind.value for kind in Kind], help_text="What it is for.")
    rate_card = NameField(
        rate_cards,
        any_label="that of its base",
        help_text="The price list, an adapter's that of its base unless it has its own. Publish one under Rate cards "
        "first.",
    )

    class Meta:
        model = PublicModel
        fields = ["name", "kinds", "context_length", "default_max_tokens", "rate_card", "description", "is_active"]

    def clean_is_active(self) -> bool:
        """Refuse to put a model out of use on which others stand: the page Withdraw says which, and mends them."""
        is_active: bool = self.cleaned_data["is_active"]
        if self.initial.get("is_active") and not is_active and losses_of(self.initial["name"]).needs_mending:
            raise forms.ValidationError(
                "Rules, adapters, plans or keys stand on it: Withdraw… says which, and mends them."
            )
        return is_active

    def clean_rate_card(self) -> str:
        """Refuse a model without a price list, but an adapter."""
        card: str = self.cleaned_data["rate_card"]
        if not card and not hasattr(self.instance, "adapter"):
            raise forms.ValidationError("Only an adapter takes the price list of its base: choose one.")
        return card


class ModelAliasForm(ModelForm):
    """Another name, and the model that it means."""

    target = NameField(lambda: [AUTO, *(f"{AUTO}:{task}" for task in tasks()), *models()])

    class Meta:
        model = ModelAlias
        fields = ["name", "target"]

    def clean_name(self) -> str:
        """Refuse a name that a model has, or that means ``auto``."""
        name: str = self.cleaned_data["name"]
        try:
            check_alias(name, AUTO)
        except ValueError as error:
            raise forms.ValidationError(f"{error}.") from error
        return name


@admin.register(ModelAlias)
class ModelAliasAdmin(RowsAdmin):
    """Other names for models, such as those that programs written for another service ask for."""

    list_display = ["name", "target"]
    search_fields = ["name", "target"]
    form = ModelAliasForm


def _standings(live: Live) -> Callable[[PublicModel], Standing]:
    """Return how models are, by one snapshot of the gateway."""
    snapshot = cache(lambda: (live.deployment_states(), live.prices()))  # a list asks for its columns twice

    def standing(model: PublicModel) -> Standing:
        return standing_of(live, *snapshot(), model)

    return standing


def columns_of(live: Live) -> list[Callable[[PublicModel], Any]]:
    """Return the columns of a model's state and of what serves it, with the reason where there is one."""
    standing = _standings(live)

    @admin.display(description="State")
    def state(model: PublicModel) -> SafeString:
        word = standing(model).word
        return state_mark(word, TONES.get(word, "quiet"))

    @admin.display(description="Served by", ordering="active_count")
    def serving(model: PublicModel) -> SafeString:
        return two_lines(served_by(model), standing(model).reason)

    return [state, serving]


def state_field(live: Live) -> Callable[[PublicModel], str]:
    """Return the field of a model's state, with the reason where there is one."""
    standing = _standings(live)

    @admin.display(description="State")
    def state(model: PublicModel) -> str:
        found = standing(model)
        return ": ".join(filter(None, (found.word, found.reason)))

    return state


@admin.display(description="Served by")
def served_by(model: PublicModel) -> str:
    """The number of active deployments; of an adapter its base, and whose it is."""
    adapter = adapter_of(model)
    if adapter is None:
        count: int = model.active_count  # type: ignore[attr-defined] # annotated by the admin
        return f"{count} deployment{'s' * (count != 1)}"
    whose = f", only {model.project or model.tenant}" if model.tenant is not None else ""
    return f"adapter of {adapter.base.name}{whose}"


@admin.register(PublicModel)
class PublicModelAdmin(RowsAdmin):
    """Models as tenants see them."""

    list_filter = ["is_active"]
    search_fields = ["name", "description"]
    form = PublicModelForm
    show_full_result_count = False
    list_tools = ["add_adapter"]
    row_tools = ["withdraw"]

    @tool("Add adapter", path="add-adapter", permission="add")
    def add_adapter(self, request: HttpRequest) -> HttpResponse:
        """Ask for a LoRA adapter's folder and its base, check both, and make them a model."""
        form = NewAdapterForm(request.POST or None)
        if form.is_valid():
            try:
                made = add_adapter_folder(**form.asked())
            except ServiceError as error:
                form.refuse(error)
            else:
                self.log_addition(request, made.model, f"Added as an adapter of {made.base.name}.")
                messages.success(request, f"{made.model.name} is in the catalogue; workers read it now.")
                return redirect("admin:routing_publicmodel_changelist")
        told = (
            "A model of another one and a LoRA adapter. Config and tensors are checked before anything is stored. "
            "Workers that serve the base read it at once; where its shapes don't fit, their log says so, and requests "
            "are refused with the reason."
        )
        back = reverse("admin:routing_publicmodel_changelist")
        return self.asking(request, form, title="Add adapter", told=told, button="Check and add", back=back)

    @tool("Withdraw…", path="withdraw", permission="withdraw")
    def withdraw(self, request: HttpRequest, model: PublicModel) -> HttpResponse:
        """Say who loses the model, and once that is confirmed withdraw it and mend what stood on it."""
        if request.method == "POST":
            if done := withdraw(model.name, mends=True):
                self.log_change(request, model, "Withdrawn.")
                messages.success(request, " ".join(done))
            return redirect("admin:routing_publicmodel_changelist")
        who, told = model.tenant or "Tenants", f"can’t ask for {model.name} any more"
        if hasattr(model, "adapter"):
            told += (
                f", an adapter of {model.adapter.base.name}, and requests that run with it end. Its tensors are "
                "removed: to have it again, it is added again from its folder."
            )
        else:
            told += "; requests that run with it go on to their end. It can be added again."
        kept = "Usage, ledger and audit trail are kept."
        return self.asking(
            request,
            title=f"Withdraw {model.name}",
            told="\n\n".join([f"{who} {told}", *losses_of(model.name).lines(), kept]),
            button="Withdraw",
            is_grave=True,
            back=reverse("admin:routing_publicmodel_change", args=[model.pk]),
        )

    def save_model(self, request: HttpRequest, obj: PublicModel, form: ModelForm, change: bool) -> None:
        """Write it; of a former name that plans and keys still give, say who does: their requests are refused now."""
        super().save_model(request, obj, form, change)
        former = form.initial.get("name")
        if former not in {None, obj.name} and (users := users_of(former)):
            text = f"What still names {former} may not use {obj.name}: {users}. Publish plans anew and change keys."
            messages.warning(request, text)

    def has_withdraw_permission(self, request: HttpRequest, model: PublicModel) -> bool:
        """Whether this operator may withdraw that model: one in use."""
        return model.is_active and bool(self.has_change_permission(request, model))

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns; those of live state read one snapshot, taken for this request."""
        described = ["name", "display_kinds", "display_context", "price_list"]
        return [*described, *columns_of(live_of(request)), "is_active"]

    def get_fields(self, request: HttpRequest, obj: PublicModel | None = None) -> list[Any]:
        """Return the fields of the form; of a stored model also its deployments and state."""
        return [*PublicModelForm.Meta.fields, *self.get_readonly_fields(request, obj)]

    def get_readonly_fields(self, request: HttpRequest, obj: PublicModel | None = None) -> list[Any]:
        """Return what is only told of a model that is there; the same functions for all of a request."""
        if obj is None:
            return []
        if "told_fields" not in request.__dict__:
            request.__dict__["told_fields"] = [served_by, state_field(live_of(request))]
        return list(request.__dict__["told_fields"])

    def get_queryset(self, request: HttpRequest) -> QuerySet[PublicModel]:
        """Return the models with the number of their active deployments."""
        rows: QuerySet[PublicModel] = super().get_queryset(request)
        rows = rows.select_related("adapter__base", "tenant", "project__tenant").prefetch_related(
            "deployments", "tenant__subscriptions__version"
        )
        return rows.annotate(active_count=Count("deployments", filter=Q(deployments__is_active=True)))

    @admin.display(description="Price list", ordering="rate_card")
    def price_list(self, model: PublicModel) -> str:
        """The name of its rate card; an adapter without one has its base's."""
        adapter = getattr(model, "adapter", None)
        return model.rate_card or (f"{adapter.base.rate_card}, its base's" if adapter is not None else "–")

    @admin.display(description="Kinds")
    def display_kinds(self, model: PublicModel) -> str:
        """The kinds of requests that the model serves."""
        return ", ".join(model.kinds)

    @admin.display(description="Context", ordering="context_length")
    def display_context(self, model: PublicModel) -> str:
        """The context in tokens."""
        return f"{model.context_length:,}"
