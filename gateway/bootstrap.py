"""Opens a gateway's runtime and its background loops from the settings; they are closed in reverse order."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, suppress
from typing import Any
from uuid import UUID

import structlog
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DatabaseError, connection

from base.database.threads import DatabaseThreads
from base.ids import uuid7
from billing.limits.memory import MemoryRateStore
from billing.limits.types import RateStore
from billing.services.holds import end_leases_of_earlier_owners
from billing.writer import open_writer
from fleet.nodes import note_seen
from gateway.apis.batches.running import Lines
from gateway.apis.endpoints import POSTS
from gateway.apis.responses.runs import cancel_as_asked
from gateway.batches.driver import Driver
from gateway.concurrency import ConcurrencyLimiter
from gateway.durable import answers
from gateway.generation.leases import Leases
from gateway.generation.sweep import SWEEP_INTERVAL, SWEEP_LEASE, Sweep
from gateway.runtime.catalogue import load_snapshot
from gateway.runtime.engines import Engines
from gateway.runtime.epoch import Epoch, EpochPoller
from gateway.runtime.gateway_lock import GatewayLock, take_lock
from gateway.runtime.metrics import Metrics, observe_delay, pool_sources, read_installation
from gateway.runtime.observed import Presence
from gateway.runtime.principals import Principals
from gateway.runtime.readiness import TOLD_SECONDS, Telling
from gateway.runtime.refusals import Refusals
from gateway.runtime.requests import Requests, Stage
from gateway.runtime.runtime import Parts, Runtime

HEALTH_INTERVAL = 0.5
LAST_USED_INTERVAL = 5.0
REFUSALS_INTERVAL = 1.0
SEEN_INTERVAL = 30.0
INSTALLATION_INTERVAL = 15.0
CANCEL_INTERVAL = 1.0
FORGET_SECONDS = 1.0
EXAMPLES_INTERVAL = 1.0

log = structlog.get_logger(__name__)


async def open_runtime() -> Runtime:
    """Return a runtime with its loops running; whatever had been opened is closed again when a part fails.

    The database's lock is taken first (GatewayRunningError when another gateway has it and doesn't share it). On
    SQLite, where it proves that the earlier owners are gone, their holds are given to the sweep at once.
    """
    async with AsyncExitStack() as stack:
        incarnation = uuid7()
        lock = await take_lock(connection.settings_dict, incarnation, is_shared=bool(settings.REDIS_URL))
        stack.push_async_callback(lock.close)
        if settings.OTEL_EXPORTER_OTLP_ENDPOINT:
            stack.push_async_callback(open_traces(incarnation))
        threads = DatabaseThreads()
        stack.callback(threads.close)
        own_threads = DatabaseThreads(2)  # the gateway's own reads must not wait behind clients'
        stack.callback(own_threads.close)
        batch_threads = DatabaseThreads(1)
        stack.callback(batch_threads.close)
        if settings.SLUICE_EMBEDDED:
            await threads.run(lambda: end_leases_of_earlier_owners(incarnation))
            await threads.run(lambda: answers.end_leases_of_earlier_owners(incarnation))
        epoch = Epoch()
        poller = EpochPoller(epoch)
        stack.push_async_callback(poller.close)
        await poller.start()
        metrics = Metrics()
        engines = Engines(metrics)
        stack.push_async_callback(engines.close)
        before = await epoch.current()
        snapshot = await threads.run(lambda: load_snapshot(before))
        engines.follow(snapshot.catalogue.all_deployments(), snapshot.unfit())
        await engines.look()
        writer = open_writer(connection.settings_dict)
        stack.push_async_callback(writer.close)
        rates = await _open_rates(lock, metrics)
        stack.push_async_callback(rates.close)
        parts = Parts(
            writer=writer,
            rates=rates,
            engines=engines,
            epoch=epoch,
            principals=Principals(epoch, threads, rates),
            threads=threads,
            own_threads=own_threads,
            metrics=metrics,
            requests=Requests(
                ConcurrencyLimiter(
                    settings.SLUICE_QUEUE_SECONDS, settings.SLUICE_QUEUE_LENGTH, settings.SLUICE_QUEUE_BYTES
                ),
                Refusals(own_threads, metrics),
                metrics,
                incarnation,
                lock,
            ),
        )
        runtime = Runtime(parts, snapshot)
        if settings.REDIS_URL:
            from gateway.durable.mirror import Mirror

            runtime.replays.mirror = Mirror(settings.REDIS_URL, settings.SLUICE_REDIS_SECONDS)
            stack.push_async_callback(runtime.replays.mirror.close)
        stack.push_async_callback(runtime.principals.write_last_used)
        stack.push_async_callback(runtime.requests.refusals.write)
        pools = (threads, own_threads, batch_threads)
        calls = {"sluice_database_calls": lambda: sum(pool.calls for pool in pools)}
        metrics.gauges.follow({**calls, **pool_sources()})
        presence = await own_threads.run(lambda: Presence(incarnation))
        stack.push_async_callback(_forget, own_threads, presence)
        for loop in _loops(runtime, lock, poller, batch_threads, presence):
            stack.push_async_callback(_cancelled, asyncio.create_task(_logged(loop)))
        runtime.on_close(stack.pop_all().aclose)
    log.info("gateway_open", incarnation=str(incarnation), deployments=len(engines.entries()))
    return runtime


def _loops(
    runtime: Runtime, lock: GatewayLock, poller: EpochPoller, batch_threads: DatabaseThreads, presence: Presence
) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return what runs beside requests until the runtime is closed."""
    metrics, engines, threads = runtime.metrics, runtime.engines, runtime.own_threads
    leases = Leases(runtime.requests, runtime.writer)
    sweep = Sweep(
        engines_of=engines.of,
        submit=runtime.writer.submit,
        threads=threads,
        unsettled=runtime.requests.closings,
        lease=SWEEP_LEASE,
        share=lambda: (lock.rank, lock.gateways),
    )

    lines = Lines(runtime, POSTS)

    def rests() -> bool:
        return runtime.requests.stage is not Stage.SERVING or not runtime.requests.has_lock

    batches = Driver(lines.ask, batch_threads, settings.SLUICE_BATCH_CONCURRENCY, rests)

    async def swept() -> None:
        metrics.holds_swept(await sweep.turn())

    is_left_out = False

    async def look_at_engines() -> None:
        nonlocal is_left_out
        is_left_out = engines.are_at_rest and not is_left_out  # engines at rest are asked every other time
        if not is_left_out:
            await engines.look()

    async def seen() -> None:
        if names := engines.heard():
            await threads.run(lambda: note_seen(names))

    telling = Telling()

    async def tell() -> None:
        telling.look(await runtime.state())

    async def look_at_installation() -> None:
        metrics.installation.seen(await threads.run(read_installation))
        state, states = await runtime.state(), runtime.deployments()
        metrics.checks.seen(await threads.run(lambda: presence.look(state, states)))

    return [
        lock.keep,
        poller.watch,
        leases.keep_renewed,
        leases.keep_fenced,
        runtime.replays.keep_renewed,
        runtime.catalogue.follow,
        lambda: _each(HEALTH_INTERVAL, look_at_engines, "engines"),
        lambda: _each(SWEEP_INTERVAL, swept, "sweep"),
        lambda: _each(LAST_USED_INTERVAL, runtime.principals.write_last_used, "last_used"),
        lambda: _each(REFUSALS_INTERVAL, runtime.requests.refusals.write, "refusals"),
        lambda: _each(INSTALLATION_INTERVAL, look_at_installation, "installation", at_once=True),
        lambda: observe_delay(metrics.loop_delay.observe),
        *_hints(poller, runtime),
        lambda: _each(SEEN_INTERVAL, seen, "nodes_seen"),
        lambda: _each(TOLD_SECONDS, tell, "telling", at_once=True),
        lambda: _each(EXAMPLES_INTERVAL, runtime.catalogue.read_examples, "examples"),
        lambda: _each(CANCEL_INTERVAL, lambda: cancel_as_asked(runtime), "cancel_responses"),
        batches.keep,
    ]


