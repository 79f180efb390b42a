"""The operator's admin of who may use Sluice, and its first page. It runs unscoped: see `OperatorScopeMiddleware`."""

from control.admin import (
    audit,
    batches,
    catalogue,
    deployments,
    keys,
    people,
    plans,
    prices,
    refusals,
    rules,
    tenants,
)

__all__ = [
    "audit",
    "batches",
    "catalogue",
    "deployments",
    "keys",
    "people",
    "plans",
    "prices",
    "refusals",
    "rules",
    "tenants",
]
