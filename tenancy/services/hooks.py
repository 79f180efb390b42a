"""Web-hooks: addresses that are told of alerts by signed requests, through the outbox (`tenancy.services.outbox`).

Requests are signed as the Standard Webhooks specification has it, so that its libraries verify them. A tenant's hook
may stand at public addresses only, wherever its name leads at that moment, and no redirect is followed: it is no way
into the operator's network.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import ipaddress
import json
import logging
import secrets
import socket
import ssl
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from django.conf import settings
from django.db import transaction
from django.db.models import F

from base import clock
from base.errors import ServiceError
from base.sealing import SealError, resealed, seal, unseal
from inference.clients.remote.addresses import Network, refusal_of
from tenancy.models import Delivery, Tenant, WebHook
from tenancy.services import outbox

logger = logging.getLogger("sluice.jobs")

MOST_HOOKS = 10
MOST_WAITING = 20
SECONDS = 10.0
_LONGEST_URL = 500
_PREFIX = "whsec_"


class ForbiddenHostError(OSError):
    """No web-hook may stand where a name leads."""


def make_hook(*, tenant: Tenant | None, url: str) -> tuple[WebHook, str]:
    """Make a hook; return it with its secret, which nobody can read again."""
    check_url(url, is_tenants=tenant is not None)
    if WebHook.objects.filter(tenant=tenant).count() >= MOST_HOOKS:
        raise ServiceError("url", f"There are {MOST_HOOKS} web-hooks already: delete one first.")
    secret = _PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()
    hook = WebHook(tenant=tenant, url=url, sealed_secret=seal(secret))
    hook.save(force_insert=True)
    return hook, secret


def check_url(url: str, *, is_tenants: bool) -> None:
    """Raise ServiceError unless this can be a hook's address."""
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ServiceError("url", "This is no address: give one such as https://example.com/hook.") from None
    if parts.scheme not in {"http", "https"} or not host or port == 0:
        raise ServiceError("url", "Give a whole address, such as https://example.com/hook.")
    if any(ord(one) <= 32 or ord(one) > 126 for one in url):
        raise ServiceError("url", "An address has no spaces and only ASCII: write others in percent encoding.")
    if parts.username is not None or parts.password is not None:
        raise ServiceError("url", "An address can hold no password: the signature says who sends.")
    if len(url) > _LONGEST_URL:
        raise ServiceError("url", f"An address has at most {_LONGEST_URL} characters.")
    if is_tenants and parts.scheme != "https" and settings.SLUICE_BASE_URL.startswith("https:"):
        raise ServiceError("url", "Give an https address: what is sent must not be read on its way.")


def set_active(hook: WebHook, *, is_active: bool) -> None:
    """Let a hook be told of alerts, or not."""
    hook.is_active = is_active
    hook.save(update_fields=["is_active"])


def delete_hook(hook: WebHook) -> None:
    """Delete a hook with all that was to be sent to it."""
    hook.delete()


def tell(tenant: Tenant | None, event: str, data: Mapping[str, Any]) -> None:
    """Store what happened for every hook of the tenant, or of the operators, in this transaction."""
    body = json.dumps({"type": event, "timestamp": clock.now().isoformat(), "data": data}, ensure_ascii=False)
    for hook in WebHook.objects.filter(tenant=tenant, is_active=True):
        _queue(hook, event, body)


def send_test(hook: WebHook) -> Delivery:
    """Store a message by which its owner sees that a hook works; one at a time."""
    _require_room(hook, 1)
    body = {"type": "test", "timestamp": clock.now().isoformat(), "data": {"text": "This web-hook works."}}
    return _queue(hook, "test", json.dumps(body))


def replay(delivery: Delivery) -> None:
    """Let a message that ended be sent again, under its own id."""
    _require_room(delivery.hook, MOST_WAITING)
    outbox.again(delivery, status=None)


@transaction.atomic
def reseal() -> list[str]:
    """Encrypt with the secret of today every hook's secret that isn't; return the addresses whose can't be read."""
    lost = []
    for hook in WebHook.objects.select_for_update():
        try:
            sealed = resealed(hook.sealed_secret)
        except SealError:
            lost.append(hook.url)
            continue
        WebHook.objects.filter(pk=hook.pk).update(sealed_secret=sealed)
    return lost


def _require_room(hook: WebHook, most: int) -> None:
    if hook.deliveries.filter(state=Delivery.State.WAITING).count() >= most:
        raise ServiceError("", "What was to be sent before is still on its way: wait until it ended.")


def _queue(hook: WebHook, event: str, body: str) -> Delivery:
    return Delivery.objects.create(hook=hook, event=event, body=body, next_attempt_at=clock.now())


