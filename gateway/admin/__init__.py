"""The operator's admin of who may use Sluice, and its first page. It runs unscoped: see `OperatorScopeMiddleware`."""

from gateway.admin import deployments, keys, people, tenants

__all__ = ["deployments", "keys", "people", "tenants"]
