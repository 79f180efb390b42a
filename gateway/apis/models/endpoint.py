"""``GET /v1/models`` and ``GET /v1/models/{id}``: what the key's plan may use, with context, abilities and prices."""

from __future__ import annotations

from base.http import header_of, send_json
from gateway.apis.models.infos import ModelsQuery, info_of, page_of
from gateway.apis.models.wire import ModelCard, ModelList, Served, auto_card, model_card
from gateway.errors.refusal import ANTHROPIC, Refusal
from gateway.http.endpoint import Call, endpoint
from gateway.http.request import query_of
from gateway.runtime.principals import Principal
from gateway.runtime.runtime import Runtime
from inference.types import Kind


@endpoint("GET", "/v1/models", scope="models.read", summary="List the models", gives=ModelList)
async def models_list(call: Call[None]) -> ModelList | None:
    """The models that the key's plan may use, with context and prices."""
    cards = await _cards(call.runtime, call.principal)
    if header_of(call.scope, ANTHROPIC) is None:
        return ModelList(cards)
    chats = [card for card in cards if Kind.CHAT in card.kinds]
    await send_json(call.send, 200, page_of(chats, query_of(call.scope, ModelsQuery)))
    return None


@endpoint("GET", "/v1/models/{id:path}", scope="models.read", summary="Show a model", gives=ModelCard)
async def models_show(call: Call[None]) -> ModelCard | None:
    """One model; slashes in its name stay as they are."""
    cards = await _cards(call.runtime, call.principal)
    name = call.runtime.catalogue.snapshot.catalogue.named(call.named)
    card = next((card for card in cards if card.id == name), None)
    if card is None:
        text = f"The model '{call.named[:200]}' does not exist or is not yours."
        raise Refusal(404, "model_not_found", text, param="model")
    if header_of(call.scope, ANTHROPIC) is None:
        return card
    await send_json(call.send, 200, info_of(card))
    return None


async def _cards(runtime: Runtime, principal: Principal) -> list[ModelCard]:
    snapshot = await runtime.catalogue.current()
    cards = [
        model_card(entry, snapshot.prices.get(entry.rate_card), principal.multiplier_bp, _served(runtime, name))
        for name, entry in sorted(snapshot.catalogue.models.items())
        if principal.may_use(entry)
    ]
    return [auto_card(cards), *cards]


def _served(runtime: Runtime, model: str) -> Served:
    engines, catalogue = runtime.engines, runtime.catalogue.snapshot.catalogue
    deployments, model = catalogue.deployments.get(model, ()), catalogue.engine_of(model)
    return Served(
        context=engines.context_of(model),
        max_output=engines.max_output_of(model),
        features=engines.features_of(model),
        sees=any(deployment.sees("data") for deployment in deployments),
    )
