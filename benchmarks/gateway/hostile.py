"""What a client's requests take while others, without a key, try to stop the gateway.

    python benchmarks/gateway/hostile.py [--seconds 5] [--repeats 3] [--only TEXT]

One gateway process on SQLite over the fake engine, set up as in run.py. Four connections of a paying client ask for
whole answers in a closed loop, alone and then beside each attack, in turns; attackers run in a process of their own,
with the lowest priority, on the client's core. An attack is renewed as soon as the gateway ends it.
"""

from __future__ import annotations

import argparse
import multiprocessing
import multiprocessing.connection
import os
import selectors
import socket
import statistics
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

import uvloop
from client import CLIENT_CORE, Cell, Load, Seen
from run import gateway, percentile

STREAMS = 4
HALF_OPEN = 200
GIGABYTE = 1 << 30
WARM = 0.5


def half_open(port: int, seen: Counter[str]) -> None:
    """Two hundred sockets with half a head each, a byte more now and then; renewed when they are closed."""
    waiting = selectors.DefaultSelector()

    def renew() -> None:
        connection = socket.create_connection(("127.0.0.1", port))
        connection.send(b"POST /v1/chat/completions HTTP/1.1\r\nx: ")
        waiting.register(connection, selectors.EVENT_READ)

    for _ in range(HALF_OPEN):
        renew()
    while True:
        for key, _ in waiting.select(0.5):
            waiting.unregister(key.fileobj)
            seen[ended(key.fileobj)] += 1
            renew()
        for key in list(waiting.get_map().values()):
            with suppress(OSError):
                key.fileobj.send(b"x")


def endless_head(port: int, seen: Counter[str]) -> None:
    """One header without an end, as fast as the gateway takes it."""
    while True:
        flood(port, b"GET / HTTP/1.1\r\nx: ", b"x" * 65536, seen)


def upload(port: int, seen: Counter[str]) -> None:
    """A gigabyte in chunks for a page of the control plane, which reads bodies before it asks who sends them."""
    head = b"POST /accounts/login/ HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\n\r\n"
    while True:
        flood(port, head, b"10000\r\n" + b"x" * 65536 + b"\r\n", seen)


def flood(port: int, head: bytes, piece: bytes, seen: Counter[str]) -> None:
    """Send `head` and a gigabyte of `piece`, or what of it the gateway takes."""
    sent = 0
    with socket.create_connection(("127.0.0.1", port)) as connection:
        with suppress(OSError):
            connection.settimeout(5)
            connection.sendall(head)
            while sent < GIGABYTE:
                sent += connection.send(piece)
        seen[ended(connection)] += 1
        seen["MiB taken"] += sent >> 20


def docs(port: int, seen: Counter[str]) -> None:
    """Six connections that read the API's page as fast as it comes."""

    def read() -> None:
        while True:
            with socket.create_connection(("127.0.0.1", port)) as connection, suppress(OSError):
                connection.sendall(b"GET /docs/api/responses/ HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\r\n")
                seen[ended(connection)] += 1
                while connection.recv(65536):
                    pass

    for _ in range(6):
        threading.Thread(target=read, daemon=True).start()
    threading.Event().wait()


def ended(connection: socket.socket) -> str:
    """The status with which the gateway answered, or how the connection ended."""
    try:
        connection.settimeout(5)
        return connection.recv(65536)[9:12].decode() or "closed"
    except OSError as error:
        return type(error).__name__


def all_three(port: int, seen: Counter[str]) -> None:
    """The first three attacks at once."""
    for attack in (half_open, endless_head, upload):
        threading.Thread(target=attack, args=(port, seen), daemon=True).start()
    threading.Event().wait()


ATTACKS: dict[str, Callable[[int, Counter[str]], None]] = {
    f"{HALF_OPEN} half-open sockets": half_open,
    "an endless head": endless_head,
    "uploads of 1 GiB without a key": upload,
    "all three": all_three,
    "six readers of /docs/api/responses/": docs,
}


def attacker(name: str, port: int, pipe: multiprocessing.connection.Connection) -> None:
    """Attack until told to stop, then say what was seen."""
    os.nice(19)
    seen: Counter[str] = Counter()
    threading.Thread(target=ATTACKS[name], args=(port, seen), daemon=True).start()
    pipe.recv()
    pipe.send(seen)
    os._exit(0)


def beside(name: str, target, cell: Cell) -> tuple[Seen, Counter[str]]:
    """Run the client beside an attack; return what both saw."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=attacker, args=(name, target.port, theirs), daemon=True)
    process.start()
    time.sleep(0.5)
    seen = uvloop.run(Load(target, cell).run(WARM))
    ours.send("stop")
    told = ours.recv()
    process.join()
    return seen, told


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="only the attacks whose names contain this")
    options = parser.parse_args()
    os.sched_setaffinity(0, {CLIENT_CORE})
    cell = Cell("JSON", "whole", STREAMS, options.seconds)
    runs: dict[str, list[Seen]] = {}
    told: dict[str, Counter[str]] = {}
    with gateway("sqlite") as (target, _):
        for _ in range(options.repeats):
            runs.setdefault("nothing", []).append(uvloop.run(Load(target, cell).run(WARM)))
            for name in ATTACKS:
                if options.only in name:
                    seen, attackers = beside(name, target, cell)
                    runs.setdefault(name, []).append(seen)
                    told.setdefault(name, Counter()).update(attackers)

    def figure(name: str, share: float) -> float:
        return statistics.median(1e3 * percentile(seen.latencies or [float("inf")], share) for seen in runs[name])

    print("| beside | requests/s | p50 ms | p99 ms | p99 against alone | failed | what the attackers got |")
    print("|---|---|---|---|---|---|---|")
    for name, seen in runs.items():
        rate = statistics.median(run.rate for run in seen)
        failed = sum((run.failed for run in seen), Counter())
        got = ", ".join(f"{status}: {count:,}" for status, count in sorted(told.get(name, Counter()).items()))
        p50, p99 = figure(name, 0.5), figure(name, 0.99)
        ratio = p99 / figure("nothing", 0.99)
        print(f"| {name} | {rate:,.0f} | {p50:.2f} | {p99:.2f} | {ratio:.2f} | {failed.total()} | {got} |")


if __name__ == "__main__":
    main()
