"""Reserve and settle without end on one wallet, and say which settles were acknowledged: to be killed.

Arguments: the database configuration and (tenant, wallet) as JSON. Prints one request id per line.
"""

from __future__ import annotations

import asyncio
import json
import sys
import uuid

from base.ids import uuid7
from billing.writer import open_writer
from billing.writer.operations import Held, Reserve, Settle, Settled

CALLERS = 16


async def call(writer, tenant, wallet):
    while True:
        made = Reserve(
            request=uuid7(), wallet=wallet, amount=5, least=1, owner=tenant, deployment=tenant, card_version=tenant,
            tenant=tenant, project=tenant, api_key=None, model="m",
        )  # fmt: skip
        assert isinstance(await writer.submit(made), Held)
        assert isinstance(await writer.submit(Settle(made.request, wallet, 3, {"input": 3})), Settled)
        print(made.request, flush=True)


def set_limits(driver):
    """Let the driver wait: the test's machine may be busy."""
    if hasattr(driver, "answer_timeout"):
        driver.answer_timeout = 30  # PostgreSQL's other limits follow it
    else:
        driver.max_age = driver.reserve_timeout = 30


async def main():
    settings, (tenant, wallet) = map(json.loads, sys.argv[1:])
    writer = open_writer(settings)
    set_limits(writer._driver)
    await asyncio.gather(*(call(writer, uuid.UUID(tenant), uuid.UUID(wallet)) for _ in range(CALLERS)))


if __name__ == "__main__":
    asyncio.run(main())
