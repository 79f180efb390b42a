"""What a tenant's requests take beside each attack on what it shares with others: docs/isolation.md has the list.

    python benchmarks/isolation.py [--seconds 10] [--repeats 3] [--only TEXT]
    python benchmarks/isolation.py --url http://127.0.0.1:8000 --attacker KEY --bystander KEY --model NAME

Without an address one gateway on SQLite with the fake engine is started, set up as in gateway/run.py: that has no
tokenizer and no grammars, so attacks on preparation need the address of a server (`make run`) with a model of its own
and the keys of two tenants. The bystander asks in a closed loop, alone and then beside each attack, in turns; attackers
run in a process of their own with the lowest priority.
"""

from __future__ import annotations

import argparse
import http.client
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import socket
import statistics
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent / "gateway"))

import hostile
from run import gateway, percentile

ALIVE = 4  # connections of the bystander, and of each attack
WARM = 1.0
SOCKETS = 500


@dataclass
class Place:
    """Where both ask, and with which keys."""

    port: int
    model: str
    attacker: str
    bystander: str
    is_real: bool


# -- requests ---------------------------------------------------------------------------------------------------------


def chat(place: Place, text: str = "Say hello.", **more: object) -> dict[str, object]:
    messages = [{"role": "user", "content": text}]
    return {"model": place.model, "messages": messages, "max_tokens": 8, **more}


def schema(definition: dict[str, object]) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": definition}}


def short(place: Place) -> dict[str, object]:
    """A short prompt."""
    return chat(place)


def long(place: Place) -> dict[str, object]:
    """A prompt of 6 kB that was never asked before."""
    words = random.choices(("time", "person", "year", "way", "day", "thing", "world", "life", "hand", "part"), k=1000)
    return chat(place, " ".join(words))


def guided(place: Place) -> dict[str, object]:
    """A small schema that was never used before."""
    name = f"field_{random.getrandbits(48):x}"
    return chat(place, response_format=schema({"type": "object", "properties": {name: {"type": "boolean"}}}))


class Asking(threading.Thread):
    """One connection that asks again as soon as it was answered."""

    def __init__(self, port: int, key: str, body: Callable[[], object | None], path: str, until: float) -> None:
        super().__init__(daemon=True)
        self.port, self.key, self.body, self.path, self.until = port, key, body, path, until
        self.times: list[tuple[float, float]] = []  # when each was asked, and how long it took
        self.seen: Counter[str] = Counter()

    def run(self) -> None:
        while time.monotonic() < self.until:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
            with suppress(OSError, http.client.HTTPException):
                while time.monotonic() < self.until:
                    self.ask(connection)
            connection.close()

    def ask(self, connection: http.client.HTTPConnection) -> None:
        body, began = self.body(), time.monotonic()
        headers = {"authorization": f"Bearer {self.key}", "content-type": "application/json"}
        text = None if body is None else json.dumps(body, ensure_ascii=False).encode()
        connection.request("GET" if text is None else "POST", self.path, text, headers)
        answer = connection.getresponse()
        answer.read()
        self.seen[str(answer.status)] += 1
        if answer.status == 200:
            self.times.append((began, time.monotonic() - began))
        elif answer.status == 429:
            time.sleep(0.05)  # even an attacker waits for its own answers


# -- attacks ----------------------------------------------------------------------------------------------------------


def prime_multiples(place: Place) -> dict[str, object]:
    """A schema that would be compiled for minutes, each time another one."""
    number = 999_983 + 2 * random.randrange(1_000_000)
    return chat(place, response_format=schema({"type": "integer", "multipleOf": number}))


def emoji(place: Place) -> dict[str, object]:
    return chat(place, "😀" * 280_000)


def spaces(place: Place) -> dict[str, object]:
    return chat(place, " " * 1_000_000)


def silent_sockets(place: Place, seen: Counter[str]) -> None:
    """As many connections as one address may have, which send nothing; renewed when they are closed."""
    kept: list[socket.socket] = []
    while True:
        while len(kept) < SOCKETS:
            with suppress(OSError):
                kept.append(socket.create_connection(("127.0.0.1", place.port), timeout=5))
                seen["opened"] += 1
        time.sleep(0.2)
        for one in list(kept):
            one.setblocking(False)
            with suppress(BlockingIOError):
                if not one.recv(1):
                    kept.remove(one)


@dataclass
class Attack:
    """What the attacker sends, and which of the bystander's requests it is meant for."""

    bystander: Callable[[Place], dict[str, object]]
    run: Callable[[Place, Counter[str]], None]
    needs_model: bool = False


def asked(body: Callable[[Place], object | None], path: str, key: Callable[[Place], str]) -> Callable[..., None]:
    """Return an attack by requests."""

    def run(place: Place, seen: Counter[str]) -> None:
        threads = [Asking(place.port, key(place), lambda: body(place), path, float("inf")) for _ in range(ALIVE)]
        for thread in threads:
            thread.seen = seen
            thread.start()
        threading.Event().wait()

    return run


