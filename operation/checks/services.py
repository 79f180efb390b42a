"""Checks of what stands beside Sluice: Redis, mail, the collector of traces, foreign engines, and the last backup."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, getproxies, proxy_bypass

from django.conf import settings
from django.core.mail import get_connection
from django.db import connection

from base import clock
from base.checks import Check, Finding, Severity, command
from base.errors import ServiceError
from base.http import open_directly
from base.sealing import SealError
from fleet.remote_engines import REMOTE
from fleet.trials import Seen, look_at
from gateway.runtime.data_plane import HTTPDataPlane
from gateway.runtime.gateway_lock import count_gateways
from gateway.runtime.models import Observation
from inference.engine import EngineSpec
from routing.models import Deployment
from tenancy.models import OutgoingMail

if TYPE_CHECKING:
    from redis import Redis

ANSWER_SECONDS = 3.0
PROBE_SECONDS = 5.0
MAIL_SECONDS = 5.0
_LIMITS = "until then each gateway grants its share of the limits"


def _redis(_: object) -> Iterator[Finding]:
    if not settings.REDIS_URL:
        return
    from redis import Redis
    from redis.exceptions import RedisError

    from gateway.runtime.hints import EPOCH_CHANNEL

    shown = _without_password(settings.REDIS_URL)
    try:
        with Redis.from_url(settings.REDIS_URL, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=2.0) as client:
            client.ping()
            refusal = _refusal_to_write(client)
            facts = client.info()
            [(_, listening)] = client.pubsub_numsub(EPOCH_CHANNEL)
    except (RedisError, OSError) as error:
        yield Finding(" ".join(str(error).split()), f"start it, or correct REDIS_URL ({shown}); {_LIMITS}")
        return
    cli = f"redis-cli -u {shown}"
    if refusal:
        mend = (
            f"make room (`{cli} CONFIG SET maxmemory 0` lifts its limit), or have REDIS_URL name a primary; {_LIMITS}"
        )
        yield Finding(f"writes nothing: {refusal}", mend)
        return
    policy = facts.get("maxmemory_policy", "noeviction")
    mend = f"`{cli} CONFIG SET maxmemory-policy noeviction`: what it evicts is a limit forgotten"
    yield Finding(f"{facts.get('redis_version')} answers, {policy}", "" if policy == "noeviction" else mend)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            serving = count_gateways(cursor)
        mend = f"give every gateway of this database this REDIS_URL ({shown}): each other one grants limits anew"
        text = f"{serving} serve this database, {listening} listen at this Redis"
        yield Finding(text, mend if listening < serving else "", "gateways")


def _without_password(address: str) -> str:
    parts = urlsplit(address)
    host = parts.netloc.rpartition("@")[2]
    return parts._replace(netloc=f"…@{host}" if "@" in parts.netloc else host).geturl()


def _refusal_to_write(client: Redis) -> str:
    """Return why Redis, which answers, writes nothing; empty when it does."""
    from redis.exceptions import ResponseError

    from billing.limits.redis.store import PREFIX

    try:
        client.set(f"{PREFIX}proof", "1", px=1000)
    except ResponseError as error:
        return " ".join(str(error).split())
    return ""


def _mail(_: object) -> Iterator[Finding]:
    """Connect and sign in as mail does; and look for mail that was given up."""
    if settings.EMAIL_BACKEND.endswith("smtp.EmailBackend"):
        at = f"{settings.EMAIL_HOST}, port {settings.EMAIL_PORT}"
        try:
            with get_connection(timeout=MAIL_SECONDS):
                pass
        except OSError as error:  # SMTP's own errors are OSErrors
            mend = f"start it, or correct SLUICE_EMAIL_URL; what waits is sent by {command('jobs', '--once')}"
            yield Finding(f"{at}: {' '.join(str(error).split()) or type(error).__name__}", mend)
            return
        yield Finding(f"{at} lets us in")
    else:
        yield Finding("none is sent by SMTP")
    lost = OutgoingMail.objects.filter(state=OutgoingMail.State.FAILED, ended_at__gt=clock.now() - timedelta(days=1))
    if count := lost.count():
        mend = "the page System says why, and tries it again"
        yield Finding(f"{count} given up within a day", mend)


def _traces(_: object) -> Iterator[Finding]:
    """Send the collector an export without spans."""
    base = settings.OTEL_EXPORTER_OTLP_ENDPOINT
    if not base:
        return
    address = settings.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT or f"{base}/v1/traces"
    parts = urlsplit(address)
    if parts.scheme in getproxies() and not proxy_bypass(parts.netloc):
        yield Finding(f"{address} is reached through the environment's proxy: not looked at")
        return
    if any(os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}CERTIFICATE") for kind in ("", "TRACES_")):
        yield Finding(f"{address} has a certificate authority of its own: not looked at")
        return
    headers = {"content-type": "application/x-protobuf"}
    try:
        with open_directly(Request(address, b"", headers), timeout=ANSWER_SECONDS):  # noqa: S310 - the operator's own
            pass
    except (HTTPError, URLError, TimeoutError, OSError) as error:
        has_headers = any(os.environ.get(f"OTEL_EXPORTER_OTLP_{kind}HEADERS") for kind in ("", "TRACES_"))
        if isinstance(error, HTTPError) and error.code in {401, 403} and has_headers:  # of the exporter's, not ours
            yield Finding(f"{address} answers")
            return
        mend = "start the collector, correct OTEL_EXPORTER_OTLP_ENDPOINT, or unset it; traces are dropped until then"
        yield Finding(f"{address} takes no traces ({' '.join(str(error).split())})", mend)
    else:
        yield Finding(f"{address} takes traces")


def _data_plane(_: object) -> Iterator[Finding]:
    """Ask the gateway of SLUICE_DATA_PLANE as pages do."""
    if address := settings.SLUICE_DATA_PLANE:
        answers = HTTPDataPlane(address).standing() is not None
        mend = (
            "have SLUICE_DATA_PLANE name a gateway's probes: its SLUICE_METRICS_PORT where it has one, with our secrets"
        )
        yield Finding(f"{address} {'answers pages' if answers else 'tells pages nothing'}", "" if answers else mend)


def _remote_engines(_: object) -> Iterator[Finding]:
    """Have each count a prompt; all are asked at once, and none generates anything."""
    rows = list(Deployment.objects.filter(backend=REMOTE, is_active=True, model__is_active=True))
    specs = [EngineSpec(str(row.id), REMOTE, row.source, row.options, row.credential) for row in rows]
    for row, found in zip(rows, asyncio.run(_all(specs)), strict=True):
        yield _of_engine(row, found)


async def _all(specs: list[EngineSpec]) -> list[Seen | BaseException]:
    return await asyncio.gather(*(look_at(spec, PROBE_SECONDS) for spec in specs), return_exceptions=True)


def _of_engine(row: Deployment, found: Seen | BaseException) -> Finding:
    match found:
        case Seen(uncounted=""):
            details = "; ".join(f"{name} {value}" for name, value in found.info.details.items())
            return Finding(f"{row.source}: context {found.info.max_context}; {details}", "", row.name)
        case Seen():
            mend = "see to its tokenizer endpoint: until then more credit is held for each prompt than it needs"
            return Finding(f"{row.source}: prompts are {found.uncounted}", mend, row.name)
        case SealError():
            return Finding(str(found), "give the secret it was sealed with, or enter its API key anew", row.name)
        case ServiceError():
            mend = "start it, or correct its address, API key or options in the admin"
            return Finding(f"{row.source}: {found.message}", mend, row.name)
    raise found


def _backup(_: object) -> Iterator[Finding]:
    """Look how old the last backup is, in production; whether its archive is whole `restore` proves."""
    if settings.SLUICE_ENV != "production" or not settings.SLUICE_BACKUP_HOURS:
        return
    last = Observation.objects.filter(kind=Observation.Kind.BACKUP).order_by("-at").first()
    folder = str(Path(last.facts["path"]).parent) if last else "/var/backups/sluice"
    mend = f"{command('backup', folder)}, and each night (docs/operations.md)"
    if last is None:
        yield Finding("none was ever made", mend)
        return
    is_old = clock.now() - last.at > timedelta(hours=settings.SLUICE_BACKUP_HOURS)
    yield Finding(f"the last is of {last.at:%Y-%m-%d %H:%M} UTC: {last.facts['path']}", mend if is_old else "")


_SCHEMA = ("schema",)
CHECKS: tuple[Check[object], ...] = (
    Check(
        "redis",
        "Redis writes, evicts nothing, and all gateways listen there",
        Severity.WARNING,
        _redis,
        _SCHEMA,
        hits="Each gateway counts limits for itself, and Celery's periodic work waits.",
    ),
    Check(
        "mail",
        "the mail server lets us in, and took all mail",
        Severity.WARNING,
        _mail,
        _SCHEMA,
        every_s=900,
        hits="Invitations, sign-in links and notices don't arrive.",
    ),
    Check(
        "traces",
        "the collector takes an export",
        Severity.WARNING,
        _traces,
        hits="Requests leave no trace at the collector.",
    ),
    Check(
        "data plane",
        "a gateway answers what pages ask",
        Severity.WARNING,
        _data_plane,
        hits="Pages don't show how engines are.",
    ),
    Check(
        "remote engines",
        "each counts a prompt",
        Severity.WARNING,
        _remote_engines,
        _SCHEMA,
        hits="Requests for the models of these servers fail, or hold more credit than they need.",
    ),
    Check(
        "backup",
        "the last backup is younger than SLUICE_BACKUP_HOURS",
        Severity.WARNING,
        _backup,
        _SCHEMA,
        hits="What happened since the last backup would be lost with this machine.",
    ),
)
