"""Database triggers that raise the catalogue epoch, or one tenant's, with every write to what gateways cache.

Whoever writes these tables (admin, services, SQL by hand), the bump is part of the same transaction: see
docs/decisions/0001-epoch-by-trigger.md. The reader's side is `gateway.runtime.epoch`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from django.apps import apps
from django.db import connection

from base.trigger_set import Trigger, TriggerSet

EVENTS = ("insert", "update", "delete")


@dataclass(frozen=True, slots=True)
class Watched:
    """A model whose rows gateways cache: which events bump, and which columns alone don't.

    `tenant` is the column that names the one tenant whose principals a row matters to; without it a write empties the
    caches of all.
    """

    model: str
    tenant: str = ""
    events: tuple[str, ...] = EVENTS
    only: tuple[str, ...] = ()
    besides: tuple[str, ...] = ()


WATCHED = (
    Watched("gateway.APIKey", tenant="tenant_id", besides=("last_used_at",)),
    Watched("gateway.Membership", tenant="tenant_id"),
    Watched("gateway.Tenant", tenant="id"),
    # Workers are offered the adapters of active tenants.
    Watched("gateway.Tenant", events=("update",), only=("is_active",)),
    Watched("gateway.Project", tenant="tenant_id"),
    # The catalogue has no models of archived projects.
    Watched("gateway.Project", events=("update",), only=("is_active",)),
    Watched("billing.SpendBudget", tenant="tenant"),
    Watched("billing.Subscription", tenant="tenant_id", besides=("granted_until",)),
    Watched("gateway.User", events=("update", "delete"), only=("is_active",)),
    Watched("billing.Plan"),
    Watched("billing.PlanVersion"),
    Watched("billing.RateCard"),
    Watched("billing.RateCardVersion"),
    Watched("billing.Rate"),
    Watched("routing.PublicModel"),
    Watched("routing.ModelAlias"),
    Watched("routing.Adapter"),
    Watched("routing.Node", besides=("seen_at",)),
    Watched("routing.Deployment"),
    Watched("routing.Replica"),
    Watched("routing.RouteRule"),
    Watched("routing.RouteTarget"),
)

# Both take the lock of the epoch's one row first, and numbers are drawn under it, so that no two writers can wait for
# each other and sequence numbers become visible in their order: a reader that asks for those above the last one that
# it saw misses none. Once per transaction is enough: every bump of it becomes visible at the same commit.
_FUNCTIONS = """
CREATE OR REPLACE FUNCTION gateway_bump_epoch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('sluice.epoch_bumped', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        INSERT INTO gateway_catalogueepoch AS row (id, epoch, sequence) VALUES (1, 1, 0)
            ON CONFLICT (id) DO UPDATE SET epoch = row.epoch + 1;
        PERFORM set_config('sluice.epoch_bumped', pg_current_xact_id()::text, true);
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE FUNCTION gateway_bump_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed uuid;
    bump text;
    number bigint;
BEGIN
    FOREACH changed IN ARRAY ARRAY[(to_jsonb(OLD) ->> TG_ARGV[0])::uuid, (to_jsonb(NEW) ->> TG_ARGV[0])::uuid] LOOP
        bump := pg_current_xact_id()::text || changed::text;
        CONTINUE WHEN changed IS NULL OR current_setting('sluice.tenant_bumped', true) IS NOT DISTINCT FROM bump;
        INSERT INTO gateway_catalogueepoch AS row (id, epoch, sequence) VALUES (1, 0, 1)
            ON CONFLICT (id) DO UPDATE SET sequence = row.sequence + 1 RETURNING sequence INTO number;
        INSERT INTO gateway_tenantepoch (tenant, sequence) VALUES (changed, number)
            ON CONFLICT (tenant) DO UPDATE SET sequence = number;
        PERFORM set_config('sluice.tenant_bumped', bump, true);
    END LOOP;
    RETURN NULL;
END $$
"""

# No upsert: inside a trigger SQLite lets the outer statement's conflict rule override it.
_ROW = """
    INSERT INTO gateway_catalogueepoch (id, epoch, sequence)
        SELECT 1, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM gateway_catalogueepoch WHERE id = 1);
