"""Runs in a stack's home for as long as its tests do, and calls the functions that they name.

Each line that comes is a JSON list of a function's name (of the functions below, or ``module:function``) and its
arguments; each that goes is an object with the value that it returned, or the error that it raised.
"""

from __future__ import annotations

import hashlib
import importlib
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable
from datetime import timedelta
from pathlib import Path
from typing import IO, Any
from uuid import UUID

import django

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django.setup()

import redis  # noqa: E402
from django.conf import settings  # noqa: E402
from django.db import connections, transaction  # noqa: E402
from django.db.models import Sum  # noqa: E402
from django.utils import timezone  # noqa: E402

import manage as command_line  # noqa: E402
from base import clock  # noqa: E402
from base.ids import day_of, uuid7  # noqa: E402
from base.storage import read  # noqa: E402
from billing.limits.redis.store import PREFIX  # noqa: E402
from billing.models import (  # noqa: E402
    CreditGrant,
    Hold,
    LedgerTransfer,
    OutboxEvent,
    Plan,
    UsageRecord,
    Wallet,
)
from billing.models.cards import prices_of  # noqa: E402
from billing.rating import charge  # noqa: E402
from billing.services import cards, credits, plans, wallets  # noqa: E402
from fleet.adapters import add_adapter_folder  # noqa: E402
from gateway.generation.attempts import attempt_id  # noqa: E402
from gateway.generation.placement import MOST_ATTEMPTS  # noqa: E402
from inference.worker.record import ends_in  # noqa: E402
from routing.models import Adapter, Deployment, Node, Replica  # noqa: E402
from routing.services.catalogue import add_model  # noqa: E402
from routing.services.defaults import ensure_default_routes  # noqa: E402
from tenancy.models import CatalogueEpoch, Project, Tenant, User  # noqa: E402
from tenancy.services.admin_keys import create_admin_key  # noqa: E402
from tenancy.services.keys import create_key  # noqa: E402
from tenancy.services.mail import queue_mail  # noqa: E402
from tenancy.services.tenants import deactivate_tenant  # noqa: E402
from tests.fleet.adapters.files import save  # noqa: E402
from tests.upstream import MODEL  # noqa: E402

RATES = {
    "chat": {"input": 3_000_000, "cache_read": 700_000, "output": 11_000_000},
    "embedding": {"input": 1_300_000, "output": 0},
}
SCOPES = ["inference", "management"]


# -- what is there ------------------------------------------------------------------------------------------------


