"""What the operator's and a tenant's pages cost over many records: milliseconds, queries and bytes of each page.

    python benchmarks/pages.py [--records 1000000] [--tenants 10000] [--times 3] [--only PATTERN] [--slowest]

A PostgreSQL server of its own is filled by SQL alone; the pages are asked through Django's test client. The least of
`--times` tries is shown: what was waited, and processor time (ours, the server's), which says more on a busy machine;
`--slowest` adds the slowest query of each page.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

AIM_MS, AIM_QUERIES, AIM_KB = 200, 15, 100
MODELS = 20
DAYS = 60

TENANT_PAGES = ("keys", "models", "batches", "billing", "people", "settings")

MADE = """CREATE FUNCTION made(at timestamptz, n bigint) RETURNS uuid IMMUTABLE PARALLEL SAFE LANGUAGE sql AS $$
SELECT (lpad(to_hex((extract(epoch FROM at) * 1000)::bigint), 12, '0') || '7' || substr(md5(n::text), 1, 3) || '8'
    || substr(md5(n::text), 4, 15))::uuid $$"""
"""A uuid7 of a moment and a number."""


def filled(records: int, tenants: int) -> None:
    """Fill the migrated database."""
    from django.db import connection

    from base.database.connections import limit_migration
    from billing.models import (
        CreditGrant,
        LedgerAccount,
        LedgerTransfer,
        PlanVersion,
        Subscription,
        UsageRecord,
        Wallet,
    )
    from billing.services.plans import ensure_default_plans
    from billing.services.wallets import ensure_operator_accounts
    from gateway.runtime.models import RefusalCount, RefusedRequest
    from tenancy.models import APIKey, AuditEvent, Membership, Project, Tenant, User

    ensure_default_plans()
    ensure_operator_accounts()
    limit_migration()

    def identifier(kind: int, number: str) -> str:
        return f"made('2026-01-01', {kind * 10**8} + {number})"

    with connection.cursor() as cursor:

        def rows(_table, _rows: int, /, **given: str) -> None:
            """Insert rows n = 0, 1, … of expressions over n; other columns get the fields' defaults."""
            for field in _table._meta.concrete_fields:
                if field.column in given or field.null or field.has_db_default():
                    continue
                if field.get_internal_type() == "BigAutoField":
                    continue
                default = field.get_default()
                text = {dict: "'{}'", list: "'[]'", bool: str(default)}.get(type(default), f"'{default}'")
                given[field.column] = text
            columns = ", ".join(f'"{name}"' for name in given)
            cursor.execute(
                f"INSERT INTO {_table._meta.db_table} ({columns}) "
                f"SELECT {', '.join(given.values())} FROM generate_series(0, {_rows - 1}) AS n"
            )

        cursor.execute(f"SET session_replication_role = replica; {MADE}")  # without triggers, and checks of references
        owner = f"(n % {tenants})"
        at = f"now() - (n + 1) * interval '1 second' * {DAYS * 86400 / records}"
        ids = {name: identifier(kind, "n") for kind, name in enumerate(("tenant", "project", "key", "wallet", "own"))}
        of = {name: identifier(kind, owner) for kind, name in enumerate(ids)}
        rows(Tenant, tenants, id=ids["tenant"], name="'Tenant ' || n", slug="'tenant-' || n")
        rows(Project, tenants, id=ids["project"], tenant_id=ids["tenant"], name="'Default'")
        rows(
            APIKey, tenants, id=ids["key"], tenant_id=ids["tenant"], project_id=ids["project"], name="'key'",
            prefix="'sk-sluice-'", last_four="'abcd'", digest="md5(n::text)",
        )  # fmt: skip
        people = identifier(7, "n")
        rows(User, tenants, id=people, email="'boss' || n || '@x.example'", last_login=at)
        rows(Membership, tenants, id=identifier(8, "n"), tenant_id=ids["tenant"], user_id=people, role="'owner'")
        rows(Wallet, tenants, id=ids["wallet"], tenant_id=ids["tenant"], posted="10000000000")
        rows(LedgerAccount, tenants, id=ids["own"], kind="'wallet'", wallet_id=ids["wallet"])
        rows(
            CreditGrant, 5 * tenants, id=identifier(5, "n"), wallet_id=of["wallet"], kind="'promotional'",
            amount="10000000000", remaining="CASE WHEN n % 5 = 0 THEN 1000000 ELSE 0 END",
            expires_at="CASE WHEN n % 2 = 0 THEN now() + interval '20 days' END",
            created_at="now() - n * interval '1 minute'",
        )  # fmt: skip
        used = {
            "tenant": of["tenant"],
            "project": of["project"],
            "api_key": of["key"],
            "model": f"'model-' || n % {MODELS}",
        }
        rows(
            UsageRecord, records, id=f"made({at}, n)", request=f"made({at}, n)",
            day=f"(({at}) AT TIME ZONE 'UTC')::date",
            wallet=of["wallet"], deployment=of["tenant"], card_version=of["tenant"], endpoint="'chat.completions'",
            input_tokens="100 + n % 900", output_tokens="50", charge="CASE WHEN n % 20011 = 0 THEN 0 ELSE 1000 END",
            held="2000", exact="n % 1009 > 0", waived="n % 20011 = 0", finish="'stop'", reserved_at=at, settled_at=at,
            **used,
        )  # fmt: skip
        cursor.execute("SELECT id FROM billing_ledgeraccount WHERE kind = 'usage'")
        [[usage]] = cursor.fetchall()
        rows(
            LedgerTransfer, records, debit_id=of["own"], credit_id=f"'{usage}'", amount="1000", code="2",
            request=f"made({at}, n)", booked_at=at, effective_at=at,
        )  # fmt: skip
        rows(
            RefusalCount, records // 20, id=identifier(6, "n"), minute=f"date_trunc('minute', {at})",
            tenant_id=of["tenant"], api_key_id=of["key"], status="429", code="'rate_limit_exceeded'",
            model=used["model"], count="3", last_request=f"made({at}, n)", last_at=at,
        )  # fmt: skip
        rows(
            RefusedRequest, records // 20, id=f"made({at}, -n)", at=at, tenant_id=of["tenant"], api_key=of["key"],
            model=used["model"], endpoint="'/v1/chat/completions'", status="429", code="'rate_limit_exceeded'",
            message="'Your plan''s rate of requests is reached: try again in 3 s.'",
        )  # fmt: skip
        rows(
            AuditEvent, records // 20, id=f"made({at}, n)", at=at, tenant_id=of["tenant"], actor="'boss@x.example'",
            action="'key.created'", target_type="'apikey'", target_id="n::text", target="'key'",
        )  # fmt: skip
        version = PlanVersion.objects.filter(plan__slug="business").values_list("pk", flat=True).first()
        rows(
            Subscription, tenants, id=identifier(7, "n"), tenant_id=ids["tenant"], version_id=f"'{version}'",
            state="'active'", anchor="now()", time_zone="'UTC'",
        )  # fmt: skip
        sums(cursor)
        cursor.execute("RESET session_replication_role; ANALYZE")
    catalogue()


