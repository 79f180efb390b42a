"""Deployments and nodes with the live state that a gateway sees. Here and not in `routing`, which knows no gateway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import admin, messages
from django.db.models import Count, QuerySet
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect
from django.urls import reverse
from django.utils.safestring import SafeString

from base.errors import ServiceError
from billing.admin.base import RowsAdmin, RowsInline, state_mark, table, tool, two_lines
from control.admin.remote import DeploymentForm, NewRemoteForm
from control.screens.engine_work import lines_of, tenants_of
from fleet.remote_models import Added, add_remote_model, try_again
from gateway.runtime.data_plane import DeploymentState, live_of
from routing.models import Deployment, Node, Replica
from routing.services.catalogue import place_locally


@admin.register(Node)
class NodeAdmin(RowsAdmin):
    """Machines with a worker each. An inactive node gets no work, and its worker no message."""

    list_display = ["name", "display_address", "display_replicas", "seen_at", "is_active"]
    list_filter = ["is_active"]
    search_fields = ["name", "address"]
    fields = ["name", "address", "public_key", "is_active", "seen_at"]
    readonly_fields = ["seen_at"]
    show_full_result_count = False

    def get_queryset(self, request: HttpRequest) -> QuerySet[Node]:
        """Return the nodes with the number of their replicas."""
        rows: QuerySet[Node] = super().get_queryset(request)
        return rows.annotate(replica_count=Count("replicas"))

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only a node that serves nothing may be deleted."""
        return bool(super().has_delete_permission(request, obj)) and (obj is None or not obj.replicas.exists())

    @admin.display(description="Address", ordering="address")
    def display_address(self, node: Node) -> str:
        """The address for gateways."""
        return node.address or "this machine"

    @admin.display(description="Deployments", ordering="replica_count")
    def display_replicas(self, node: Node) -> int:
        """The number of deployments with a replica on the node."""
        count: int = node.replica_count  # type: ignore[attr-defined] # annotated above
        return count


class ReplicaInline(RowsInline):
    """The nodes on which a worker's deployment is loaded."""

    model = Replica
    extra = 0
    autocomplete_fields = ["node"]


