"""The load: keep-alive connections in a closed loop, on raw sockets, so that the client is never what is measured."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

CLIENT_CORE, SERVER_CORE = 0, 1
TOKEN = b'"delta":{"content":"'
END_OF_CHUNKS = b"0\r\n\r\n"  # no event ends so: they end in "\n\n" before the chunk's own line end

now = time.perf_counter


@dataclass
class Target:
    """A server under load: where it listens, its process, and the keys that take turns."""

    name: str
    port: int
    pid: int
    keys: list[str]


@dataclass
class Cell:
    """One kind of load: `streams` connections, each asking again as soon as it was answered."""

    name: str
    model: str
    streams: int
    seconds: float
    is_stream: bool = False
    spread: float = 0.0  # seconds over which the connections begin, so that they don't march in step

    def body(self) -> bytes:
        """The request: 200 characters of prompt."""
        words = {"model": self.model, "messages": [{"role": "user", "content": ("word " * 40)[:200]}]}
        more = {"stream": True, "stream_options": {"include_usage": True}} if self.is_stream else {}
        return json.dumps({**words, **more}).encode()


@dataclass
class Seen:
    """What one run of a cell saw inside its window, and how many answers it got in all. Times are seconds."""

    latencies: list[float] = field(default_factory=list)
    first_tokens: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    tokens: int = 0
    answered: int = 0  # from the first request to the last, the warm-up included
    failed: Counter[str] = field(default_factory=Counter)
    cpu: float = 0.0
    foreign: float = 0.0  # share of the server's core that others took
    window: float = 0.0

    @property
    def rate(self) -> float:
        return len(self.latencies) / self.window


class Connection(asyncio.Protocol):
    """One keep-alive connection with at most one request in flight; tells `load` of each answer."""

    def __init__(self, load: Load, request: bytes) -> None:
        self.load = load
        self.request = request
        self.is_busy = False

    def connection_made(self, transport) -> None:
        self.transport = transport

    def ask(self) -> None:
        self.is_busy = True
        self.parts: list[bytes] = []
        self.missing = -1  # bytes of a body whose length is known; -1 without
        self.status = b""
        self.first = self.last = 0.0
        self.gaps: list[float] = []
        self.began = now()
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        moment = now()
        if not self.status:
            data = b"".join((*self.parts, data))
            head, end, body = data.partition(b"\r\n\r\n")
            if not end:
                self.parts = [data]
                return
            self.parts = []
            self.status = head[9:12]
            _, found, rest = head.lower().partition(b"content-length:")
            if found:
                self.missing = int(rest.partition(b"\r\n")[0])
            data = body
        self.parts.append(data)
        if self.missing >= 0:
            self.missing -= len(data)
            if self.missing == 0:
                self.answered(moment)
            return
        if TOKEN in data:
            if self.first:
                self.gaps.append(moment - self.last)
            else:
                self.first = moment
            self.last = moment
        if data.endswith(END_OF_CHUNKS) or (len(data) < 5 and b"".join(self.parts).endswith(END_OF_CHUNKS)):
            self.answered(moment)

    def connection_lost(self, error: Exception | None) -> None:
        if self.is_busy:
            self.is_busy = False
            self.load.ended(self, "closed")

    def answered(self, moment: float) -> None:
        self.is_busy = False
        failure = ""
        if self.status != b"200":
            failure = f"{self.status.decode()} {code_of(b''.join(self.parts))}"
        if not failure and self.missing < 0 and b"data: [DONE]" not in self.parts[-1] + b"".join(self.parts[-3:]):
            failure = "unfinished"
        self.load.ended(self, failure, moment)


class Load:
    """A cell run once against a target."""

    def __init__(self, target: Target, cell: Cell) -> None:
        self.target = target
        self.cell = cell
        self.seen = Seen()
        self.is_stopping = False
        self.in_flight = 0
        self.idle = asyncio.Event()
        self.since = self.until = float("inf")
        self.sample = b""

    async def run(self, warm: float) -> Seen:
        """Ask for `warm` seconds, then measure; return when every request has its answer."""
        connections = await asyncio.gather(*(self._connect(number) for number in range(self.cell.streams)))
        loop = asyncio.get_running_loop()
        for number, connection in enumerate(connections):
            loop.call_later(self.cell.spread * number / len(connections), self._ask, connection)
        await asyncio.sleep(warm + self.cell.spread)
        cpu, busy, self.since = cpu_seconds(self.target.pid), core_seconds(SERVER_CORE), now()
        self.until = self.since + self.cell.seconds
        await asyncio.sleep(self.cell.seconds)
        seen = self.seen
        seen.window = now() - self.since
        seen.cpu = cpu_seconds(self.target.pid) - cpu
        seen.foreign = max(0.0, core_seconds(SERVER_CORE) - busy - seen.cpu) / seen.window
        self.is_stopping = True
        if self.in_flight:
            await self.idle.wait()
        for connection in connections:
            connection.transport.close()
        return seen

    async def _connect(self, number: int) -> Connection:
        key = self.target.keys[number % len(self.target.keys)]
        body = self.cell.body()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{self.target.port}\r\n"
            f"Authorization: Bearer {key}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(
            lambda: Connection(self, head.encode() + body), "127.0.0.1", self.target.port
        )
        return connection

    def _ask(self, connection: Connection) -> None:
        self.in_flight += 1
        connection.ask()

    def ended(self, connection: Connection, failure: str, moment: float = 0.0) -> None:
        """Take note of an answer, and ask again."""
        self.in_flight -= 1
        if failure:
            self.seen.failed[failure] += 1
        else:
            self._note(connection, moment)
        if failure == "closed" or self.is_stopping:
            if not self.in_flight:
                self.idle.set()
        else:
            self._ask(connection)

    def _note(self, connection: Connection, moment: float) -> None:
        seen = self.seen
        seen.answered += 1
        if not self.sample:
            self.sample = b"".join(connection.parts)
        if self.since <= moment < self.until:
            seen.latencies.append(moment - connection.began)
            if self.cell.is_stream:
                seen.tokens += b"".join(connection.parts).count(TOKEN) - 1  # the first one opens the message, empty
                seen.first_tokens.append(connection.first - connection.began)
                seen.gaps += connection.gaps


def code_of(body: bytes) -> str:
    """The code of an error as the API writes it."""
    return body.partition(b'"code":"')[2].partition(b'"')[0].decode()


def cpu_seconds(pid: int) -> float:
    """CPU that a process has used, all its threads together."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def core_seconds(core: int) -> float:
    """Busy time of a core."""
    lines = Path("/proc/stat").read_text().splitlines()
    fields = next(line for line in lines if line.startswith(f"cpu{core} ")).split()[1:9]
    return (sum(map(int, fields)) - int(fields[3]) - int(fields[4])) / 100
