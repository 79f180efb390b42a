"""Adding a model: its source, here or at another server, the fetch, and the proof that it answers."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from django import forms
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import get_object_or_404, redirect, render
from django.urls import reverse
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from base.errors import ServiceError
from base.sealing import SealError, seal, unseal
from control.operate.asks import METHODS
from control.operate.base import Desk, operator_page
from control.operate.fields import NamesField, OperatorForm
from control.operate.model_wizard import Facts, Step, facts_of, new_model, step_page, steps_of
from control.operate.models import fetch_word
from control.screens.tables import State
from fleet import fetches
from fleet.remote_models import Added, add_remote_model, listed_models, try_again
from gateway.runtime.data_plane import DeploymentState, live_of
from inference.open import remote_dialects
from inference.types import Kind
from routing.models import Deployment, Fetch

QUANTIZATIONS = [
    ("", "none: the checkpoint’s own precision"),
    ("w8a8", "eight bits (w8a8): about twice as fast, answers differ a little"),
    ("int4", "weights in four bits (int4), on a processor: fastest for few at once, answers differ more"),
    ("fp8", "eight-bit floating point (fp8), on a GPU that has it"),
]


class SourceForm(OperatorForm):
    """Weights that this machine serves itself."""

    renamed = {"options": "source"}

    source = forms.CharField(
        max_length=500,
        label="Hub id, folder or GGUF file",
        help_text="Such as Qwen/Qwen2.5-0.5B-Instruct (also …@revision), /srv/models/qwen, or /srv/models/qwen.gguf.",
        widget=forms.TextInput(attrs={"spellcheck": "false", "autocapitalize": "none"}),
    )
    name = forms.CharField(
        max_length=120, required=False, help_text="As tenants ask for it. Empty: the folder’s, file’s or hub id’s."
    )
    quantization = forms.ChoiceField(
        choices=QUANTIZATIONS, required=False, help_text="Where this machine has kernels for it."
    )


@require_http_methods(METHODS)
@operator_page("routing.add_publicmodel", "routing.add_deployment")
def new(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Ask for the weights of a model, and have them fetched."""
    form = SourceForm(request.POST or None)
    if form.is_valid():
        given = form.cleaned_data
        options = {"quantization": given["quantization"]} if given["quantization"] else {}
        try:
            fetch = fetches.ask(
                source=given["source"], name=given["name"].strip(), options=options, asked_by=desk.user.email
            )
        except ServiceError as error:
            form.refuse(error)
        else:
            return redirect("operate-model-fetch", fetch.pk)
    return step_page(request, desk, "source", None, form=form, kind="here", fetches=fetches.under_way())


