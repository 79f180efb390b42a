"""``manage.py sweep``: close the orphaned holds of gateways that have ended, once."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from django.core.management.base import BaseCommand

from base.database.threads import DatabaseThreads
from billing.writer.apply import apply_now
from billing.writer.operations import Answer, Release, Settle, TrueUp
from gateway.generation.sweep import Sweep
from gateway.runtime.engines import Engines
from gateway.runtime.metrics import Metrics
from routing import catalogue

CONNECT_SECONDS = 5.0


class Command(BaseCommand):
    """Runs one turn of the sweep beside whatever else runs: the writer's compare-and-set decides who closes a hold."""

    help = "Close holds whose lease is over by what their engines know."

    def handle(self, *args: Any, **options: Any) -> None:
        found = asyncio.run(_sweep())
        for how in ("settled", "released", "waived", "estimated", "corrected", "waiting", "closed_by_another"):
            self.stdout.write(f"{how.replace('_', ' ')}: {found[how]}")


async def _sweep() -> Counter[str]:
    threads = DatabaseThreads(1)
    engines = Engines(Metrics())

    async def submit(operation: Settle | Release | TrueUp) -> Answer:
        [answer] = await threads.run(lambda: apply_now([operation]))
        return answer

    try:
        entries = (await threads.run(catalogue.load)).all_deployments()
        engines.follow(entries)
        await engines.connected(CONNECT_SECONDS)
        return await Sweep(engines_of=engines.of, submit=submit, threads=threads).turn()
    finally:
        await engines.close()
        threads.close()
