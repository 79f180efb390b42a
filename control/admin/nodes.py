"""Nodes: machines with a worker. Their keys are made by `manage.py nodes`, which writes the secret half to a file."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Count, QuerySet
from django.http import HttpRequest
from unfold.decorators import display

from billing.admin.base import RowsAdmin
from routing.models import Node


@admin.register(Node)
class NodeAdmin(RowsAdmin):
    """Where workers run. An inactive node is given no work, and its worker is no longer spoken to."""

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

    @display(description="Address", ordering="address")
    def display_address(self, node: Node) -> str:
        """Where gateways reach it."""
        return node.address or "this machine"

    @display(description="Deployments", ordering="replica_count")
    def display_replicas(self, node: Node) -> int:
        """How many deployments have a replica on it."""
        count: int = node.replica_count  # type: ignore[attr-defined] # annotated above
        return count