def seed(options: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Make plans with room, three tenants and fake models: one that chats, one that embeds, and one that chats for each
    other name in `options`, which are the models' own; return the tenants.
    """
    plans.ensure_default_plans()
    room = {"request_limit": 1_000_000, "request_burst": 1_000_000, "credit_limit": 10**12, "credit_burst": 10**12}
    for plan in Plan.objects.all():
        plans.publish_version(plan, **room, concurrency=64, allowed_models=[], adapters=1)
    _add_fake("fake-chat", "chat", options.get("chat", {}))
    _add_fake("fake-embed", "embedding", options.get("embedding", {}))
    ensure_default_routes()  # before the others, so that `auto` is one of these two
    for name in options.keys() - {"chat", "embedding"}:
        _add_fake(name, "chat", options[name])
    tenants = {}
    for slug in ("free", "business", "max"):
        tenant, project = _make_tenant(f"stack-{slug}", slug)
        wallets.open_wallet(tenant_id=tenant.id)
        plans.subscribe(tenant_id=tenant.id, plan_slug=slug, at=timezone.now())
        _, secret = create_key(tenant=tenant, project=project, name="stack", scopes=SCOPES)
        _, admin = create_admin_key(tenant=tenant, name="stack")
        tenants[slug] = {"id": str(tenant.id), "key": secret, "admin_key": admin}
    return tenants


def tenants(amounts: dict[str, int], terms: dict[str, Any]) -> dict[str, Any]:
    """Make more tenants with exactly the µcr that is asked for, as their only grant; with `terms` on a plan of theirs.
    Return them by slug.
    """
    slug = "-".join(["penniless", *(amounts if terms else ())])
    plan, is_new = Plan.objects.get_or_create(slug=slug, defaults={"name": slug})
    if is_new:
        free = {name: getattr(plans.latest_version("free"), name) for name in plans.TERMS}
        plans.publish_version(plan, **{**free, "monthly_credits": 0, **terms})
    return {slug: _tenant_with(slug, amount, plan) for slug, amount in amounts.items()}


def spread(node: str, models: list[str], address: str) -> None:
    """Put fake models on a node as well, and add the model of a foreign server."""
    for name in models:
        Replica.objects.create(deployment=Deployment.objects.get(name=name), node=Node.objects.get(name=node))
    if address:
        cards.publish("remote-chat", {0: {"input": 2_000_000, "cache_read": 500_000, "output": 7_000_000}})
        add_model(
            name="remote-chat",
            kinds=["chat"],
            context_length=8192,
            rate_card="remote-chat",
            source=address,
            backend="openai",
            options={"model": MODEL, "dialect": "vllm", "max_output": 400},
        )


def adapter(slug: str) -> dict[str, str]:
    """Make a tenant's adapter of the fake model if it has none, which no worker serves; return its id, and what its
    stored tensors hash to.
    """
    tenant = Tenant.objects.get(slug=slug)
    found = Adapter.objects.filter(model__tenant=tenant).first()
    if found is None:
        with tempfile.TemporaryDirectory() as folder:
            found = add_adapter_folder(save(Path(folder)), base="fake-chat", name="own", tenant=tenant)
    with read(found) as tensors:
        return {"id": str(found.id), "sha256": hashlib.sha256(tensors.read()).hexdigest()}


def superuser(email: str, password: str) -> None:
    User.objects.create_superuser(email=email, password=password)


def deactivate(slug: str) -> None:
    deactivate_tenant(tenant=Tenant.objects.get(slug=slug))


@transaction.atomic
def periodic_work(events: int) -> None:
    """Leave so many outbox events, of one usage record each, and mail to send."""
    tenant, some = uuid7(), uuid7()
    for _ in range(events):
        request = uuid7()
        UsageRecord.objects.create(
            id=request, day=day_of(request), request=request, tenant=tenant, project=some, wallet=some, model="m",
            deployment=some, card_version=some, charge=0, held=1, reserved_at=timezone.now(),
        )  # fmt: skip
        OutboxEvent.objects.create(topic="usage", payload={"records": [str(request)]})
    queue_mail(to="somebody@x.example", subject="s", text="the only text of this mail")


def end_leases() -> None:
    """Let the leases of all open holds be over, as they are 30 s after their gateway died."""
    Hold.objects.update(lease_until=clock.now() - timedelta(seconds=1))


def _add_fake(name: str, kind: str, options: dict[str, Any]) -> None:
    cards.publish(name, {0: RATES[kind]})
    fake = {"architecture": "fake", "kv_tokens": 16_384, "options": {"kinds": [kind], **options}}
    add_model(name=name, kinds=[kind], context_length=8192, rate_card=name, source="fake", options=fake)


def _make_tenant(slug: str, name: str) -> tuple[Tenant, Project]:
    tenant = Tenant.objects.create(slug=slug, name=name)
    project = Project(tenant=tenant, name="Default")
    project.save(force_insert=True)
    return tenant, project


def _tenant_with(slug: str, amount: int, plan: Plan) -> dict[str, Any]:
    tenant, project = _make_tenant(slug, slug)
    wallet = wallets.open_wallet(tenant_id=tenant.id)
    plans.subscribe(tenant_id=tenant.id, plan_slug=plan.slug, at=timezone.now())
    if amount:
        kind = CreditGrant.Kind.PROMOTIONAL
        credits.grant(wallet_id=wallet.id, amount=amount, kind=kind, key=f"test:{slug}", reason="test", actor="test")
    _, secret = create_key(tenant=tenant, project=project, name="stack", scopes=SCOPES)
    expiry = timezone.now() + timedelta(seconds=2)
    expiring, expiring_secret = create_key(tenant=tenant, project=project, name="expiring", expires_at=expiry)
    return {
        "id": str(tenant.id),
        "key": secret,
        "expiring": {"id": str(expiring.id), "key": expiring_secret, "at": expiry.timestamp()},
    }


# -- what came of it ----------------------------------------------------------------------------------------------


def audit(records: list[str], served: dict[str, dict[str, int]] | None = None) -> dict[str, Any]:
    """Return what the database says, what the workers' records say, and what a foreign server says that it served."""
    holds = Hold.objects.count()  # first: what is closed from now on has its record below
    foreign = _in_our_classes(served or {})
    engine = _engine_record(records)
    rows, recomputed = {}, 0
    latest = {row.request: row for row in UsageRecord.objects.order_by("revision")}
    prices = prices_of({row.card_version for row in latest.values()})
    moved = _whole_requests(engine, latest) | _whole_requests(foreign, latest)
    for request, row in latest.items():
        counts = {name: getattr(row, f"{name}_tokens") for name in ("input", "cache_read", "output", "reasoning")}
        classes = {name: count for name, count in counts.items() if count}
        ran = engine.get(request.hex) or foreign.get(request.hex) or {}
        rows[request.hex] = {
            "model": row.model,
            "tenant": str(row.tenant),
            "classes": classes,
            "charge": row.charge,
            "engine_charge": charge(ran, prices[row.card_version], row.multiplier_bp) - row.refunded,
            "exact": row.exact,
            "finish": row.finish,
            "waived": row.waived,
            "moved": request.hex in moved,
        }
        recomputed += charge(classes, prices[row.card_version], row.multiplier_bp) - row.refunded
    charges = LedgerTransfer.objects.filter(code__in=[2, 3, 9, 10, 12])
    given_back = charges.filter(debit__kind="usage").aggregate(total=Sum("amount"))["total"] or 0
    return {
        "holds": holds,
        "wallets": {str(w.tenant_id): {"posted": w.posted, "held": w.held} for w in Wallet.objects.all()},
        "usage": rows,
        "usage_sum": sum(row["charge"] for row in rows.values()),
        "recomputed_sum": recomputed,
        "ledger_sum": sum(charges.values_list("amount", flat=True)) - 2 * given_back,
        "engine": engine,
        "foreign": foreign,
    }


def holds() -> int:
    """Return how many holds are open, which costs far less than an audit."""
    return Hold.objects.count()


def lines_charged(batch: str) -> dict[str, Any]:
    """Return what the lines of a batch were charged."""
    rows = UsageRecord.objects.latest_revisions().filter(route__batch=batch, charge__gt=0)
    found = list(rows.values_list("request", "charge", "multiplier_bp"))
    multipliers = sorted({multiplier for _, _, multiplier in found})
    return {"charged": len(found), "sum": sum(charge for _, charge, _ in found), "multipliers": multipliers}


def leases() -> dict[str, int]:
    """Return how many leases and waiting requests the rate store in Redis holds by key, but for those that ended."""
    held = {}
    with redis.Redis.from_url(settings.REDIS_URL) as server:
        for key in server.scan_iter(f"{PREFIX}*"):
            if server.type(key) == b"zset" and not key.startswith(f"{PREFIX}celery:".encode()):
                if count := server.zcount(key, time.time() * 1e6, "+inf"):
                    held[key.decode()] = count
            elif key.endswith(b":waiting"):
                held[key.decode()] = server.hlen(key)
    return held


def counts() -> dict[str, int]:
    """Return what a set-up makes once, and the number of the catalogue's latest change."""
    epoch = CatalogueEpoch.objects.values_list("epoch", flat=True).first() or 0
    return {"tenants": Tenant.objects.count(), "grants": CreditGrant.objects.count(), "epoch": epoch}


def _engine_record(paths: list[str]) -> dict[str, dict[str, int]]:
    """Return the workers' own words: request → usage of its finish, empty for one that was only begun."""
    found: dict[str, dict[str, int]] = {}
    for path in paths:
        for request, end in ends_in(Path(path)).items():
            if end is not None or request not in found:
                found[request] = {} if end is None else end.usage.classes()
    return found


def _whole_requests(engine: dict[str, dict[str, int]], requests: Iterable[UUID]) -> set[str]:
    """Put what was recorded of a request's later attempts (on other engines, under ids of their own) under its own id;
    return the requests that had some. The usage of the last attempt is the whole request's.
    """
    moved = set()
    for request in requests:
        for number in range(1, MOST_ATTEMPTS):
            ran = engine.pop(attempt_id(request, number), None)
            if ran is not None:
                engine[request.hex] = ran
                moved.add(request.hex)
    return moved


def _in_our_classes(served: dict[str, dict[str, int]]) -> dict[str, dict[str, int]]:
    return {UUID(request).hex: {"input": ran["prompt"], "output": ran["completion"]} for request, ran in served.items()}


# -- how it is asked ----------------------------------------------------------------------------------------------


def manage(*arguments: str) -> tuple[int, str, str]:
    """Run ``manage.py`` in a child of this process, which spares its imports; return its exit status, what it printed
    and what it complained of.
    """
    with tempfile.TemporaryFile() as printed, tempfile.TemporaryFile() as complained:
        if (child := os.fork()) == 0:
            _be_manage(arguments, printed, complained)
        _, status = os.waitpid(child, 0)
        for file in (printed, complained):
            file.seek(0)
        return os.waitstatus_to_exitcode(status), printed.read().decode(), complained.read().decode()


def _be_manage(arguments: tuple[str, ...], printed: IO[bytes], complained: IO[bytes]) -> None:
    """Run it and end with its exit status, whatever happens."""
    code: Any = 1
    try:
        os.dup2(printed.fileno(), 1)
        os.dup2(complained.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.argv = ["manage.py", *arguments]
        command_line.main()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:  # noqa: BLE001 - what the interpreter would do
        traceback.print_exc()
    finally:
        if isinstance(code, str):
            sys.stderr.write(code)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code if isinstance(code, int) else 1)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else is printed
    for line in sys.stdin:
        name, arguments = json.loads(line)
        try:
            module, _, function = name.rpartition(":")
            functions = vars(importlib.import_module(module)) if module else globals()
            answer = {"value": functions[function](*arguments)}
        except Exception:  # noqa: BLE001 - told to the test
            answer = {"error": traceback.format_exc()}
        finally:
            connections.close_all()
        answers.write(json.dumps(answer) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