def send_due() -> bool:
    """Send the message that is due for the longest, those of operators first; return whether there was one.

    A receiver that doesn't answer takes `SECONDS`: no tenant's may keep operators from hearing of a fault.
    """
    row, is_ours = outbox.take_due(Delivery, F("hook__tenant").asc(nulls_first=True))
    if row is not None and is_ours:
        _send(row)
    return row is not None


def _send(row: Delivery) -> None:
    state = Delivery.State
    hook = WebHook.objects.get(pk=row.hook_id)
    if not hook.is_active:
        outbox.end(row, state.FAILED, error="The web-hook is switched off.")
        return
    try:
        headers = signed(str(row.id), row.body, unseal(hook.sealed_secret))
        networks = [] if hook.tenant_id else [ipaddress.ip_network(one) for one in settings.SLUICE_REMOTE_NETWORKS]
        status, reason = post(hook.url, row.body.encode(), headers, networks), ""
    except SealError:
        reason = "Its secret was sealed under another one: make that a fallback, or make the web-hook anew."
        status = None
    except (OSError, http.client.HTTPException, ValueError) as error:
        reason, status = _told(error, hook), None
    if status is not None and 200 <= status < 300:
        outbox.end(row, state.SENT, error="", status=status)
        return
    reason = reason or f"It answered {status}."
    is_last = outbox.is_last(row) or status == http.client.GONE  # which says that the address won't come back
    logger.warning("a web-hook was not told", extra={"delivery": row.pk, "error": reason, "given_up": is_last})
    if is_last:
        outbox.end(row, state.FAILED, error=reason, status=status)
    else:
        Delivery.objects.filter(pk=row.pk).update(error=reason, status=status)


def _told(error: Exception, hook: WebHook) -> str:
    """Return why a message could not be sent; a tenant learns nothing of names inside the operator's network."""
    if hook.tenant_id is not None and isinstance(error, (ForbiddenHostError, socket.gaierror)):
        return "No public address answers for this name."
    return str(error)[:300] or type(error).__name__


def signed(identifier: str, body: str, secret: str) -> dict[str, str]:
    """Return the headers of the Standard Webhooks specification: id, time and signature."""
    at = str(int(clock.now().timestamp()))
    key = base64.b64decode(secret.removeprefix(_PREFIX))
    mac = hmac.new(key, f"{identifier}.{at}.{body}".encode(), hashlib.sha256).digest()
    return {
        "content-type": "application/json",
        "user-agent": "Sluice",
        "webhook-id": identifier,
        "webhook-timestamp": at,
        "webhook-signature": f"v1,{base64.b64encode(mac).decode()}",
    }


def post(url: str, body: bytes, headers: Mapping[str, str], networks: Sequence[Network]) -> int:
    """Post `body` and return the answer's status. All of it takes at most `SECONDS`, however slow the other side is."""
    parts = urlsplit(url)
    opened, late = list[socket.socket](), threading.Event()
    connection = _connection_of(parts.scheme)(parts.hostname or "", parts.port, timeout=SECONDS)
    connection._create_connection = lambda where, *_, **__: _connected(where, networks, opened, late)  # type: ignore[attr-defined] # noqa: SLF001 - http.client's own seam
    timer = threading.Timer(SECONDS, _cut, [opened, late])
    timer.start()
    try:
        path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        connection.request("POST", path, body, dict(headers))
        return connection.getresponse().status
    finally:
        timer.cancel()
        connection.close()
        for one in opened:
            one.close()


def _connection_of(scheme: str) -> Callable[..., http.client.HTTPConnection]:
    if scheme == "http":
        return http.client.HTTPConnection
    context = ssl.create_default_context()
    return lambda host, port, timeout: http.client.HTTPSConnection(host, port, timeout=timeout, context=context)


def _connected(
    where: tuple[str, int], networks: Sequence[Network], opened: list[socket.socket], late: threading.Event
) -> socket.socket:
    """Connect to the first address of a name that answers; one that may not be asked ends it.

    What is cut off when it takes too long is a duplicate: TLS takes the socket itself out of our hands.
    """
    failed: OSError | None = None
    for family, kind, protocol, _, address in socket.getaddrinfo(*where, type=socket.SOCK_STREAM):
        if refusal_of(ipaddress.ip_address(str(address[0]).partition("%")[0]), networks):
            raise ForbiddenHostError(f"{where[0]} stands at {address[0]}, where no web-hook may be")
        one = socket.socket(family, kind, protocol)
        one.settimeout(SECONDS)
        try:
            one.connect(address)
        except OSError as error:
            one.close()
            failed = error
            continue
        opened.append(one.dup())
        if late.is_set():
            one.close()
            raise TimeoutError("it took too long to connect")
        return one
    raise failed or OSError(f"{where[0]} has no address")


def _cut(opened: list[socket.socket], late: threading.Event) -> None:
    """Wake whoever waits for the other side."""
    late.set()
    for one in opened:
        with suppress(OSError):  # it is closed already
            one.shutdown(socket.SHUT_RDWR)