"""
_BUMP = """
    UPDATE gateway_catalogueepoch SET epoch = epoch + 1 WHERE id = 1;
"""
_BUMP_TENANT = """
    UPDATE gateway_catalogueepoch SET sequence = sequence + 1 WHERE id = 1;
    DELETE FROM gateway_tenantepoch WHERE tenant = {tenant};
    INSERT INTO gateway_tenantepoch (tenant, sequence)
        SELECT {tenant}, sequence FROM gateway_catalogueepoch WHERE id = 1;
"""


def install() -> None:
    """Make the installed triggers be exactly the expected ones, and the epoch's row exist. Repeatable.

    Tables that are not migrated yet are left out; the next call takes them in.
    """
    from tenancy.models import CatalogueEpoch, TenantEpoch

    tables = set(connection.introspection.table_names())
    if {CatalogueEpoch._meta.db_table, TenantEpoch._meta.db_table} <= tables:
        EPOCH_TRIGGERS.install(connection)
        CatalogueEpoch.objects.get_or_create(id=1)


def missing() -> list[str]:
    """Return the names of triggers that should exist and don't: empty when the installation is whole."""
    return EPOCH_TRIGGERS.missing(connection)


def drop_before_migrate(**_: Any) -> None:
    """Receive `pre_migrate`: SQLite drops no column that a trigger reads. They are installed again afterwards."""
    if connection.vendor == "sqlite":
        EPOCH_TRIGGERS.drop(connection)


def install_after_migrate(**_: Any) -> None:
    """Receive `post_migrate`: altering a table on SQLite drops its triggers without a word."""
    install()


def _triggers(vendor: str) -> Iterator[Trigger]:
    for watched in WATCHED:
        options = apps.get_model(watched.model)._meta
        table = options.db_table
        columns = [field.column for field in options.concrete_fields if field.column not in watched.besides]
        chosen = [column for column in columns if not watched.only or column in watched.only]
        for event in watched.events:
            body = _statement(vendor, table, event, chosen, watched.tenant)
            digest = hashlib.sha256(f"{body}{_FUNCTIONS}".encode()).hexdigest()[:8]
            name = f"epoch_{table}_{event}_{digest}"
            yield Trigger(name, table, body.replace("{name}", name))


EPOCH_TRIGGERS = TriggerSet("epoch_", _triggers, (_FUNCTIONS,))


def _statement(vendor: str, table: str, event: str, columns: list[str], tenant: str) -> str:
    if vendor == "postgresql":
        changed = " OR ".join(f'OLD."{column}" IS DISTINCT FROM NEW."{column}"' for column in columns)
        when = f"WHEN ({changed})" if event == "update" else ""
        function = f"gateway_bump_tenant('{tenant}')" if tenant else "gateway_bump_epoch()"
        # Deferred: the row's lock is taken at the very end, so no two transactions can wait for each other over it.
        return (
            f'CREATE CONSTRAINT TRIGGER {{name}} AFTER {event} ON "{table}" '
            f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW {when} EXECUTE FUNCTION {function}"
        )
    changed = " OR ".join(f'OLD."{column}" IS NOT NEW."{column}"' for column in columns)
    when = f"WHEN {changed}" if event == "update" else ""
    sides = {"insert": ["NEW"], "update": ["OLD", "NEW"], "delete": ["OLD"]}[event]
    bumps = [_BUMP_TENANT.format(tenant=f'{side}."{tenant}"') for side in sides]
    body = _ROW + ("".join(bumps) if tenant else _BUMP)
    return f'CREATE TRIGGER {{name}} AFTER {event} ON "{table}" FOR EACH ROW {when} BEGIN {body} END'