async def _forget(threads: DatabaseThreads, presence: Presence) -> None:
    """Take back the note of a gateway, if the database answers soon."""
    with suppress(DatabaseError, TimeoutError):
        async with asyncio.timeout(FORGET_SECONDS):
            await threads.run(presence.forget)


def open_traces(incarnation: UUID) -> Callable[[], Awaitable[None]]:
    """Begin to export traces; return what ends it."""
    try:
        from gateway.runtime.otel import exporter_to, open_spans
    except ImportError as error:
        raise ImproperlyConfigured(
            "OTEL_EXPORTER_OTLP_ENDPOINT is set and OpenTelemetry isn't installed: "
            "pip install --require-hashes -r constraints/gateway.txt"
        ) from error
    own = settings.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT
    exporter = exporter_to(own or f"{settings.OTEL_EXPORTER_OTLP_ENDPOINT}/v1/traces")
    return open_spans(settings.SLUICE_TRACE_SHARE, str(incarnation), exporter)


async def _open_rates(lock: GatewayLock, metrics: Metrics) -> RateStore:
    """Return the rate store of the settings: in Redis, or in memory where there is none."""
    metrics.gateways.set_function(lambda: lock.gateways)
    if not settings.REDIS_URL:
        return MemoryRateStore()

    # Who has no Redis needs not wait for its library.
    from billing.limits.redis.connection import RedisConnection
    from billing.limits.redis.store import SCRIPTS
    from billing.limits.shared import SharedRateStore

    def changed(is_shared: bool) -> None:
        metrics.limits_shared.set(is_shared)
        if is_shared:
            log.info("limits_shared")
        else:
            metrics.redis_losses.inc()
            log.error("limits_in_shares", gateways=lock.gateways, mend="Redis doesn't answer: see `manage.py doctor`")

    redis = RedisConnection(settings.REDIS_URL, SCRIPTS, settings.SLUICE_REDIS_SECONDS)
    rates = SharedRateStore(redis, lambda: lock.gateways, on_change=changed)
    await redis.open()
    return rates


def _hints(poller: EpochPoller, runtime: Runtime) -> list[Callable[[], Coroutine[Any, Any, None]]]:
    """Return the loop that listens for hints, where there is a Redis that passes them on."""
    if not settings.REDIS_URL:
        return []
    from gateway.runtime.hints import Hints

    return [Hints(settings.REDIS_URL, look=poller.look, wake=runtime.requests.turns.wake).listen]


async def _each(seconds: float, work: Callable[[], Awaitable[object]], name: str, *, at_once: bool = False) -> None:
    """Await `work()` every `seconds` until cancelled, first then or `at_once`. A failure is logged, and the next turn
    tries again.
    """
    wait = 0.0 if at_once else seconds
    while True:
        await asyncio.sleep(wait)
        wait = seconds
        try:
            await work()
        except Exception:
            log.exception("loop_failed", loop=name)


async def _logged(loop: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run a loop and log the error if it ends by one."""
    try:
        await loop()
    except Exception:
        log.exception("loop_ended")
        raise


async def _cancelled(task: asyncio.Task[None]) -> None:
    """Cancel `task` and wait for its end."""
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