def catalogue() -> None:
    """Make the models that the records name, with a price each, two rules, and a plan that has some."""
    from billing.services import cards
    from routing.models import PublicModel, RouteRule, RouteTarget
    from routing.services.catalogue import add_model

    for number in range(MODELS):
        cards.publish(f"model-{number}", {0: {"input": 10_000_000, "output": 40_000_000}})
        add_model(
            name=f"model-{number}", kinds=["chat"], context_length=8192, rate_card=f"model-{number}", source="",
            backend="fake",
        )  # fmt: skip
    for name, models in (("code", ("model-1", "model-2")), ("general", ("model-3",))):
        rule = RouteRule.objects.create(name=name, priority=len(name))
        for model in models:
            RouteTarget.objects.create(rule=rule, model=PublicModel.objects.get(name=model))


def sums(cursor) -> None:
    """Fill the rollups from the records."""
    cursor.execute(
        """INSERT INTO billing_usagerollup (id, hour, tenant, project, api_key, model, requests, input_tokens,
            cache_read_tokens, output_tokens, charge)
        SELECT gen_random_uuid(), date_trunc('hour', settled_at), tenant, project, api_key, model, count(*),
            sum(input_tokens), 0, sum(output_tokens), sum(charge)
        FROM billing_usagerecord GROUP BY 2, 3, 4, 5, 6"""
    )
    cursor.execute(
        """INSERT INTO billing_usageday (day, model, requests, input_tokens, cache_read_tokens, output_tokens, charge)
        SELECT (hour AT TIME ZONE 'UTC')::date, model, sum(requests), sum(input_tokens), 0, sum(output_tokens),
            sum(charge)
        FROM billing_usagerollup GROUP BY 1, 2"""
    )


