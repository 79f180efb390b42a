"""Deployments with the live state that this gateway sees. Here and not in `routing`, which knows no gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin
from django.http import HttpRequest
from unfold.admin import ModelAdmin
from unfold.decorators import display

from gateway.runtime.live import DeploymentState, live_of
from routing.models import Deployment


@admin.register(Deployment)
class DeploymentAdmin(ModelAdmin):
    """Where models are served."""

    list_filter = ["backend", "is_active", "node"]
    list_select_related = ["model"]
    search_fields = ["name", "model__name"]
    autocomplete_fields = ["model"]
    fields = ["name", "model", "backend", "node", "source", "options", "is_active"]
    show_full_result_count = False

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns; those of live state read one snapshot, taken for this request."""
        states = live_of(request).deployment_states()
        return ["name", "model", "backend", "node", *_live_columns(states), "is_active"]


def _live_columns(states: Any) -> list[Callable[[Deployment], Any]]:
    def state_of(deployment: Deployment) -> DeploymentState | None:
        found: DeploymentState | None = (states or {}).get(deployment.id)
        return found

    @display(description="State", label={"ready": "success", "not ready": "danger", "off": "info", "unknown": "info"})
    def state(deployment: Deployment) -> str:
        known = state_of(deployment)
        if not deployment.is_active:
            return "off"
        if states is None:
            return "unknown"
        return "ready" if known is not None and known.is_ready else "not ready"

    @display(description="Reason")
    def reason(deployment: Deployment) -> str:
        known = state_of(deployment)
        if states is None:
            return "no gateway runs in this process"
        return known.reason if known is not None else "not open"

    @display(description="Running / waiting")
    def load(deployment: Deployment) -> str:
        known = state_of(deployment)
        return "–" if known is None else f"{known.running} / {known.waiting}"

    @display(description="KV blocks in use")
    def kv_used(deployment: Deployment) -> str:
        known = state_of(deployment)
        return "–" if known is None else f"{known.kv_used:.0%}"

    return [state, reason, load, kv_used]
