"""The models of a conformance run: deterministic ones in the gateway's own process, each with its script."""

from __future__ import annotations

from typing import Any

from billing.services import cards
from routing.services.catalogue import add_model

CITIES = ("Oslo", "Bergen", "Narvik", "Molde", "Hamar")


def call(name: str, arguments: str, said: str = "") -> str:
    """What a model writes that calls a function."""
    return f'{said}<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


def _weather(city: str, said: str = "") -> str:
    return call("weather", f'{{"city": "{city}"}}', said)


OSLO = '{"name": "Oslo", "people": 7}'
# A script's answer is chosen by the number of tools' results in the messages. What `guides` accepts schemas, and its
# text fits the clients' ones.
MODELS: dict[str, dict[str, Any]] = {
    "talks": {"text": "Oslo lies by the sea.", "cached": 0.5},
    "talks-long": {"tokens": 400, "delay": 0.02},
    "calls": {"script": [_weather("Oslo", "Let me look. "), "It rains in Oslo."], "guides": True},
    "calls-two": {"script": [_weather("Oslo") + _weather("Bergen"), *["It rains in both."] * 2], "guides": True},
    "calls-five": {"script": [*map(_weather, CITIES), "It rains everywhere."], "guides": True},
    "calls-then-json": {"script": [_weather("Oslo"), OSLO], "guides": True},
    "hands-over": {"script": [call("transfer_to_geographer", "{}"), "Oslo lies by the sea."], "guides": True},
    "writes-json": {"text": OSLO, "guides": True},
    "thinks": {"text": "<think> Where is it? </think> Oslo lies by the sea.", "thinks": True, "guides": True},
    "fails": {"text": "Oslo lies by the sea.", "error_at": 3},
    # Libraries that ask for structured output by a function call the function as they like.
    "calls-City": {"script": [call("City", OSLO)], "guides": True},
    "calls-PartialCity": {"script": [call("PartialCity", OSLO)], "guides": True},
    "calls-final_result": {"script": [call("final_result", OSLO)], "guides": True},
    "calls-final_answer": {"script": [call("final_answer", '{"answer": "It rains."}')], "guides": True},
}
EMBEDDER = "embeds"
CARD = "conformance"


def add_models() -> None:
    """Publish them, at a price."""
    cards.publish(CARD, {0: {"input": 3_000_000, "cache_read": 700_000, "output": 11_000_000}})
    for name, options in MODELS.items():
        _add(name, "chat", {"text": "", **options})
    _add(EMBEDDER, "embedding", {"vector_width": 64})


def _add(name: str, kind: str, options: dict[str, Any]) -> None:
    options = {**options, "model": name, "kinds": [kind], "max_context": 32_768}
    add_model(
        name=name,
        kinds=[kind],
        context_length=32_768,
        rate_card=CARD,
        source="",
        backend="fake",
        options=options,
    )
