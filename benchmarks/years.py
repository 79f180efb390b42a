"""What history costs: the checks of the books, whole and hourly, and a month that goes into the archive.

    python benchmarks/years.py [REQUESTS] [--tenants 100] [--new 2000]

On a PostgreSQL server of its own: so many requests of three months that are over, a charge for each, sealed; then that
many `new` ones. Seconds of CPU are this process's and the server's together, beside those of 2·10⁷ additions, which a
machine at normal speed does in one second.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "benchmarks"))

_REQUESTS = """
    CREATE TEMPORARY TABLE made AS
    SELECT moment, w.id AS wallet, w.tenant_id AS tenant, a.id AS account, g.id AS source,
        (lpad(to_hex((extract(epoch FROM moment) * 1000)::bigint), 12, '0') || '7' || substr(md5(random()::text), 1, 3)
            || '8' || substr(md5(random()::text), 1, 15))::uuid AS id
    FROM (SELECT n, timestamptz '{begin}' + n * interval '{span} seconds' / {count} AS moment,
            n % (SELECT count(*) FROM billing_wallet) AS place FROM generate_series(0, {count} - 1) AS n) AS numbers
    JOIN (SELECT *, row_number() OVER (ORDER BY id) - 1 AS place FROM billing_wallet) AS w USING (place)
    JOIN billing_ledgeraccount a ON a.wallet_id = w.id JOIN billing_creditgrant g ON g.wallet_id = w.id;
    INSERT INTO billing_usagerecord (id, day, request, revision, tenant, project, api_key, wallet, end_user, model,
        deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
        cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula, charge, held,
        exact, waived, finish,
        reserved_at, settled_at)
    SELECT id, (moment AT TIME ZONE 'UTC')::date, id, 0, tenant, tenant, tenant, wallet, '', 'model', tenant,
        'chat.completions', 'chat', '{{"reason": "default"}}', 100, 0, 0, 0, 50, 0, '{card}', 10000, 1, {charge}, 500,
        true, false, 'stop', moment, moment FROM made;
    INSERT INTO billing_ledgertransfer (debit_id, credit_id, amount, code, request, "order", grant_id, booked_at,
        effective_at, actor, reason)
    SELECT account, (SELECT id FROM billing_ledgeraccount WHERE kind = 'usage'), {charge}, 2, id, 0, source, moment,
        moment, '', '' FROM made ORDER BY moment;
    INSERT INTO billing_usagerollup AS present (id, hour, tenant, project, api_key, model, requests, input_tokens,
        cache_read_tokens, output_tokens, charge)
    SELECT gen_random_uuid(), date_trunc('hour', moment), tenant, tenant, tenant, 'model', count(*), 100 * count(*), 0,
        50 * count(*), {charge} * count(*) FROM made GROUP BY 2, 3
    ON CONFLICT (hour, tenant, project, api_key, model) WHERE api_key IS NOT NULL DO UPDATE SET
        requests = present.requests + excluded.requests, input_tokens = present.input_tokens + excluded.input_tokens,
        output_tokens = present.output_tokens + excluded.output_tokens, charge = present.charge + excluded.charge;
    INSERT INTO billing_usageday AS present (day, model, requests, input_tokens, cache_read_tokens, output_tokens,
        charge)
    SELECT (moment AT TIME ZONE 'UTC')::date, 'model', count(*), 100 * count(*), 0, 50 * count(*), {charge} * count(*)
    FROM made GROUP BY 1 ON CONFLICT (day, model) DO UPDATE SET
        requests = present.requests + excluded.requests, input_tokens = present.input_tokens + excluded.input_tokens,
        output_tokens = present.output_tokens + excluded.output_tokens, charge = present.charge + excluded.charge;
    UPDATE billing_wallet w SET posted = posted - {charge} * (SELECT count(*) FROM made WHERE wallet = w.id);
    UPDATE billing_creditgrant g SET remaining = remaining - {charge} * (SELECT count(*) FROM made WHERE source = g.id);
    DROP TABLE made;
"""


def server_cpu(postmaster: int) -> float:
    """Return the seconds of CPU of the server's processes."""
    total = 0
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError, ValueError):
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            if postmaster in (parent, int(entry.name)):
                total += int((entry / "schedstat").read_text().split()[0])
    return total / 1e9


