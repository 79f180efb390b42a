"""Bases of the management API's views: the caller's tenant, in scope while the view runs, and pagination."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

from django.core import signing
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django_scopes import scope
from rest_framework.exceptions import ValidationError
from rest_framework.generics import GenericAPIView
from rest_framework.pagination import Cursor, CursorPagination
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.utils.urls import replace_query_param

from control.api.durable import durable
from control.api.throttles import AddressThrottle, CallerThrottle
from gateway.http.access import note_caller
from tenancy.models import Tenant
from tenancy.services.access import Access


class TenantView(GenericAPIView[Any]):
    """A view of one tenant. `reads` and `writes` name the capability that safe and other methods need."""

    reads: str = "read"
    writes: str | None = None
    throttle_classes = [CallerThrottle]

    def __init_subclass__(cls, **kwargs: Any) -> None:
        """Keep the answers of POSTs under an idempotency key."""
        super().__init_subclass__(**kwargs)
        if (post := cls.__dict__.get("post")) is not None:
            setattr(cls, "post", durable(post))  # noqa: B010 - the type checker knows no `post` of all views

    def dispatch(self, request: HttpRequest, *args: Any, **kwargs: Any) -> HttpResponseBase:
        """Answer, and leave the tenant's scope even after an error."""
        with ExitStack() as self._scopes:
            response: HttpResponseBase = super().dispatch(request, *args, **kwargs)
            return response

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        """Authenticate, check permissions and throttles, then enter the tenant's scope."""
        by_address = AddressThrottle()
        if not by_address.allow_request(request, self):
            self.throttled(request, by_address.wait() or 0)
        super().initial(request, *args, **kwargs)
        key, user = self.access.key, self.access.user
        scope_of_request = getattr(request._request, "scope", {})  # noqa: SLF001 - DRF's documented way to Django's
        ids = {"key": key.id if key else None, "user": user.id if user else None}
        note_caller(scope_of_request, tenant=self.tenant.id, **ids)
        self._scopes.enter_context(scope(tenant=self.tenant))

    @property
    def access(self) -> Access:
        """The caller's access; only after `initial`."""
        access = self.request.auth
        assert isinstance(access, Access)
        return access

    @property
    def tenant(self) -> Tenant:
        """The tenant that the view is about."""
        return self.access.tenant


class Page(CursorPagination):
    """Pages by cursor: ``{"data": […], "next": url, "previous": url}``; `limit` asks for 1 to 200 rows.

    Cursors are signed for their list, since their content is compared with a column unchecked.
    """

    page_size = 50
    max_page_size = 200
    page_size_query_param = "limit"

    def encode_cursor(self, cursor: Cursor) -> str:
        """Return the address of the page at `cursor`."""
        assert self.base_url is not None
        signed = signing.dumps(list(cursor), salt=_salt_of(self.base_url))
        return replace_query_param(self.base_url, self.cursor_query_param, signed)

    def decode_cursor(self, request: Request) -> Cursor | None:
        """Return the cursor that was asked for, if any; 400 for one that isn't of this list."""
        signed = request.query_params.get(self.cursor_query_param)
        if signed is None:
            return None
        try:
            return Cursor(*signing.loads(signed, salt=_salt_of(request.path)))
        except signing.BadSignature:
            raise ValidationError({"cursor": "This cursor is not one of ours."}) from None

    def get_paginated_response(self, data: Any) -> Response:
        """Return one page."""
        return Response({"data": data, "next": self.get_next_link(), "previous": self.get_previous_link()})

    def get_paginated_response_schema(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Describe one page."""
        link = {"type": "string", "format": "uri", "nullable": True}
        properties = {"data": schema, "next": link, "previous": link}
        return {"type": "object", "required": ["data", "next", "previous"], "properties": properties}


def _salt_of(address: str) -> str:
    return f"gateway.api.base:{urlsplit(address).path}"


class NewestFirst(Page):
    """Pages in the order of making: ids are uuid7, whose order is the same on both databases to the last digit."""

    ordering = ("-id",)


class ByName(Page):
    """Pages in alphabetical order."""

    ordering = ("name", "id")
