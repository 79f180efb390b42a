"""The documents' pages: public, with the reader's own address, key and models in the examples of those signed in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any, Concatenate, ParamSpec

from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import render
from django.template.loader import render_to_string
from django.utils.html import escape
from django.utils.safestring import SafeString, mark_safe
from django.views.decorators.http import require_safe

from control.api.data_plane import BASE
from control.console.catalogue import active_subscription, offers_of
from control.console.tenancy import Place, place_of
from control.docs.examples import MODEL_FOR
from control.docs.figures import panels_of
from control.docs.markdown import code_block, rendered
from control.docs.reference import Operation, by_group, operations
from control.docs.search import search
from control.docs.site import FILES, PAGES, ROOT, SECTIONS, beside
from control.operate.base import Desk
from gateway.runtime.data_plane import live_of
from inference.types import Kind
from routing.tasks import AUTO
from tenancy.models import APIKey, User

P = ParamSpec("P")


@dataclass(frozen=True)
class Reader:
    """The reader: the address that they came to, and the key and models that examples are written with."""

    request: HttpRequest
    place: Place | None

    @property
    def base(self) -> str:
        """The address that the reader came to, whose host Django has checked."""
        return f"{self.request.scheme}://{self.request.get_host()}"

    @cached_property
    def key(self) -> APIKey | None:
        """The key that the reader made last."""
        if self.place is None:
            return None
        mine = self.place.access.keys().filter(revoked_at=None, created_by=self.place.access.user)
        return mine.order_by("-id").first()

    @cached_property
    def models(self) -> Mapping[str, str]:
        """A model of each kind that the reader's plan includes, one that is ready where there is one."""
        if self.place is None:
            return {}
        live = live_of(self.request)
        offers = offers_of(live, live.catalogue(), active_subscription(self.place.tenant))
        found: dict[str, str] = {}
        for offer in sorted(offers, key=lambda offer: not offer.is_ready):
            for kind in offer.entry.kinds:
                found.setdefault(kind, offer.entry.name)
        return found

    def own(self, html: str) -> SafeString:
        """Return rendered HTML with the reader's base URL and models in it."""
        for kind in Kind:
            if (mark := MODEL_FOR.format(kind.value)) in html:
                html = html.replace(mark, escape(self.models.get(kind.value, AUTO)))
        return mark_safe(html.replace(BASE, escape(self.base)))  # noqa: S308 - rendered by us


View = Callable[Concatenate[HttpRequest, Reader, P], HttpResponse]


def docs_page(view: View[P]) -> Callable[..., HttpResponse]:
    """Give `view` its Reader, with the reader's tenant in scope until the answer is rendered."""

    @require_safe
    @wraps(view)
    def inner(request: HttpRequest, *args: P.args, **kwargs: P.kwargs) -> HttpResponse:
        place = place_of(request) if request.user.is_authenticated else None
        if place is None:
            return view(request, Reader(request, None), *args, **kwargs)
        with place.entered(request):
            return view(request, Reader(request, place), *args, **kwargs)

    return inner


def _shown(request: HttpRequest, reader: Reader, template: str, **more: Any) -> HttpResponse:
    context = {"page": "docs", "sections": SECTIONS, "reader": reader, **more}
    if reader.place is not None:
        context = reader.place.context(**context)
    elif isinstance(request.user, User) and request.user.is_staff:
        context = Desk(request.user).context(**context)
    return render(request, template, context)


@docs_page
def home(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Show where to begin."""
    return _shown(request, reader, "docs/home.html", is_home=True)


@docs_page
def page(request: HttpRequest, reader: Reader, slug: str) -> HttpResponse:
    """Show a document."""
    if slug not in PAGES:
        raise Http404
    section, found = PAGES[slug]
    made = rendered(slug)
    before, after = beside(found)
    head, end, body = made.html.partition("</h1>")
    return _shown(
        request,
        reader,
        "docs/page.html",
        slug=slug,
        section=section,
        title=made.title,
        head=mark_safe(head + end),  # noqa: S308 - rendered by us
        body=reader.own(body),
        headings=[heading for heading in made.headings if heading.level == 2],
        has_panel=bool(found.panel),
        panels=panels_of(request, reader.place, found.panel) if found.panel else [],
        before=before,
        after=after,
    )


@docs_page
def endpoints(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Show the list of the API's endpoints."""
    return _shown(request, reader, "docs/endpoints.html", groups=by_group())


@docs_page
def endpoint(request: HttpRequest, reader: Reader, identifier: str) -> HttpResponse:
    """Show an endpoint's page."""
    if (found := operations().get(identifier)) is None:
        raise Http404
    body = reader.own(_endpoint_html(found))
    group = next(ones for name, ones in by_group() if name == found.group)
    return _shown(request, reader, "docs/endpoint.html", operation=found, body=body, siblings=group)


_made: dict[str, str] = {}


def _endpoint_html(operation: Operation) -> str:
    """Return what of an endpoint's page is the same for everybody, rendered once."""
    if operation.id not in _made:
        blocks = [(one, code_block(one.code, one.language, f"example-{one.language}")) for one in operation.examples]
        context = {"operation": operation, "examples": blocks, "needed": operation.asked.needs}
        _made[operation.id] = render_to_string("docs/operation.html", context)
    return _made[operation.id]


@docs_page
def find(request: HttpRequest, reader: Reader) -> HttpResponse:
    """Show the parts of pages that have the words of `?q=`."""
    query = request.GET.get("q", "").strip()
    return _shown(request, reader, "docs/search.html", query=query, hits=search(query))


@require_safe
def file(request: HttpRequest, path: str) -> HttpResponse:
    """Send a file that pages link to."""
    if (kind := FILES.get(path)) is None:
        raise Http404
    response = HttpResponse((ROOT / path).read_bytes(), content_type=kind)
    if not kind.startswith("image/"):
        response.headers["Content-Disposition"] = f'attachment; filename="{path.rpartition("/")[2]}"'
    response.headers["Cache-Control"] = "public, max-age=3600"
    return response
