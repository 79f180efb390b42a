"""``Idempotency-Key`` in the management API: what a POST made is made once, and its answer can be had again."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from hashlib import sha256
from typing import Any, Protocol
from uuid import UUID

from django.db import transaction
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request
from rest_framework.response import Response

from base.ids import uuid7
from base.sealing import seal, unseal
from gateway.durable import answers
from gateway.durable.answers import Claim, Stored
from gateway.durable.log import Head
from gateway.durable.replays import key_reused, not_known
from gateway.durable.room import ROOM
from gateway.http.durable import REPLAYED, check_key
from tenancy.models import Tenant
from tenancy.services.access import Access

Handler = Callable[..., Response]

_NOBODY = UUID(int=0)  # the claim's owner: it is made and filled in one transaction, so nobody ever sees it


class OfTenant(Protocol):
    """A view of one tenant, whose caller is known."""

    @property
    def access(self) -> Access: ...

    @property
    def tenant(self) -> Tenant: ...


def durable(handler: Handler) -> Handler:
    """Return the POST handler of a view, done once for each ``Idempotency-Key``, in one transaction with its answer.

    The answer, which may have a secret, is stored encrypted for 24 hours, for the same caller. A refusal changes
    nothing and isn't remembered.
    """

    @wraps(handler)
    def answered(view: OfTenant, request: Request, *args: Any, **kwargs: Any) -> Response:
        key = request.headers.get("Idempotency-Key")
        if key is None:
            return handler(view, request, *args, **kwargs)
        check_key(key)
        run, claim = uuid7(), Claim(view.tenant.id, f"management:{key}", _digest(view, request))
        answers.require_room(claim)
        with transaction.atomic():
            found = answers.claim(claim, run, _NOBODY)
            if found.is_other:
                raise key_reused()
            if found.is_stored:
                if (stored := answers.read(found.run)) is None:  # it is over in this moment
                    raise not_known()
                return _again(stored)
            response = handler(view, request, *args, **kwargs)
            if response.status_code >= 400:
                transaction.set_rollback(True)
            else:
                stored = _stored(response)
                answers.store(run, stored, {})
                ROOM.note(view.tenant.id, len(stored.body))
            return response

    return answered


def _digest(view: OfTenant, request: Request) -> bytes:
    """Return a digest of the request and of who sends it: another caller doesn't get what it may not see."""
    access = view.access
    caller = access.key or access.admin_key or access.user
    assert caller is not None, "who posts is a key or a user"
    digest = sha256()
    for part in (str(caller.id), request.method or "", request.get_full_path()):
        digest.update(part.encode() + b"\0")
    digest.update(request._request.body)  # noqa: SLF001 - DRF's documented way to Django's request
    return digest.digest()


def _stored(response: Response) -> Stored:
    named = tuple((name, value) for name, value in response.headers.items() if name.lower() == "cache-control")
    sealed = seal(JSONRenderer().render(response.data).decode())
    return Stored(Head(response.status_code, named, False), sealed.encode())


def _again(stored: Stored) -> Response:
    data = json.loads(unseal(stored.body.decode()))
    return Response(data, status=stored.head.status, headers={**dict(stored.head.headers), **REPLAYED})
