"""Checks of what serves: gateways, nodes, the periodic work and the books."""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

from django.conf import settings

from base import clock
from base.checks import Check, Finding, Severity, command
from base.http import open_directly
from billing.selectors.reconciliation import last_reconciliation, last_whole
from billing.selectors.usage import waits_since
from fleet.worker_specs import is_worker_running
from gateway.runtime.observed import LATE, SECRETS, TASKS, seen_gateways, version
from operation.serve.address import running_address
from operation.serve.starting import readiness_request
from routing.models import Node

ANSWER_SECONDS = 3.0
IN_A_ROW = 3
RECENT = timedelta(minutes=15)
UNHEARD = timedelta(minutes=2)


def _gateway(base_url: str) -> Iterator[Finding]:
    """Ask the gateway of this home, or that at `base_url`; elsewhere others may serve, which note it."""
    address = base_url or running_address()
    if not address:
        count = sum(not one.is_gone for one in seen_gateways())
        mend = f"start one: {command('serve')}, or its service" if not count else ""
        yield Finding(f"none runs on this home; {count} serve this database", mend)
        return
    try:
        with open_directly(readiness_request(address), timeout=ANSWER_SECONDS) as answer:
            json.load(answer)
    except HTTPError as error:
        with error:
            said = error.read().decode(errors="replace")[:300]
        if error.code == 503:
            yield Finding(
                f"{address} is up but not ready: {said}", "wait, or see its log: it names each check that fails"
            )
        else:
            yield from _on_main_port(address)
    except (URLError, TimeoutError, ConnectionError, ValueError):
        yield from _on_main_port(address)
    else:
        yield Finding(f"{address} is ready")


def _on_main_port(address: str) -> Iterator[Finding]:
    """Ask ``/health``, which stays on the main port: that of the probes may be known to the gateway alone."""
    try:
        with open_directly(Request(f"{address}/health"), timeout=ANSWER_SECONDS):  # noqa: S310 - our own address
            yield Finding(f"{address} is ready")
    except HTTPError as error:
        error.close()
        yield Finding(f"{address} is up but not ready ({error.code})", "see its log: it names each check that fails")
    except (URLError, TimeoutError, ConnectionError) as error:
        mend = f"{command('serve')} starts one; --base-url tells doctor of another"
        yield Finding(f"{address} doesn't answer ({' '.join(str(error).split())})", mend)


def _gateways(_: object) -> Iterator[Finding]:
    """Compare all gateways of this database, as each notes itself."""
    seen, own = seen_gateways(), version()
    alive = [one for one in seen if not one.is_gone]
    for one in alive:
        if one.version != own:
            text = f"runs {one.version or 'an unnamed version'}, and this code is {own or 'unnamed'}"
            mend = "start it anew: `systemctl restart 'sluice-gateway@*'` on its machine, or SIGHUP to its `serve`"
            yield Finding(text, mend, one.name)
        for name, findings in one.failing.items() if not one.is_starting else ():
            yield from (Finding(f"{name}: {text}", mend, one.name) for text, mend in findings)
    lost = Counter(one.host for one in seen if one.is_gone and one.seen_at > clock.now() - RECENT)
    for host, count in lost.items():
        mend = "`journalctl -u 'sluice*' -p warning -n 50` on its machine, or its log, says what ended them"
        text = f"{count} gateways ended there without a farewell in {RECENT.seconds // 60} minutes"
        yield Finding(text, mend if count >= IN_A_ROW else "", host)
    yield Finding(f"{len(alive)} serve: {', '.join(one.name for one in alive) or 'none'}")