def measure(requests: int, tenants: int, new: int) -> None:
    """Measure the database that the environment names."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connection
    from django.utils import timezone

    from benchmarks.statements import additions
    from billing import reconcile
    from billing.models import ArchivedFile, LedgerTransfer, UsageRecord, Wallet
    from billing.rating import CardPrices, charge
    from billing.services import archive, cards
    from billing.services.reconciliation import reconcile_if_due
    from billing.statements import months
    from tests.billing.writer.world import make_wallet

    postmaster = int(os.environ["POSTMASTER"])
    call_command("migrate", verbosity=0)
    for _ in range(tenants):
        make_wallet(credit=10**12)
    version = cards.publish("card", {0: {"input": 3_000_000, "output": 12_000_000}})
    card = CardPrices.build(version.pk, 0, version.rates.values_list("tier_min_context", "usage_class", "rate"), 5_000)
    price = charge({"input": 100, "output": 50}, card, 10_000)
    first = (timezone.now().replace(day=1) - timedelta(days=75)).replace(
        day=1, hour=0, minute=0, second=0, microsecond=0
    )
    end = timezone.now().replace(day=1, hour=0, minute=0, second=0, microsecond=0)

    def book(count: int, begin: object, span: float) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SET session_replication_role = replica")
            cursor.execute(_REQUESTS.format(begin=begin, span=span, count=count, card=card.id, charge=price))
            cursor.execute("SET session_replication_role = DEFAULT")
            cursor.execute("ANALYZE")

    def timed(name: str, work: Callable[[], object]) -> None:
        before = time.process_time(), time.perf_counter(), server_cpu(postmaster)
        said = work()
        own, wall, server = (
            now - then
            for now, then in zip(
                (time.process_time(), time.perf_counter(), server_cpu(postmaster)), before, strict=True
            )
        )
        print(f"| {name} | {own + server:.1f} ({own:.1f} + {server:.1f}) | {wall:.1f} | {said} |", flush=True)

    def checked(**options: bool) -> str:
        run = reconcile_if_due(timedelta(0), **options)
        assert run is not None, "nothing else checks"
        assert not run.found, run.findings[:3]
        return f"{run.rows:,} reads, {run.found} findings"

    def sealed() -> str:
        for wallet in Wallet.objects.values_list("pk", flat=True):
            for _ in range(4):  # a month of days each time
                months.turn(wallet)
        return f"{tenants} tenants"

    print(f"{requests:,} requests of {tenants} tenants; 2·10⁷ additions: {additions():.2f} s")
    print("| what | CPU s (own + server's) | wall s | |\n|---|---|---|---|")
    # the grants' transfers are of now: none of the months has them
    timed("made", lambda: book(requests, first, (end - first).total_seconds()))
    timed("sealed, statements made", sealed)
    timed("whole check", lambda: checked(whole=True))
    timed("hourly check, nothing new", checked)
    book(new, timezone.now() - timedelta(minutes=10), 540)
    timed(f"hourly check, {new:,} new", checked)
    month = first.date()
    timed("archive: written, verified", lambda: f"{archive.write(month).files.count()} files")
    rows = UsageRecord.objects.count() + LedgerTransfer.objects.count()
    made = archive.write(month)
    timed("archive: dropped", lambda: f"{archive.drop(made):,} requests")
    left = UsageRecord.objects.count() + LedgerTransfer.objects.count()
    size = sum(ArchivedFile.objects.values_list("size", flat=True))
    print(f"rows before {rows:,}, after {left:,}; the files have {size / 1e6:.1f} MB")
    timed("whole check after it", lambda: checked(whole=True))
    timed("hourly check after it", checked)
    print(f"{reconcile.SETTLED} must have passed before a row is noted")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("requests", nargs="?", type=int, default=200_000)
    parser.add_argument("--tenants", type=int, default=100)
    parser.add_argument("--new", type=int, default=2_000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        measure(options.requests, options.tenants, options.new)
        return
    from tests.services.postgres import PostgresServer

    home = tempfile.mkdtemp(prefix="sluice-bench-")
    server = PostgresServer.start("fsync=on")
    try:
        postmaster = (server.folder / "data" / "postmaster.pid").read_text().split()[0]
        url = f"postgresql://sluice@:{server.port}/{server.folder}/sluice"  # through the Unix socket
        given = {"SLUICE_HOME": home, "SLUICE_ENV": "test", "DATABASE_URL": url, "POSTMASTER": postmaster}
        subprocess.run([sys.executable, __file__, "--child", *sys.argv[1:]], env={**os.environ, **given}, check=True)
    finally:
        server.stop()
        shutil.rmtree(home)


if __name__ == "__main__":
    main()