class RemoteForm(OperatorForm):
    """A server and the model that it has; what it lists is offered once it was asked."""

    address = forms.CharField(
        max_length=500,
        help_text="Such as http://10.0.0.5:8000 or https://api.example.com.",
        widget=forms.TextInput(attrs={"inputmode": "url", "spellcheck": "false", "autocapitalize": "none"}),
    )
    api_key = forms.CharField(
        required=False,
        label="API key",
        help_text="Stored encrypted, and never shown. Empty: none.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    kept_key = forms.CharField(required=False, widget=forms.HiddenInput)
    dialect = forms.ChoiceField(
        choices=lambda: [(name, name) for name in remote_dialects()],
        required=False,
        initial="generic",
        label="Kind of server",
        help_text="generic: any that has OpenAI’s endpoints.",
    )
    model = forms.CharField(
        max_length=200,
        required=False,
        label="Its model",
        help_text="As the server calls it.",
        widget=forms.TextInput(attrs={"list": "listed", "spellcheck": "false"}),
    )
    name = forms.CharField(
        max_length=120,
        required=False,
        label="Public name",
        help_text="As tenants ask for it. Empty: the server’s. A model that exists gets one more deployment.",
    )
    kinds = NamesField(lambda: [kind.value for kind in Kind], label="For", initial=[Kind.CHAT.value], required=False)
    shared_prefixes = forms.BooleanField(
        required=False,
        label="Tenants may share its prefix cache",
        help_text="TGI and generic servers keep one cache for everybody: how fast an answer begins can tell one tenant "
        "what another has asked. Tick this to accept that.",
    )
    max_context = forms.IntegerField(
        required=False, min_value=1, label="Context", help_text="Tokens, where the server doesn’t say."
    )
    max_output = forms.IntegerField(
        required=False,
        min_value=1,
        label="Most output of one request",
        help_text="Tokens, 4,096 if empty: credit for all of them is held at once.",
    )
    concurrency = forms.IntegerField(
        required=False,
        min_value=1,
        label="Requests at once",
        help_text="Of one gateway, 64 if empty; others wait, tenants in turn.",
    )

    NUMBERS = ("max_context", "max_output", "concurrency")

    def key(self) -> str:
        """Return the API key: as typed, or as it was typed for this very address on the page before."""
        typed: str = self.cleaned_data["api_key"]
        if typed or not self.cleaned_data["kept_key"]:
            return typed
        try:
            address, key = json.loads(unseal(self.cleaned_data["kept_key"]))
        except (SealError, ValueError):
            return ""
        return key if address == self.cleaned_data["address"] else ""

    def keep_key(self) -> str:
        """Return the key so that the next page can hold it: sealed, for this address alone."""
        return seal(json.dumps([self.cleaned_data["address"], self.key()])) if self.key() else ""

    def options(self) -> dict[str, Any]:
        """Return the options that were given."""
        given = {name: self.cleaned_data[name] for name in self.NUMBERS if self.cleaned_data[name] is not None}
        return given | ({"shared_prefixes": True} if self.cleaned_data["shared_prefixes"] else {})


@sensitive_post_parameters("api_key", "kept_key")
@require_http_methods(METHODS)
@operator_page("routing.add_publicmodel", "routing.add_deployment")
def new_remote(request: HttpRequest, desk: Desk) -> HttpResponse:
    """Ask for a server, offer what it lists, and add the chosen model once a test prompt is answered."""
    form = RemoteForm(request.POST or None)
    found: list[Any] = []
    if form.is_valid():
        given = form.cleaned_data
        wants_list, kept_key = "list" in request.POST or not given["model"], form.keep_key()
        try:
            if wants_list:
                found = listed_models(address=given["address"], api_key=form.key())
            else:
                added = add_remote_model(
                    address=given["address"],
                    dialect=given["dialect"] or "generic",
                    model=given["model"],
                    name=given["name"].strip(),
                    kinds=given["kinds"] or [Kind.CHAT.value],
                    api_key=form.key(),
                    options=form.options(),
                    priced=False,
                )
                _tell(request, added)
                return redirect("operate-model-proof", added.deployment.model.pk)
        except ServiceError as error:
            form.refuse(error)
        shown = request.POST.copy()
        shown["kept_key"] = kept_key
        if found and not given["model"]:
            shown["model"] = found[0].name
            shown["dialect"] = found[0].dialect or given["dialect"] or "generic"
        refused = dict(form.errors)
        form = RemoteForm(shown)
        form.errors.clear()
        form.errors.update(refused)  # as they were found
    return step_page(request, desk, "source", None, form=form, kind="remote", listed=found)


def _tell(request: HttpRequest, added: Added) -> None:
    """Show a server's announcement, and its test prompts."""
    info = added.tried.info
    if info.shares_prefixes:
        messages.warning(request, "Tenants share this server’s prefix cache, as was accepted.")
    messages.success(request, f"{added.deployment.name} answers: context {info.max_context:,} tokens.")
    for trial in added.tried.trials:
        messages.info(request, f"Test prompt ({trial.kind}): {trial.usage.prompt} tokens in, "
                      f"{trial.usage.completion} out, {trial.milliseconds} ms.")  # fmt: skip


@require_http_methods(METHODS)
@operator_page("routing.add_publicmodel", "routing.add_deployment")
def fetch(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show how far a fetch is; stop it, or have it tried again."""
    row = get_object_or_404(Fetch.objects.select_related("model"), pk=pk)
    if request.method == "POST":
        (fetches.stop if "stop" in request.POST else fetches.again)(row)
        return redirect("operate-model-fetch", row.pk)
    if row.state == Fetch.State.DONE and row.model is not None and "HX-Request" not in request.headers:
        return redirect("operate-model-proof", row.model.pk)
    steps = steps_of("proof", None, None)
    steps[0] = Step("source", "Source", reverse("operate-model-new"), is_done=True, is_here=False)
    context = desk.context(page="models", steps=steps, fetch=row, word=fetch_word(row))
    answer = render(request, "operate/model_fetch.html", context)
    if row.state == Fetch.State.DONE and row.model is not None:
        answer.headers["HX-Redirect"] = reverse("operate-model-proof", args=[row.model.pk])
    return answer


@require_http_methods(METHODS)
@operator_page("routing.view_publicmodel", "routing.add_deployment")
def proof(request: HttpRequest, desk: Desk, pk: UUID) -> HttpResponse:
    """Show whether the model's engines answer, and send a foreign server another test prompt."""
    model = new_model(pk)
    if request.method == "POST":
        found = Deployment.objects.filter(model=model, backend="openai")
        deployment = next((one for one in found if str(one.pk) == request.POST.get("deployment")), None)
        if deployment is None:
            raise Http404
        try:
            _tell(request, try_again(deployment))
        except ServiceError as error:
            messages.error(request, error.message)
        return redirect("operate-model-proof", model.pk)
    facts = facts_of(live_of(request), model)
    lines = [_proven(one, (facts.states or {}).get(one.pk), facts) for one in model.deployments.all() if one.is_active]
    return step_page(request, desk, "proof", model, facts=facts, lines=lines)


def _proven(row: Deployment, known: DeploymentState | None, facts: Facts) -> tuple[Deployment, State, str]:
    """Return a deployment with how its engines are, their price left aside."""
    if facts.states is None:
        return row, State("unknown"), "No gateway answers: its state is known once one runs."
    if known is None:
        return row, State("waits", "warn"), "The gateway opens it within seconds."
    told = [
        ": ".join(filter(None, (one.node, one.engine or "ready", one.detail if one.engine else "")))
        for one in known.replicas
    ]
    if any(not one.engine and one.context for one in known.replicas):
        return row, State("answers", "good"), "; ".join(told)
    loads = any("load" in one.engine for one in known.replicas)
    return row, State("loading", "warn") if loads else State("not ready", "bad"), "; ".join(told)
