"""Forms of remote engines: adding one, and changing what the catalogue has of one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from django import forms
from django.core.exceptions import ValidationError

from base.errors import ServiceError
from base.home import as_stored
from base.sealing import seal
from control.operate.fields import NameField, rate_cards
from control.operate.model_source import QUANTIZATIONS
from fleet.remote_models import checked
from fleet.serving import is_needed, needs_of
from fleet.worker_specs import WorkerSpecError, checked_engine
from inference.open import remote_dialects
from inference.types import Kind
from routing.models import Deployment

if TYPE_CHECKING:
    ModelForm = forms.ModelForm[Any]
else:
    ModelForm = forms.ModelForm  # can't be subscripted when it runs

_KEY_HELP = "Stored encrypted and never shown again. Empty: none."
_SHARED_HELP = (
    "TGI and generic servers keep one prefix cache for everybody: how fast an answer begins can tell one tenant what"
    " another has asked. Switch this on to accept that. Where it is off, each tenant has a cache of its own (vLLM,"
    " SGLang, TensorRT-LLM), or none (llama.cpp)."
)
_NUMBERS = ("max_context", "max_output", "concurrency")


class NewRemoteForm(forms.Form):
    """The fields of a new remote engine; those that are left empty have the engine's defaults."""

    address = forms.CharField(max_length=500, help_text="Such as http://10.0.0.5:8000.")
    dialect = forms.ChoiceField(
        choices=lambda: [(name, name) for name in remote_dialects()],
        help_text="What kind of server it is.",
    )
    model = forms.CharField(max_length=200, help_text="What the server calls the model.")
    name = forms.CharField(
        max_length=120,
        required=False,
        help_text="Public name; the server's if empty. A public model that exists gets one more deployment.",
    )
    kinds = forms.MultipleChoiceField(
        choices=[(kind.value, kind.value) for kind in Kind],
        initial=[Kind.CHAT.value],
        widget=forms.CheckboxSelectMultiple,
    )
    api_key = forms.CharField(
        required=False,
        label="API key",
        help_text=_KEY_HELP,
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    rate_card = NameField(rate_cards, any_label="the model's own, at the default rates if it is new")
    shared_prefixes = forms.BooleanField(required=False, help_text=_SHARED_HELP)
    max_context = forms.IntegerField(
        required=False,
        min_value=1,
        help_text="Tokens, where the server doesn't say.",
    )
    max_output = forms.IntegerField(
        required=False,
        min_value=1,
        help_text="Most output tokens of one request (4,096): credit for all of them is held at once.",
    )
    concurrency = forms.IntegerField(
        required=False,
        min_value=1,
        help_text="Most requests that one gateway has there at once (64); others wait, tenants in turn.",
    )

    def asked(self) -> dict[str, Any]:
        """Return the arguments of `add_remote_model`."""
        data = dict(self.cleaned_data)
        options = {name: data.pop(name) for name in _NUMBERS}
        chosen: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
        if data.pop("shared_prefixes"):
            chosen["shared_prefixes"] = True
        return {**data, "options": chosen}

    def refuse(self, error: ServiceError) -> None:
        """Show a service's refusal beside its field."""
        self.add_error(error.field if error.field in self.fields else None, error.message)


class DeploymentForm(ModelForm):
    """A deployment, its options checked; of a remote one the API key can be replaced."""

    quantization = forms.ChoiceField(
        choices=QUANTIZATIONS,
        required=False,
        help_text="Of a worker's model, where its machine has kernels for it; kept in the options.",
    )

    api_key = forms.CharField(
        required=False,
        label="API key",
        help_text="Of a remote engine. Stored encrypted and never shown; empty leaves it as it is.",
        widget=forms.PasswordInput(attrs={"autocomplete": "new-password"}),
    )
    forget_api_key = forms.BooleanField(required=False, label="Forget the API key")

    class Meta:
        model = Deployment
        fields = ["name", "model", "backend", "source", "options", "is_active"]
        help_texts = {
            "source": "A hub id, a folder or a GGUF file; home:… is below SLUICE_HOME of the machine that serves it."
            " Of a remote engine its address."
        }

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.initial.setdefault("quantization", (self.instance.options or {}).get("quantization", ""))

    def clean(self) -> dict[str, Any]:
        """Check a remote engine's address and options; a key goes to no new address without being entered again."""
        data: dict[str, Any] = super().clean() or {}
        if data.get("backend") != Deployment.Backend.OPENAI:
            self._quantize(data)
            if data.get("backend") == Deployment.Backend.WORKER:
                self._check_worker(data)
            return data
        try:
            data["source"] = checked(data.get("source") or "", data.get("options") or {})
        except ServiceError as error:
            at = "source" if error.field == "address" else "options"
            raise ValidationError({at: f"{error.field}: {error.message}"}) from error
        is_moved = data["source"] != self.initial.get("source")
        if self.instance.credential and is_moved and not data.get("api_key") and not data.get("forget_api_key"):
            raise ValidationError(
                {"api_key": "The address is new: enter its API key, or have the stored one forgotten."}
            )
        return data

    def clean_is_active(self) -> bool:
        """Refuse to put a deployment out of use on which something stands: its page under Engines says what."""
        is_active: bool = self.cleaned_data["is_active"]
        if self.initial.get("is_active") and not is_active and is_needed(self.instance):
            raise ValidationError([*needs_of(self.instance), "Its page under Engines takes it out of service anyway."])
        return is_active

    def _check_worker(self, data: dict[str, Any]) -> None:
        """Refuse a model that no worker could load, and options that no engine has."""
        data["source"] = source = as_stored(data.get("source") or "")
        if not source:
            self.add_error("source", "Say where the weights are: a hub id, a folder, or a GGUF file.")
        if "options" in data:
            try:
                checked_engine(source, data["options"])
            except WorkerSpecError as error:
                raise ValidationError({"options": str(error)}) from error

    def _quantize(self, data: dict[str, Any]) -> None:
        """Put the choice into the options, where it wins if it was changed; both may not be changed differently."""
        options = data.get("options")
        if "quantization" not in self.changed_data or not isinstance(options, dict):
            return
        chosen, written = data.get("quantization") or "", options.get("quantization", "")
        if "options" in self.changed_data and written not in {chosen, self.initial["quantization"]}:
            raise ValidationError({"quantization": f"The options say {written!r}: choose one of them."})
        data["options"] = {name: value for name, value in options.items() if name != "quantization"}
        if chosen:
            data["options"]["quantization"] = chosen

    def save(self, commit: bool = True) -> Any:
        """Store a new API key sealed."""
        if self.cleaned_data.get("api_key"):
            self.instance.credential = seal(self.cleaned_data["api_key"])
        elif self.cleaned_data.get("forget_api_key"):
            self.instance.credential = ""
        return super().save(commit)