@admin.register(Deployment)
class DeploymentAdmin(RowsAdmin):
    """Deployments: the engine, machine and options that serve a model."""

    list_filter = ["backend", "is_active", "replicas__node"]
    list_select_related = ["model"]
    search_fields = ["name", "model__name"]
    autocomplete_fields = ["model"]
    form = DeploymentForm
    fields = [
        *("name", "model", "backend", "source", "quantization", "options", "weight", "api_key", "forget_api_key"),
        "is_active",
    ]
    inlines = [ReplicaInline]
    show_full_result_count = False
    list_tools = ["add_remote"]
    row_tools = ["test_prompt"]

    @tool("Add remote engine", path="add-remote", permission="add")
    def add_remote(self, request: HttpRequest) -> HttpResponse:
        """Ask for a foreign server's address, send it a test prompt, and add its model when that was answered."""
        form = NewRemoteForm(request.POST or None)
        if form.is_valid():
            try:
                added = add_remote_model(**form.asked())
            except ServiceError as error:
                form.refuse(error)
            else:
                self.log_addition(request, added.deployment, "Added after a test prompt.")
                _tell(request, added)
                return redirect("admin:routing_deployment_change", added.deployment.pk)
        told = "A test prompt is sent first; nothing is stored unless it is answered."
        back = reverse("admin:routing_deployment_changelist")
        return self.asking(request, form, title="Add remote engine", told=told, button="Test and add", back=back)

    @tool("Test prompt", path="test-prompt", permission="change")
    def test_prompt(self, request: HttpRequest, deployment: Deployment) -> HttpResponse:
        """Ask, and once that is confirmed send a remote engine a test prompt; nobody is charged."""
        back = reverse("admin:routing_deployment_change", args=[deployment.pk])
        if request.method != "POST":
            told = (
                f"The server of {deployment.name} is asked to answer a short prompt of each of its kinds. What that "
                "used and would cost is shown; nobody is charged here, but the server may count it."
            )
            return self.asking(request, title="Send a test prompt", told=told, button="Send it", back=back)
        if deployment.backend != Deployment.Backend.OPENAI:
            messages.info(request, "Models of our own workers are tried as they are loaded, and in the chat.")
        else:
            try:
                _tell(request, try_again(deployment))
            except ServiceError as error:
                messages.error(request, ": ".join(filter(None, (error.field, error.message))))
        return redirect(back)

    def change_view(
        self, request: HttpRequest, object_id: str, form_url: str = "", extra_context: dict[str, Any] | None = None
    ) -> HttpResponse:
        """Show the form, and above it how each engine is and what they did since they were loaded."""
        states = live_of(request).deployment_states() or {}
        state = next((state for deployment, state in states.items() if str(deployment) == object_id), None)
        context = {**(extra_context or {}), "engines": state.replicas if state is not None else ()}
        if state is not None and state.work is not None:
            context["engine_lines"] = lines_of(state)
            if tenants := tenants_of(state.work):
                context["engine_tenants"] = table(["Tenant", "Device time", "Of all"], tenants, empty="")
        answer: HttpResponse = super().change_view(request, object_id, form_url, context)
        return answer

    def get_inlines(self, request: HttpRequest, obj: Deployment | None) -> list[Any]:
        """Return the replicas' rows, but not for a deployment that no worker of ours serves."""
        return [] if obj is not None and obj.backend != Deployment.Backend.WORKER else list(self.inlines)

    def get_queryset(self, request: HttpRequest) -> QuerySet[Deployment]:
        """Return the deployments with the names of their nodes."""
        rows: QuerySet[Deployment] = super().get_queryset(request)
        return rows.prefetch_related("replicas__node")

    def get_list_display(self, request: HttpRequest) -> list[Any]:
        """Return the columns; those of live state read one snapshot, taken for this request."""
        states = live_of(request).deployment_states()
        return ["name", "serves", "weight", *_live_columns(states)]

    @admin.display(description="Serves", ordering="model__name")
    def serves(self, deployment: Deployment) -> SafeString:
        """The model, and below it the engine with its nodes."""
        nodes = ", ".join(replica.node.name for replica in deployment.replicas.all())
        return two_lines(deployment.model.name, " on ".join(filter(None, (deployment.backend, nodes))))

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        """Save the replicas; a worker's new deployment without one is served on this machine."""
        super().save_related(request, form, formsets, change)
        if not change and place_locally(form.instance):
            messages.info(request, "It has a replica on this machine's own worker, the node “local”.")


def _tell(request: HttpRequest, added: Added) -> None:
    """Show what a remote engine announced, and its test prompts with their cost."""
    info = added.tried.info
    if info.shares_prefixes:
        messages.warning(request, "Tenants share this server's prefix cache, as was accepted.")
    details = "; ".join(f"{name}: {value}" for name, value in info.details.items())
    messages.info(request, f"{added.deployment.name} answers: context {info.max_context:,} tokens; {details}.")
    for line in added.lines:
        messages.success(request, line)


def _live_columns(states: Any) -> list[Callable[[Deployment], Any]]:
    def state_of(deployment: Deployment) -> DeploymentState | None:
        found: DeploymentState | None = (states or {}).get(deployment.id)
        return found

    @admin.display(description="State")
    def state(deployment: Deployment) -> SafeString:
        known = state_of(deployment)
        if states is None or not deployment.is_active:
            return state_mark("unknown" if deployment.is_active else "off", "quiet")
        is_ready = known is not None and known.is_ready
        return state_mark("ready", "good") if is_ready else state_mark("not ready", "bad")

    @admin.display(description="Remarks")
    def reason(deployment: Deployment) -> str:
        known = state_of(deployment)
        if states is None:
            return "no gateway runs in this process"
        if known is None:
            return "" if not deployment.is_active else "not open"
        shared = "tenants share its prefix cache" if known.shares_prefixes else ""
        return "; ".join(filter(None, (known.reason, shared)))

    @admin.display(description="Running / waiting")
    def load(deployment: Deployment) -> SafeString:
        known = state_of(deployment)
        if known is None:
            return two_lines("–", "")
        return two_lines(f"{known.running} / {known.waiting}", f"{known.kv_used:.0%} of KV blocks")

    return [state, reason, load]
