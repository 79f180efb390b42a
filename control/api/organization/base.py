"""Bases of the administration API: its keys, its lists, its moments, and what isn't served."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any
from uuid import UUID

from django.contrib.auth.models import AnonymousUser
from django.db.models import QuerySet
from django.http import Http404
from rest_framework.exceptions import AuthenticationFailed, ValidationError
from rest_framework.fields import CharField
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from control.api.authentication import AdminKeyAuthentication, bearer
from control.api.base import TenantView
from gateway.errors.refusal import Refusal
from tenancy.services.access import Access

Body = dict[str, Any]


class OnlyAdminKeys(AdminKeyAuthentication):
    """An admin key, and no other bearer token."""

    def authenticate(self, request: Request) -> tuple[AnonymousUser, Access] | None:
        """Return the key's tenant as Access, or None where there is no bearer token."""
        found = super().authenticate(request)
        if found is None and bearer(request) is not None:
            message = "This is no admin API key: /v1/organization takes no other keys."
            raise AuthenticationFailed(message, code="invalid_api_key")
        return found


class OrganizationView(TenantView):
    """A view of the administration API, for admin keys alone."""

    authentication_classes = [OnlyAdminKeys]
    reads = "members"
    writes = "members"
    schema = None  # OpenAI documents it
    metadata_class = None  # no OPTIONS, which would be answered from serializers, of which there are none

    def body(self, *names: str) -> Body:
        """Return the fields of the request's body; raise a 400 Refusal for one that isn't among `names`."""
        data = self.request.data
        if not isinstance(data, Mapping):
            raise Refusal(400, "invalid_value", "Send a JSON object.")
        given = {name: value for name, value in data.items() if value is not None}
        for name in given:
            if name not in names:
                shown = str(name)[:60].encode(errors="replace").decode()
                raise Refusal(400, "unsupported_parameter", f"'{shown}' is not supported here.", param=shown)
        return given

    def text(self, data: Body, name: str, most: int = 120) -> str:
        """Return a field that must be a text of at most `most` characters."""
        value = data.get(name)
        if not isinstance(value, str) or not value.strip():
            code = "missing_required_parameter" if value is None else "invalid_value"
            raise Refusal(400, code, f"'{name}' must be a text.", param=name)
        try:
            return str(CharField(max_length=most, trim_whitespace=False).run_validation(value))
        except ValidationError as error:  # it is too long, or has what no column takes: NUL, half of a character
            raise ValidationError({name: error.detail}) from None

    def number(self, name: str, default: int | None, *, least: int, most: int) -> int:
        """Return a parameter of the address that is a whole number; without a default it must be there."""
        given = self.request.query_params.get(name)
        if given is None and default is not None:
            return default
        if given is None:
            raise Refusal(400, "missing_required_parameter", f"'{name}' is missing.", param=name)
        is_number = given.isascii() and given.isdigit() and len(given) <= 20
        if not is_number or not least <= int(given) <= most:
            raise Refusal(400, "invalid_value", f"'{name}' is a whole number from {least} to {most}.", param=name)
        return int(given)

    def several(self, name: str) -> list[str]:
        """Return a parameter that may be repeated, also in the spelling with brackets."""
        found = [*self.request.query_params.getlist(name), *self.request.query_params.getlist(f"{name}[]")]
        if any("\0" in text for text in found):  # no column holds it, and not every database can be asked for it
            raise Refusal(400, "invalid_value", f"'{name}' has a NUL character.", param=name)
        return found

    def page(self, rows: QuerySet[Any], shown: Callable[[Any], Body], *, order: str = "id") -> Response:
        """Return one page of `rows` in the order of a unique column, behind the id `after`."""
        limit = self.number("limit", 20, least=1, most=100)
        column, later = order.removeprefix("-"), "lt" if order.startswith("-") else "gt"
        after = self.request.query_params.get("after")
        if after is not None:
            rows = rows.filter(**{f"{column}__{later}": identifier(after, "after")})
        found = list(rows.order_by(order)[: limit + 1])
        data = [shown(row) for row in found[:limit]]
        ends = (data[0]["id"], data[-1]["id"]) if data else (None, None)
        page = {"object": "list", "data": data, "first_id": ends[0], "last_id": ends[1]}
        return Response({**page, "has_more": len(found) > limit})


def identifier(text: str, name: str) -> str:
    """Return a text that is an id; raise a 400 Refusal naming the parameter otherwise."""
    try:
        return str(UUID(text))
    except ValueError:
        raise Refusal(400, "invalid_value", f"'{name}' is no id of ours.", param=name) from None


def unix(moment: datetime | None) -> int | None:
    """Return a moment in whole seconds since 1970."""
    return None if moment is None else int(moment.timestamp())


class _RefusingView(APIView):
    authentication_classes = [OnlyAdminKeys]
    permission_classes = []
    schema = None

    def dispatch(self, request: Any, *args: Any, **kwargs: Any) -> Any:
        """Refuse any method."""
        self.http_method_names = [str(request.method).lower()]
        setattr(self, str(request.method).lower(), self._refuse)
        return super().dispatch(request, *args, **kwargs)

    def _refuse(self, request: Request, **given: str) -> Response:
        if not isinstance(request.auth, Access):
            raise AuthenticationFailed("Send an admin API key.", code="invalid_api_key")
        raise self.refusal(request, **given)

    def refusal(self, request: Request, **given: str) -> Exception:
        """Return the error for the request; `given` has the values in its path."""
        raise NotImplementedError


class NoSuchView(_RefusingView):
    """A path that is served, but with an id of another form than Sluice's: 404, as for an unknown id."""

    def refusal(self, request: Request, **given: str) -> Exception:
        """Return the 404."""
        return Http404()


class NotServedView(_RefusingView):
    """Any other path of OpenAI's administration API, which Sluice lacks: 501, by name."""

    def refusal(self, request: Request, **given: str) -> Exception:
        """Return the 501."""
        at = f"{request.method} /v1/organization/{given['path'][:120]}"
        message = f"{at} is not served: Sluice has nothing that it maps to."
        return Refusal(501, "not_supported", message, should_retry=False)
