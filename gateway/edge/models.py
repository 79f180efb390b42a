"""``GET /v1/models`` and ``GET /v1/models/{id}``: what the key's plan may use, with context and prices."""

from __future__ import annotations

from gateway.edge.access import principal_of
from gateway.edge.http import Receive, Scope, Send, require_method, runtime_of, send_json
from gateway.edge.wire.models import ModelCard, ModelList, auto_card, model_card
from gateway.errors.refusal import Refusal
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Runtime


async def models(scope: Scope, receive: Receive, send: Send) -> None:
    """List the models."""
    require_method(scope, "GET")
    principal = await principal_of(scope)
    await send_json(send, 200, ModelList(await _cards(runtime_of(scope), principal)))


async def model(scope: Scope, receive: Receive, send: Send) -> None:
    """Show one model."""
    require_method(scope, "GET")
    principal = await principal_of(scope)
    name = scope["url_route"]["kwargs"]["name"]  # percent-decoded by the server
    for card in await _cards(runtime_of(scope), principal):
        if card.id == name:
            await send_json(send, 200, card)
            return
    raise Refusal(404, "model_not_found", f"The model '{name[:200]}' does not exist or is not yours.", param="model")


async def _cards(runtime: Runtime, principal: Principal) -> list[ModelCard]:
    snapshot = await runtime.current_snapshot()
    cards = [
        model_card(entry, snapshot.prices.get(entry.rate_card), principal.multiplier_bp)
        for name, entry in sorted(snapshot.catalogue.models.items())
        if not principal.allowed_models or name in principal.allowed_models
    ]
    for card in cards:
        served = runtime.engines.context_of(card.id)
        if served is not None:  # the engine may have fitted less than the catalogue says
            card.context_length = min(card.context_length, served)
    longest = max((card.context_length for card in cards), default=0)
    return [auto_card(longest), *cards]