def pages() -> list[tuple[str, ...]]:
    """Return what is measured: a name and an address each, and a form where one is sent."""
    from django.contrib import admin
    from django.urls import reverse

    from billing.models import UsageRecord, Wallet
    from gateway.runtime.models import RefusedRequest
    from tenancy.models import Tenant

    found = [
        *(("first page", reverse("admin:index")), ("operate: now", reverse("operate-now"))),
        *(("operate: engines", reverse("operate-engines")), ("operate: system", reverse("operate-system"))),
        *((f"operate: money, {days} days", f"{reverse('operate-money')}?days={days}") for days in (7, 30, 90)),
    ]
    for model in sorted(admin.site._registry, key=lambda one: one._meta.label):
        name = f"admin:{model._meta.app_label}_{model._meta.model_name}"
        found += [(f"{model._meta.label} list", reverse(f"{name}_changelist"))]
        if admin.site._registry[model].search_fields:
            found += [(f"{model._meta.label} search", f"{reverse(f'{name}_changelist')}?q=tenant-77")]
        found += [(f"{model._meta.label} add", reverse(f"{name}_add"))]
        row = model._base_manager.order_by("pk").last()
        if row is not None:
            found += [(f"{model._meta.label} page", reverse(f"{name}_change", args=[row.pk]))]
    last = UsageRecord.objects.order_by("day", "request").last()
    used = reverse("admin:billing_usagerecord_changelist")
    given = [
        f"q={last.request}", f"q={last.tenant}", "q=nobody", "model=model-7", "waived__exact=1", "exact__exact=0",
        "waived__exact=1&model=model-7", f"day__gte={last.day}", "p=50",
    ]  # fmt: skip
    found += [(f"usage ?{query}", f"{used}?{query}") for query in given]
    wallet = Wallet.objects.get(tenant=last.tenant)
    ledger = reverse("admin:billing_ledgertransfer_changelist")
    found += [(f"ledger ?{query}", f"{ledger}?{query}") for query in ("code__exact=2", "code__exact=5", "q=Tenant 77")]
    choices = f"{reverse('admin:autocomplete')}?app_label=billing&model_name=creditgrant&field_name=wallet"
    found += [
        ("grants ?kind=paid", f"{reverse('admin:billing_creditgrant_changelist')}?kind__exact=paid"),
        ("wallets ?state=frozen", f"{reverse('admin:billing_wallet_changelist')}?state__exact=frozen"),
        ("adjust a wallet", f"{reverse('admin:billing_ledgertransfer_add')}?wallet={wallet.pk}"),
        ("grant to a wallet", f"{reverse('admin:billing_creditgrant_add')}?wallet={wallet.pk}"),
        ("new key of a tenant", f"{reverse('admin:gateway_apikey_add')}?tenant={last.tenant}"),
        ("choices of wallets", f"{choices}&term=tenant-77"),
    ]
    found += operators(Tenant.objects.get(pk=last.tenant))
    newest = Tenant.objects.order_by("pk").first()  # the operator's own
    request = UsageRecord.objects.filter(tenant=newest.pk).values_list("request", flat=True).order_by("day").last()
    found += [
        ("a tenant's home", reverse("console-home")),
        ("a tenant's usage", reverse("console-usage")),
        ("a tenant's usage by key, a year", reverse("console-usage") + "?days=365&group=key"),
        ("a tenant's usage by hour", reverse("console-usage") + "?days=1&measure=refused&group=project"),
        ("a tenant's usage as CSV", reverse("console-usage-export") + "?days=90"),
        *((f"a tenant's {page}", reverse(f"console-{page}")) for page in TENANT_PAGES),
        ("a person's account", reverse("account_profile")),
        ("a tenant's request", reverse("console-request", args=[request])),
    ]
    key = UsageRecord.objects.filter(tenant=newest.pk).values_list("api_key", flat=True).first()
    ids = UsageRecord.objects.order_by("day", "request").values_list("request", flat=True)
    middle = ids[ids.count() // 2]
    long = [f"hours=2160&{query}" for query in ("", "end=nothing", "state=refused&end=nothing", "exact=no")]
    of_all = ["", "hours=24", "tenant=tenant-77", *long]
    of_all += [f"hours=2160&{query}" for query in ("model=model-7", "least=60", f"before={middle}", f"after={middle}")]
    for side, given in (("console", ["", f"key={key}", *long]), ("operate", of_all)):
        page = reverse(f"{side}-requests")
        found += [(f"{side} requests ?{query}", f"{page}?{query}") for query in given]
    kept = RefusedRequest.objects.unscoped().order_by("id").last()
    found += [
        ("operator's request", reverse("operate-request", args=[last.request])),
        ("operator's refused request", reverse("operate-request", args=[kept.id])),
    ]
    return found + operator_pages()


def operator_pages() -> list[tuple[str, str, dict[str, str]]]:
    """Return those at /operate/, a form that is sent among them."""
    from django.urls import reverse

    from routing.models import PublicModel, RouteRule

    model, rule = PublicModel.objects.get(name="model-7"), RouteRule.objects.get(name="general")
    prices = {"input": "12", "output": "40"}
    of_model = [("", "a model"), ("-edit", "change a model"), ("-withdraw", "withdraw a model")]
    of_model += [(f"-{step}", f"a model's {step}") for step in ("proof", "price", "plans", "rules", "live")]
    addressed = [
        ("models", reverse("operate-models"), {}),
        ("models search", f"{reverse('operate-models')}?q=model-1", {}),
        *((title, reverse(f"operate-model{name}", args=[model.pk]), {}) for name, title in of_model),
        ("prices", reverse("operate-prices"), {}),
        ("a price list", reverse("operate-price", args=["model-7"]), {}),
        ("prices compared", reverse("operate-price-new", args=["model-7"]), prices),
        ("prices compared, last month", reverse("operate-price-new", args=["model-7"]), {**prices, "usage": "1"}),
        ("plans", f"{reverse('operate-plans')}?a=free&b=business", {}),
        ("a plan", reverse("operate-plan", args=["business"]), {}),
        ("terms of a plan", reverse("operate-plan-publish", args=["business"]), {}),
        ("move a plan's tenants", reverse("operate-plan-move", args=["business"]), {}),
        ("routing", reverse("operate-routing"), {}),
        ("a rule", reverse("operate-rule", args=[rule.pk]), {}),
    ]
    return [(f"operate: {name}", address, form) for name, address, form in addressed]


def operators(tenant) -> list[tuple[str, str]]:
    """Return the operator's pages at /operate/."""
    from django.urls import reverse

    from tenancy.models import User

    tabs = ("people", "keys", "projects", "wallet", "limits", "audit", "grant", "suspend")
    found = [
        ("operate tenants", reverse("operate-tenants")),
        ("operate tenants, found", f"{reverse('operate-tenants')}?q=tenant-77&plan=none"),
        ("operate tenants, last page", f"{reverse('operate-tenants')}?after=tenant-9979"),
        ("operate tenants as CSV", reverse("operate-tenants-csv")),
        ("operate tenant", reverse("operate-tenant", args=[tenant.slug])),
        *((f"operate tenant, {tab}", reverse(f"operate-tenant-{tab}", args=[tenant.slug])) for tab in tabs),
        ("operate people", reverse("operate-people")),
        ("operate person", reverse("operate-person", args=[User.objects.first().pk])),
    ]
    trail = reverse("operate-audit")
    asked = ("", "?who=boss", "?action=keys", "?action=credit", "?object=4711", "?from=2026-11-01&to=2026-11-02")
    return found + [(f"operate audit {query}", trail + query) for query in asked]


def processor_ms(folder: Path) -> tuple[float, float]:
    """Return the processor time of this process and of the server's that serve it."""
    served = 0.0
    postmaster = (folder / "data" / "postmaster.pid").read_text().split()[0]
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            if status.read_text().rpartition(")")[2].split()[1] == postmaster:
                served += int((status.parent / "schedstat").read_text().split()[0])
        except (FileNotFoundError, ProcessLookupError):
            continue
    return 1000 * time.process_time(), served / 1e6


def measured(folder: Path, times: int, only: str, *, is_slowest: bool) -> None:
    """Ask for each page and print the table."""
    from django.conf import settings
    from django.db import connection
    from django.test import Client
    from django.test.utils import CaptureQueriesContext

    from tenancy.models import Membership, Tenant, User

    settings.ALLOWED_HOSTS = ["testserver"]
    operator = User.objects.create_superuser("root@example.com")
    newest = Tenant.objects.order_by("pk").first()
    Membership(tenant=newest, user=operator, role="owner").save(force_insert=True)
    client = Client()
    client.force_login(operator, backend="django.contrib.auth.backends.ModelBackend")
    client.get("/")
    print("| page | ms | ours, ms | server, ms | queries | kB | |\n|---|---|---|---|---|---|---|")
    for name, address, *form in pages():
        if not re.search(only, name):
            continue
        best, ours, theirs, slowest = float("inf"), float("inf"), float("inf"), ""
        for _ in range(times):
            with CaptureQueriesContext(connection) as queries:
                before, started = processor_ms(folder), time.perf_counter()
                answer = client.post(address, form[0]) if any(form) else client.get(address)
                best = min(best, 1000 * (time.perf_counter() - started))
                after = processor_ms(folder)
                ours, theirs = min(ours, after[0] - before[0]), min(theirs, after[1] - before[1])
            if is_slowest:
                worst = max(queries, key=lambda one: float(one["time"]), default=None)
                slowest = f"{1000 * float(worst['time']):.0f} ms: {worst['sql'][:1500]}" if worst else ""
        told = "" if answer.status_code == 200 else f"status {answer.status_code} "
        size = len(answer.content) / 1000
        is_own = not address.startswith("/admin/")  # Django's pages are as large as they are
        limits = (len(queries) > AIM_QUERIES, size > AIM_KB and "CSV" not in name) if is_own else ()
        if any((ours + theirs > AIM_MS, *limits)):
            told += "beyond the aim"
        spent = f"{best:.0f} | {ours:.0f} | {theirs:.0f}"
        print(f"| {name} | {spent} | {len(queries)} | {size:.0f} | {told} {slowest}|", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--tenants", type=int, default=10_000)
    parser.add_argument("--times", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--slowest", action="store_true")
    options = parser.parse_args()
    from tests.services.postgres import PostgresServer

    home, server = tempfile.mkdtemp(prefix="sluice-bench-"), PostgresServer.start("shared_buffers=512MB")
    os.environ |= {"SLUICE_HOME": home, "SLUICE_ENV": "test", "DATABASE_URL": server.url}
    os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
    try:
        import django
        from django.core.management import call_command

        django.setup()
        call_command("migrate", verbosity=0)
        started = time.perf_counter()
        filled(options.records, options.tenants)
        print(f"{options.records:,} records of {options.tenants:,} tenants in {time.perf_counter() - started:.0f} s\n")
        measured(server.folder, options.times, options.only, is_slowest=options.slowest)
    finally:
        server.stop()
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
