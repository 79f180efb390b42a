"""What re-rating of many requests takes, killed again and again: time, memory, and whether the what-if was right.

    python benchmarks/reratings.py [--records 1000000] [--kills 20]

Ten tenants' records of thirty days, each with its transfer, are put by SQL into a PostgreSQL server of its own. A
what-if by another version of the price list runs to its end; then it is carried out by processes that are killed
(SIGKILL) at random moments, `--kills` times, and one that isn't. Seconds are those of all these processes, memory the
most that the last one had.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

TENANTS, DAYS = 10, 30
TOKENS = {"input": 1_000, "output": 200}
BEFORE, AFTER = ({"input": 3_000_000, "output": 12_000_000}, {"input": 2_000_000, "output": 13_000_000})


def fill(records: int) -> None:
    """Make tenants, a price list of two versions and the records."""
    from datetime import timedelta

    from django.core.management import call_command
    from django.db import connection
    from django.utils import timezone

    from base.database.connections import limit_migration
    from benchmarks.pages import MADE
    from billing import rating
    from billing.models import CreditGrant, LedgerAccount, Wallet
    from billing.models.cards import prices_of
    from billing.services import cards, reratings
    from tests.billing.writer.world import make_wallet

    call_command("migrate", verbosity=0)
    limit_migration()
    before = cards.publish("before", {0: BEFORE})
    after = cards.publish("after", {0: AFTER})
    charge = rating.charge(TOKENS, prices_of([before.pk])[before.pk], 10_000)
    wallets = [make_wallet(10**15) for _ in range(TENANTS)]
    usage = LedgerAccount.objects.get(kind="usage").pk
    last = timezone.now() - timedelta(hours=1)
    at = f"('{last.isoformat()}'::timestamptz - (n * {DAYS * 86400 / records}) * interval '1 second')"
    with connection.cursor() as cursor:
        cursor.execute(f"SET session_replication_role = replica; {MADE}")
        for number, wallet in enumerate(wallets):
            account = LedgerAccount.objects.get(wallet=wallet).pk
            grant = CreditGrant.objects.get(wallet=wallet).pk
            some = f"generate_series({number}, {records - 1}, {TENANTS}) AS n"
            cursor.execute(
                f"""INSERT INTO billing_usagerecord (id, request, day, revision, tenant, project, wallet, model,
                    deployment, endpoint, task, route, input_tokens, cache_read_tokens, cache_write_short_tokens,
                    cache_write_long_tokens, output_tokens, reasoning_tokens, card_version, multiplier_bp, formula,
                    charge, held, exact, waived, finish, end_user, reserved_at, settled_at)
                SELECT made({at}, n), made({at}, n), ({at} AT TIME ZONE 'UTC')::date, 0, %s, %s, %s, 'm',
                    %s, '', '', '{{}}', {TOKENS["input"]}, 0, 0, 0, {TOKENS["output"]}, 0, %s, 10000, 1,
                    {charge}, {charge}, true, false, 'stop', '', {at}, {at} FROM {some}""",
                [wallet.tenant_id, wallet.tenant_id, wallet.pk, wallet.tenant_id, before.pk],
            )
            cursor.execute(
                f"""INSERT INTO billing_ledgertransfer (debit_id, credit_id, amount, code, request, "order", grant_id,
                    booked_at, effective_at, actor, reason)
                SELECT %s, %s, {charge}, 2, made({at}, n), 0, %s, {at}, {at}, '', '' FROM {some}""",
                [account, usage, grant],
            )
            spent = charge * len(range(number, records, TENANTS))
            Wallet.objects.filter(pk=wallet.pk).update(posted=10**15 - spent)
            CreditGrant.objects.filter(pk=grant).update(remaining=10**15 - spent)
        cursor.execute("SET lock_timeout = 0; ANALYZE")
    since = timezone.now() - timedelta(days=DAYS + 1)
    run = reratings.ask(reratings.Terms(since=since, version=after, models=("m",)), asked_by="benchmark")
    print(json.dumps({"run": str(run.pk)}))


def carry_out() -> None:
    """Begin for real what the what-if said."""
    from billing.models import Rerating
    from billing.services import reratings

    run = reratings.carry_out(Rerating.objects.get(), asked_by="benchmark", reason="measured")
    print(json.dumps({"run": str(run.pk)}))


def work(run: str) -> None:
    """Do the run's chunks until it has ended."""
    import resource

    from billing.models import Rerating
    from billing.services import reratings

    mine = Rerating.objects.get(pk=run)
    while mine.ended_at is None and reratings.step(mine):
        pass
    print(json.dumps({"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10}))


def check() -> None:
    """Say what both runs came to, and what contradicts; the sums of hours were never made."""
    from django.db import connection

    from billing import reconcile
    from billing.models import Rerating

    runs = Rerating.objects.order_by("created_at")
    told = [[one.counted, one.changed, one.before, one.after] for one in runs]
    findings = [one.check for one in reconcile.check(connection) if not one.check.startswith("rollup")]
    print(json.dumps({"told": told, "findings": findings[:5]}))


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, __file__, "--child", *arguments], stdout=subprocess.PIPE, text=True)


def done(*arguments: str) -> tuple[dict[str, object], float]:
    """Return what a child printed, and the seconds that it took."""
    began = time.perf_counter()
    ran = child(*arguments)
    told, _ = ran.communicate()
    assert ran.returncode == 0, arguments
    return json.loads(told.splitlines()[-1]), time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        import django

        django.setup()
        {"fill": lambda: fill(int(options.child[1])), "carry_out": carry_out, "work": lambda: work(options.child[1]),
         "check": check}[options.child[0]]()  # fmt: skip
        return
    from tests.services.postgres import PostgresServer

    home, server = tempfile.mkdtemp(prefix="sluice-bench-"), PostgresServer.start("shared_buffers=512MB")
    os.environ |= {"SLUICE_HOME": home, "SLUICE_ENV": "test", "DATABASE_URL": server.url}
    os.environ["DJANGO_SETTINGS_MODULE"] = "gateway.settings"
    try:
        measured(options.records, options.kills)
    finally:
        server.stop()
        shutil.rmtree(home)


def measured(records: int, kills: int) -> None:
    dice = random.Random(1)
    what_if, seconds = done("fill", str(records))
    print(f"{records:,} records in {seconds:.0f} s", flush=True)
    told, seconds = done("work", str(what_if["run"]))
    print(f"what-if: {seconds:.1f} s, {told['memory']} MiB", flush=True)
    run = str(done("carry_out")[0]["run"])
    began, killed = time.perf_counter(), 0
    while killed < kills:
        doomed = child("work", run)
        try:
            doomed.wait(dice.uniform(3, 3 + seconds / 4))
            break  # it had ended
        except subprocess.TimeoutExpired:
            doomed.send_signal(signal.SIGKILL)
            doomed.wait()
            killed += 1
    told, last = done("work", run)
    together = time.perf_counter() - began
    print(
        f"for real: {together:.1f} s with {killed} kills, {last:.1f} s of them the last process, {told['memory']} MiB"
    )
    found, _ = done("check")
    print(
        f"what-if = real: {found['told'][0] == found['told'][1]}; counted, changed, before, after: {found['told'][1]}"
    )
    print(f"reconciliation: {found['findings'] or 'nothing'}")


if __name__ == "__main__":
    main()
