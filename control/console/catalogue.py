"""The models of a tenant's plan as a page: what each is for and costs, and which `auto` takes for a task."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.views.decorators.http import require_http_methods, require_safe

from billing.models import Subscription
from control.console.snippets import Snippets, snippets_of
from control.console.tenancy import Place, tenant_page
from fleet.adapters import adapters_of, own_terms, remove_adapter
from gateway.apis.models.wire import ModelCard, Served, model_card
from gateway.generation.dry_run import Wanted, dry_run
from gateway.runtime.data_plane import Live, live_of
from inference.types import Kind
from routing.catalogue import Catalogue, ModelEntry
from routing.errors import RoutingError
from routing.hook import OwnTerms
from routing.models import Adapter
from routing.tasks import AUTO
from tenancy.models import Tenant


@dataclass(frozen=True, slots=True)
class Offer:
    """A model that the plan includes, its card with the plan's prices, and whether it answers now."""

    entry: ModelEntry
    card: ModelCard
    is_ready: bool


def active_subscription(tenant: Tenant) -> Subscription | None:
    """Return the tenant's subscription with its terms, and those that follow."""
    active = Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE)
    return active.select_related("version__plan", "next_version__plan").first()


def next_grant(subscription: Subscription | None) -> tuple[int, datetime | None]:
    """Return the credit in µcr that the next month brings, and when it begins."""
    if subscription is None or subscription.is_ending:
        return 0, None
    return (subscription.next_version or subscription.version).monthly_credits, subscription.granted_until


def offers_of(live: Live, catalogue: Catalogue, subscription: Subscription | None) -> list[Offer]:
    """Return the models that the plan includes, by name."""
    if subscription is None:
        return []
    version = subscription.version
    own = own_terms(version, subscription.tenant_id)
    prices = live.prices()
    return [
        Offer(
            entry,
            model_card(entry, prices.get(entry.rate_card), version.multiplier_bp, _served(live, catalogue, name)),
            any(not live.usable(replica.id) for replica in catalogue.replicas_of(name)),
        )
        for name, entry in sorted(catalogue.models.items())
        if (not version.allowed_models or name in version.allowed_models or entry.tenant is not None)
        and not entry.is_hidden_from(own)
        and not entry.own_obstacle(own)
    ]


def _served(live: Live, catalogue: Catalogue, model: str) -> Served:
    contexts = [live.context(replica.id) for replica in catalogue.replicas_of(model)]
    sees = any(deployment.sees("data") for deployment in catalogue.deployments.get(model, ()))
    return Served(max(filter(None, contexts), default=None), None, frozenset(), sees=sees)


_KINDS = {"embedding": Kind.EMBEDDING, "rerank": Kind.SCORE}  # of requests for a task that no chat is for
_WORDS = {
    Kind.CHAT: "chat",
    Kind.EMBEDDING: "embeddings",
    Kind.SCORE: "ranking",
    Kind.CLASSIFICATION: "classification",
}
_RATES = (("input", "in"), ("cache_read", "cached"), ("output", "out"))


@dataclass(frozen=True, slots=True)
class ModelLine:
    """A model as its row shows it; `adapter` is the tenant's own. `obstacle` is why nobody can serve an adapter, None
    where nobody has read it yet.
    """

    offer: Offer
    adapter: Adapter | None
    obstacle: str | None
    snippets: Snippets

    @property
    def kinds(self) -> str:
        """The kinds of requests that the model serves, in words."""
        entry = self.offer.entry
        words = [word for kind, word in _WORDS.items() if kind in entry.kinds]
        return ", ".join([*words, *(["chats that name labels"] if entry.answers_labels else [])])

    @property
    def state(self) -> str:
        """Whether it answers now."""
        if self.obstacle is None:
            return "loading"
        return "refused" if self.obstacle else "ready" if self.offer.is_ready else "not ready"

    @property
    def tone(self) -> str:
        """The tone of the state."""
        return {"ready": "good", "refused": "bad", "not ready": "warn"}.get(self.state, "")

    @property
    def prices(self) -> list[str]:
        """Its price in credits per million tokens, a line for each tier; none where nobody has priced it."""
        pricing = self.offer.card.pricing
        lines = []
        for tier in pricing.tiers if pricing else ():
            rates = tier.credits_per_million
            told = " · ".join(f"{rates[name]} {word}" for name, word in _RATES if name in rates)
            lines.append(f"from {tier.min_context:,} tokens on: {told}" if tier.min_context else told)
        if pricing and pricing.request_fee != "0":
            lines.append(f"{pricing.request_fee} a request")
        return lines


@dataclass(frozen=True, slots=True)
class TaskLine:
    """The model and rule that a request for `auto` with `task` gets now, or its `refusal`."""

    task: str
    model: str
    rule: str
    refusal: str = ""


@require_safe
@tenant_page
def models(request: HttpRequest, place: Place) -> HttpResponse:
    """Show the models of the plan, and where `auto` leads."""
    live, subscription = live_of(request), active_subscription(place.tenant)
    offers = offers_of(live, live.catalogue(), subscription)
    version = None if subscription is None else subscription.version
    found = adapters_of(own_terms(version, place.tenant.id))
    own = {adapter.model.name: adapter for adapter, _ in found}
    base_url = request.build_absolute_uri("/v1")
    lines = [
        ModelLine(
            one,
            own.get(one.entry.name),
            _obstacle(live, one.entry),
            snippets_of(one.entry.name, one.entry.kinds, base_url),
        )
        for one in offers
    ]
    tasks = list(_tasks(live, subscription)) if subscription is not None and offers else []
    return render(
        request,
        "console/models.html",
        place.context(
            page="models",
            lines=lines,
            tasks=tasks,
            unserved=[
                (adapter, why or "Its base is not served.")
                for adapter, why in found
                if adapter.model.name not in {one.entry.name for one in offers}
            ],
            version=version,
            base_url=base_url,
            auto=snippets_of(AUTO, (Kind.CHAT,), base_url),
        ),
    )


@require_http_methods(["GET", "HEAD", "POST"])
@tenant_page
def withdraw(request: HttpRequest, place: Place, pk: UUID) -> HttpResponse:
    """Ask whether to withdraw the tenant's own adapter; then end what runs with it and remove its tensors."""
    own = OwnTerms(tenant=place.tenant.id)
    adapter = next((one for one, _ in adapters_of(own) if one.id == pk), None)
    if adapter is None or not place.access.may("settings"):
        raise Http404
    if request.method == "POST":
        remove_adapter(adapter.model.name, own)
        messages.success(request, f"{adapter.model.name} is withdrawn; what ran with it ends with it.")
        return redirect(reverse("console-models") + place.query)
    return render(request, "console/adapter_withdraw.html", place.context(page="models", adapter=adapter))


def _obstacle(live: Live, entry: ModelEntry) -> str | None:
    served = live.catalogue().deployments.get(entry.name, ()) if entry.base else ()
    state = live.adapter(entry.base, served[0].adapter) if served else None
    return "" if state is None else state.obstacle


def _tasks(live: Live, subscription: Subscription) -> Iterator[TaskLine]:
    for task in settings.SLUICE_TASKS:
        wanted = Wanted(kind=_KINDS.get(task, Kind.CHAT).value, task=task)
        try:
            route = dry_run(live, subscription.version, wanted, subscription.tenant_id)
        except RoutingError as error:
            yield TaskLine(task, "", "", error.message)
        else:
            yield TaskLine(task, route.model, route.rule)
