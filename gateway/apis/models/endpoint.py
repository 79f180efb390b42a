"""``GET /v1/models`` and ``GET /v1/models/{id}``: what the key's plan may use, with context, abilities and prices."""

from __future__ import annotations

from base.http.asgi import Receive, Scope, Send, header_of, send_json
from gateway.apis.models.infos import ModelsQuery, info_of, page_of
from gateway.apis.models.wire import ModelCard, ModelList, Served, auto_card, model_card
from gateway.errors.bodies import ANTHROPIC
from gateway.errors.refusal import Refusal
from gateway.http.access import principal_of
from gateway.http.query import query_of
from gateway.http.request import require_method, runtime_of
from gateway.runtime.principal import Principal
from gateway.runtime.runtime import Runtime
from inference.types import Kind


async def models(scope: Scope, receive: Receive, send: Send) -> None:
    """List the models; to Anthropic's clients those that answer messages, as they know models."""
    require_method(scope, "GET")
    principal = await principal_of(scope)
    cards = await _cards(runtime_of(scope), principal)
    if header_of(scope, ANTHROPIC) is None:
        await send_json(send, 200, ModelList(cards))
        return
    chats = [card for card in cards if Kind.CHAT in card.kinds]
    await send_json(send, 200, page_of(chats, query_of(scope, ModelsQuery)))


async def model(scope: Scope, receive: Receive, send: Send) -> None:
    """Show one model."""
    require_method(scope, "GET")
    principal = await principal_of(scope)
    runtime = runtime_of(scope)
    asked = scope["url_route"]["kwargs"]["name"]  # percent-decoded by the server
    cards = await _cards(runtime, principal)
    name = runtime.snapshot.catalogue.named(asked)
    for card in cards:
        if card.id == name:
            await send_json(send, 200, card if header_of(scope, ANTHROPIC) is None else info_of(card))
            return
    raise Refusal(404, "model_not_found", f"The model '{asked[:200]}' does not exist or is not yours.", param="model")


async def _cards(runtime: Runtime, principal: Principal) -> list[ModelCard]:
    snapshot = await runtime.current_snapshot()
    cards = [
        model_card(entry, snapshot.prices.get(entry.rate_card), principal.multiplier_bp, _served(runtime, name))
        for name, entry in sorted(snapshot.catalogue.models.items())
        if principal.may_use(entry)
    ]
    return [auto_card(cards), *cards]


def _served(runtime: Runtime, model: str) -> Served:
    engines, catalogue = runtime.engines, runtime.snapshot.catalogue
    deployments, model = catalogue.deployments.get(model, ()), catalogue.engine_of(model)
    return Served(
        context=engines.context_of(model),
        max_output=engines.max_output_of(model),
        features=engines.features_of(model),
        sees=any(deployment.sees("data") for deployment in deployments),
    )
