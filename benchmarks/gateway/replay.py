"""One answer for many clients and over cut connections, at two real gateways with PostgreSQL and Redis.

    python benchmarks/gateway/replay.py [--clients 50] [--cuts 10] [--kill]

First the race with the guard off: as many clients send one request without a key, and each is charged. Then with one
Idempotency-Key, half of them at each gateway: one generation, one charge, equal answers. Then a stream is cut after a
few events, again and again, and resumed at the other gateway with Last-Event-ID: its text is whole, charged once. With
`--kill` the gateway that makes an answer is killed, and the client asks the other one until it has the answer, which
takes as long as the lost one's lease (30 s). What was charged is read from the usage records.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import aiohttp
from run import books, home, server

RETRY_SECONDS = 1.0


class Clients:
    """Clients of both gateways, with the key of one tenant."""

    def __init__(self, session: aiohttp.ClientSession, gateways) -> None:
        self._session = session
        self._urls = [f"http://127.0.0.1:{gateway.port}/v1/chat/completions" for gateway in gateways]
        self._secret = gateways[0].keys[0]

    def ask(self, number: int, model: str, *, key: str | None, stream: bool = False, after: int | None = None):
        """Ask the gateway whose turn `number` is."""
        headers = {"authorization": f"Bearer {self._secret}"}
        headers |= {"idempotency-key": key} if key else {}
        headers |= {"last-event-id": str(after)} if after is not None else {}
        body = {"model": model, "stream": stream, "messages": [{"role": "user", "content": "How long is a river?"}]}
        return self._session.post(self._urls[number % len(self._urls)], json=body, headers=headers)

    async def whole(self, number: int, model: str, key: str | None, *, stream: bool = False) -> tuple[int, bytes]:
        """Return status and body of an answer."""
        async with self.ask(number, model, key=key, stream=stream) as answer:
            return answer.status, await answer.read()

    async def cut_stream(self, key: str, cuts: int) -> tuple[bytes, int]:
        """Read a stream, closing the connection `cuts` times after some events; return all that came, and the cuts."""
        text, after, number = b"", None, 0
        while True:
            async with self.ask(number, "paced", key=key, stream=True, after=after) as answer:
                answer.raise_for_status()
                seen = 0
                async for event in events(answer):
                    text += event
                    after, seen = int(event[4 : event.index(b"\n")]), seen + 1
                    if event.endswith(b"[DONE]\n\n"):
                        return text, number
                    if number < cuts and seen == 3:
                        break
                else:
                    raise RuntimeError(f"the stream ended behind event {after} without its mark")
                number += 1


async def events(answer: aiohttp.ClientResponse):
    """Yield the server-sent events that have numbers."""
    rest = b""
    async for data in answer.content.iter_any():
        *whole, rest = (rest + data).split(b"\n\n")
        for event in whole:
            if event.startswith(b"id: "):
                yield event + b"\n\n"


async def outlived(clients: Clients, victim: int) -> tuple[bytes, float]:
    """Kill the gateway that makes an answer, and ask the other one until it has it."""
    asked = asyncio.ensure_future(clients.whole(0, "paced", "killed"))
    await asyncio.sleep(0.5)  # it is in the midst of 64 tokens
    os.kill(victim, signal.SIGKILL)
    await asyncio.gather(asked, return_exceptions=True)
    since = time.monotonic()
    while True:
        status, body = await clients.whole(1, "paced", "killed")
        if status == 200:
            return body, time.monotonic() - since
        await asyncio.sleep(RETRY_SECONDS)


def main() -> None:
    from tests.services.redis import RedisServer

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--cuts", type=int, default=10)
    parser.add_argument("--kill", action="store_true")
    options = parser.parse_args()
    rows: list[tuple[str, object, object, object]] = []
    with ExitStack() as stack:
        redis = RedisServer.start()
        stack.callback(redis.stop)
        environment, keys = stack.enter_context(home("postgresql"))
        environment = {**environment, "REDIS_URL": redis.url}
        more = {"keys": keys, "environment": environment, "ready": "/readyz"}
        gateways = []
        for number in (1, 2):
            log = Path(environment["SLUICE_HOME"], f"gateway-{number}.log")
            gateways.append(stack.enter_context(server(f"gateway {number}", ["manage.py", "gateway"], log=log, **more)))
        charged: Counter[str] = Counter()
        price: dict[str, float] = {}  # µcr of one answer of a model, all of which are equal

        def charges(model: str, *, of: int = 0) -> str:
            """How many answers of the model were charged since the last look; the first are `of` so many requests."""
            while (audit := books("audit", environment))["holds"]:  # the lost gateway's are the sweep's
                time.sleep(RETRY_SECONDS)
            now = audit["records"][model]["charge"]
            new = now - charged[model]
            charged[model] = now
            price.setdefault(model, new / max(of, 1))
            return f"{new / price[model]:g}"

        async def shown() -> None:
            async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
                clients = Clients(session, gateways)
                for name, key in (("without a key", None), ("with one key", "fifty")):
                    for model, stream in (("whole", False), ("paced", True)):
                        key_of_kind = key and f"{key}-{model}"
                        found = await asyncio.gather(
                            *(clients.whole(one, model, key_of_kind, stream=stream) for one in range(options.clients))
                        )
                        statuses = {status for status, _ in found}
                        if statuses != {200}:
                            raise RuntimeError(f"{name}, {model}: answered with {statuses}")
                        kind = "streams" if stream else "JSON"
                        rows.append(
                            (
                                f"{options.clients} clients {name}, {kind}",
                                len({body for _, body in found}),
                                charges(model, of=options.clients),
                                "",
                            )
                        )
                text, cuts = await clients.cut_stream("cut", options.cuts)
                _, again = await clients.whole(0, "paced", "cut", stream=True)
                rows.append(
                    (f"a stream cut {cuts} times", 1, charges("paced"), "whole" if text == again else "NOT WHOLE")
                )
                if options.kill:
                    body, seconds = await outlived(clients, gateways[0].pid)
                    _, again = await clients.whole(1, "paced", "killed")
                    told = f"after {seconds:.0f} s" if body == again else "NOT EQUAL"
                    rows.append(("its gateway killed", 1, charges("paced"), told))

        asyncio.run(shown())
    print("| asked | different answers | charged | |\n|---|---|---|---|")
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")


if __name__ == "__main__":
    main()
