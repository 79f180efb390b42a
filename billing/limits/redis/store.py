"""A `RateStore` in Redis. Redis' clock counts; what it says of buckets is computed by the rules of `gcra`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

from billing.limits import gcra
from billing.limits.redis.connection import RedisConnection
from billing.limits.redis.wire import Argument, Call, Command, Script
from billing.limits.types import WAITING_US, Bucket, Decision, Lease, Take, Taken, Waiting

PREFIX = "sluice:"
LEASES_CHANNEL = f"{PREFIX}leases"  # says under which key a lease may be had, while some wait for one
_BASE = 10**12

_NUMBERS = (Path(__file__).parent / "numbers.lua").read_text()


def _script(name: str) -> Script:
    return Script(_NUMBERS + (Path(__file__).parent / f"{name}.lua").read_text())


SCRIPTS = TAKE, ADJUST, RENEW, GIVE_BACK = tuple(map(_script, ("take", "adjust", "renew", "give_back")))


class RedisRateStore:
    """Buckets and leases in Redis, shared by all who use the same server.

    Each call raises StoreLostError when Redis does not answer. Those that have no answer return at once, and are
    carried out before whatever this process asks later.
    """

    trouble = ""

    def __init__(self, connection: RedisConnection, clock: Callable[[], int] | None = None) -> None:
        """`connection` is open and knows `SCRIPTS`; `clock` replaces Redis' own, in microseconds."""
        self._connection = connection
        self._clock = clock

    async def take(self, takes: Sequence[Take], lease: Lease | None = None, waiting: Waiting | None = None) -> Decision:
        """Take everything or nothing. Whoever is cancelled meanwhile has taken nothing in the end."""
        if (never := gcra.impossible(takes)) is not None:
            return never
        keys = [PREFIX + take.bucket.key for take in takes]
        arguments: list[Argument] = [self._now(), "", 0, 0, LEASES_CHANNEL, "", 0, WAITING_US]
        if lease is not None:
            keys = [*_lease_keys(lease), *keys]
            arguments[1:4] = [lease.holder, lease.limit, lease.ttl_us]
        if waiting is not None:
            arguments[5:7] = [waiting.since_us, waiting.count]
        for take in takes:
            arguments += divmod(gcra.cost_us(take.bucket, take.cost), _BASE)
            arguments += divmod(gcra.burst_us(take.bucket), _BASE)
        call = Call(TAKE, keys, arguments, unheard=lambda answer: self._undo(answer, takes, lease))
        asked = self._connection.send(call)
        try:
            is_taken, now, lease_wait, *limbs = numbers_of(await asked)
        except asyncio.CancelledError:
            if not asked.cancelled() and asked.exception() is None:  # it was answered in this very turn of the loop
                self._undo(asked.result(), takes, lease)
            raise
        tats = {
            take.bucket.key: high * _BASE + low for take, high, low in zip(takes, limbs[::2], limbs[1::2], strict=True)
        }
        decision, _ = gcra.decide(takes, tats, lease_wait, now)
        assert isinstance(decision, Taken) == bool(is_taken), "the script and gcra follow one rule"
        return decision

    async def adjust(self, bucket: Bucket, delta: int) -> None:
        """Take `delta` more units, into debt if need be; give back when negative, never beyond full."""
        spent = divmod(gcra.cost_us(bucket, delta), _BASE)
        self._connection.send(Call(ADJUST, [PREFIX + bucket.key], [self._now(), *spent]))

    async def renew(self, lease: Lease) -> None:
        """Let the lease end `ttl_us` from now, if it is still held."""
        self._connection.send(self._renewal(lease, 0))

    async def give_back(self, lease: Lease, takes: Sequence[Take] = ()) -> None:
        """End the lease, or the waiting for it, and adjust the buckets of `takes`."""
        self._connection.send(self.end(lease, takes))

    def holding(self, lease: Lease) -> Call:
        """Return the call that has the lease held from then on, whether or not Redis knows of it (any more)."""
        return self._renewal(lease, 1)

    def end(self, lease: Lease, takes: Sequence[Take] = ()) -> Call:
        """Return the call that ends the lease, or the waiting for it, and adjusts the buckets of `takes`."""
        keys, arguments = _lease_keys(lease), [self._now(), lease.holder, LEASES_CHANNEL]
        for take in takes:
            keys.append(PREFIX + take.bucket.key)
            arguments += divmod(gcra.cost_us(take.bucket, take.cost), _BASE)
        return Call(GIVE_BACK, keys, arguments)

    def proof(self) -> Command:
        """Return what fails at a Redis that writes nothing: one without memory or disk, or a replica."""
        return Command("SET", f"{PREFIX}proof", "1", "PX", "1000")

    async def close(self) -> None:
        """Send what is on its way, and close the connection."""
        await self._connection.close()

    def _renewal(self, lease: Lease, is_certain: int) -> Call:
        return Call(RENEW, _lease_keys(lease)[:1], [self._now(), lease.holder, lease.ttl_us, is_certain])

    def _undo(self, answer: bytes, takes: Sequence[Take], lease: Lease | None) -> None:
        """Give back what was taken for somebody who left before the answer came."""
        if not numbers_of(answer)[0] or not self._connection.is_up:
            return
        for take in takes:
            spent = divmod(-gcra.cost_us(take.bucket, take.cost), _BASE)
            self._connection.send(Call(ADJUST, [PREFIX + take.bucket.key], [self._now(), *spent]))
        if lease is not None:
            self._connection.send(self.end(lease))

    def _now(self) -> Argument:
        return "" if self._clock is None else self._clock()


def numbers_of(answer: bytes) -> list[int]:
    """Return the numbers that a script answers in one text, which is read several times as fast as a list of them."""
    return [int(number) for number in answer.split()]


def _lease_keys(lease: Lease) -> list[str]:
    return [f"{PREFIX}{lease.key}", f"{PREFIX}{lease.key}:waiting"]