def _nodes(_: object) -> Iterator[Finding]:
    """Look when a gateway heard last from each node that has models, and knock at those that are silent."""
    if all(one.is_gone or one.is_starting for one in seen_gateways()):
        return  # nobody listens, or has for long enough
    nodes = Node.objects.filter(
        is_active=True, replicas__deployment__is_active=True, replicas__deployment__model__is_active=True
    )
    for node in nodes.distinct():
        if node.seen_at is not None and node.seen_at > clock.now() - UNHEARD:
            yield Finding(f"heard at {node.seen_at:%H:%M:%S} UTC", "", node.name)
            continue
        since = f"since {node.seen_at:%Y-%m-%d %H:%M} UTC" if node.seen_at else "ever"
        start = command("worker", "--node", node.name)
        if not node.address:
            runs = is_worker_running(node.name)
            mend = "see its worker's log" if runs else f"start its worker: {command('serve')}, or {start}"
        elif reason := _refusal(node.address):
            since += f"; {node.address} {reason}"
            mend = f"on that machine: {start}"
        else:
            mend = f"it listens, and its keys are others: {command('nodes', 'keys', node.name)}, then move its key file"
        yield Finding(f"not heard {since}", mend, node.name)


def _refusal(address: str) -> str:
    """Return why nobody listens at a node's address, empty when somebody does."""
    parts = urlsplit(address)
    try:
        socket.create_connection((parts.hostname or "", parts.port or 0), timeout=ANSWER_SECONDS).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return ""


def _sums(_: object) -> Iterator[Finding]:
    waits = waits_since()
    if waits is not None and clock.now() - waits > LATE:
        mend = f"run {command('jobs')} (or `serve`, or Celery), or {command('jobs', '--once')} by cron (docs/jobs.md)"
        yield Finding(f"usage of {waits:%Y-%m-%d %H:%M} UTC is not in the sums", mend)
    found = list(TASKS.look(None))
    yield from found or [Finding("up to date")]


def _books(_: object) -> Iterator[Finding]:
    checked = last_reconciliation()
    if checked is None or checked.finished_at is None:
        yield Finding("not checked yet")
    else:
        is_old = clock.now() - checked.finished_at > timedelta(hours=2 * settings.SLUICE_RECONCILE_HOURS)
        text = f"checked {checked.finished_at:%Y-%m-%d %H:%M} UTC, {checked.found} findings"
        if checked.found:
            mend = f"{command('reconcile')} lists what differs: change nothing by hand before you know why"
        else:
            mend = f"run {command('jobs', '--once')}, which checks them" if is_old else ""
        yield Finding(text, mend)


def _old_books(_: object) -> Iterator[Finding]:
    checked = last_whole()
    if checked is None or checked.finished_at is None:
        yield Finding("the next check is of all rows")
    else:
        is_old = clock.now() - checked.finished_at > timedelta(days=settings.SLUICE_RECONCILE_WHOLE_DAYS)
        mend = f"run {command('reconcile', '--whole')} when there is little to do" if is_old else ""
        yield Finding(f"all rows were checked {checked.finished_at:%Y-%m-%d %H:%M} UTC", mend)


_SCHEMA = ("schema",)
CHECKS: tuple[Check[str], ...] = (
    Check(
        "gateway",
        "a gateway of this home is ready",
        Severity.CRITICAL,
        _gateway,
        _SCHEMA,
        hits="Clients of this home get no answer.",
    ),
    Check(
        "gateways",
        "all run this version, and each is well by itself",
        Severity.WARNING,
        _gateways,
        _SCHEMA,
        hits="Requests at that gateway may fail, or be answered by another release.",
    ),
    Check(
        "nodes",
        "gateways hear from each node that has models",
        Severity.CRITICAL,
        _nodes,
        _SCHEMA,
        hits="Requests for models that only this node has fail.",
    ),
    SECRETS,
    replace(TASKS, look=_sums),
    Check(
        "books",
        "the last check of the books found nothing",
        Severity.CRITICAL,
        _books,
        _SCHEMA,
        hits="Balances may be wrong. Requests go on.",
    ),
    Check(
        "old books",
        "all rows of the books were checked of late",
        Severity.WARNING,
        _old_books,
        _SCHEMA,
        hits="What was changed in old rows isn't found.",
    ),
)