def guesses(place: Place, seen: Counter[str]) -> None:
    """Another unknown key with each request."""

    class Guessing(Asking):
        def ask(self, connection: http.client.HTTPConnection) -> None:
            self.key = f"sk-sluice-{random.getrandbits(128):x}"
            super().ask(connection)

    for _ in range(ALIVE):
        thread = Guessing(place.port, "", lambda: None, "/v1/models", float("inf"))
        thread.seen = seen
        thread.start()
    threading.Event().wait()


CHAT = "/v1/chat/completions"


def own(place: Place) -> str:
    return place.attacker


def nobodys(place: Place) -> str:
    return "none"


ATTACKS: dict[str, Attack] = {
    "schemas that take minutes": Attack(guided, asked(prime_multiples, CHAT, own), needs_model=True),
    "280,000 emoji": Attack(long, asked(emoji, CHAT, own), needs_model=True),
    "1 MB of spaces": Attack(long, asked(spaces, CHAT, own), needs_model=True),
    "requests beyond the rate": Attack(short, asked(short, CHAT, own)),
    "bodies that are refused": Attack(short, asked(lambda _: {"model": "nothing"}, CHAT, own)),
    "guessed keys": Attack(short, guesses),
    "scrapes of /metrics": Attack(short, asked(lambda _: None, "/metrics", nobodys)),
    "looks at /readyz": Attack(short, asked(lambda _: None, "/readyz", nobodys)),
    "silent connections": Attack(short, silent_sockets),
    **{
        name: Attack(short, lambda place, seen, attack=attack: attack(place.port, seen))
        for name, attack in hostile.ATTACKS.items()
    },
}


def attacking(name: str, place: Place, pipe: multiprocessing.connection.Connection) -> None:
    """Attack until told to stop, then say what was seen."""
    os.nice(19)
    seen: Counter[str] = Counter()
    threading.Thread(target=ATTACKS[name].run, args=(place, seen), daemon=True).start()
    pipe.recv()
    pipe.send(seen)
    os._exit(0)


# -- measuring --------------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """Seconds of the bystander's answers, and what it got instead."""

    p50: list[float] = field(default_factory=list)
    p99: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, place: Place, body: Callable[[Place], dict[str, object]], seconds: float) -> None:
        """Ask for `seconds`."""
        began = time.monotonic() + WARM
        threads = [
            Asking(place.port, place.bystander, lambda: body(place), CHAT, began + seconds) for _ in range(ALIVE)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        took = [spent for thread in threads for at, spent in thread.times if at >= began] or [float("inf")]
        self.p50.append(1e3 * percentile(took, 0.5))
        self.p99.append(1e3 * percentile(took, 0.99))
        self.failed += sum(count for thread in threads for status, count in thread.seen.items() if status != "200")


def measured(name: str, place: Place, options: argparse.Namespace) -> None:
    """Print an attack's row."""
    attack, alone, beside, seen = ATTACKS[name], Figures(), Figures(), Counter[str]()
    for _ in range(options.repeats):
        alone.add(place, attack.bystander, options.seconds)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.Process(target=attacking, args=(name, place, theirs), daemon=True)
        process.start()
        time.sleep(0.5)
        beside.add(place, attack.bystander, options.seconds)
        ours.send("stop")
        seen += ours.recv()
        process.join()
    p50, p99, under50, under99 = map(statistics.median, (alone.p50, alone.p99, beside.p50, beside.p99))
    got = ", ".join(f"{status}: {count:,}" for status, count in sorted(seen.items()))
    ratio, failed = under99 / p99, beside.failed - alone.failed
    cells = (name, f"{p50:.1f} / {p99:.1f}", f"{under50:.1f} / {under99:.1f}", f"{ratio:.2f}", str(failed), got)
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", help="only the attacks whose names contain this")
    parser.add_argument("--url", default="")
    parser.add_argument("--attacker", default="", help="a key of one tenant")
    parser.add_argument("--bystander", default="", help="a key of another tenant")
    parser.add_argument("--model", default="whole")
    options = parser.parse_args()
    with ExitStack() as running:
        if options.url:
            port = urlsplit(options.url).port or 80
            place = Place(port, options.model, options.attacker, options.bystander, is_real=True)
        else:
            target, _ = running.enter_context(gateway("sqlite"))
            place = Place(target.port, options.model, target.keys[0], target.keys[1], is_real=False)
        print("| attack | alone p50 / p99 ms | beside p50 / p99 ms | p99 against alone | failed | the attacker got |")
        print("|---|---|---|---|---|---|")
        for name, attack in ATTACKS.items():
            if options.only in name and (place.is_real or not attack.needs_model):
                measured(name, place, options)


if __name__ == "__main__":
    main()
