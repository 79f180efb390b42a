"""``POST /v1/tokenize`` and ``POST /v1/detokenize``."""

from __future__ import annotations

from base.http.asgi import Receive, Scope, Send, send_json
from gateway.apis.tokenize.wire import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from gateway.generation.counting import text_of, tokens_of
from gateway.http.access import note_model, principal_of
from gateway.http.request import read_body, request_id_of, require_method, runtime_of
from gateway.runtime.runtime import Runtime
from gateway.wire.decode import decode
from inference.types import Kind


async def tokenize(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the tokens of a prompt."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(TokenizeRequest, await read_body(scope, receive, principal.tenant))
    note_model(scope, request.model)
    runtime = runtime_of(scope)
    intent = request.intent(_kind_of(runtime, request.model))
    with_texts = bool(request.return_token_strs)
    special = request.add_special_tokens is not False
    found = await tokens_of(runtime, principal, intent, request_id_of(scope), special=special, with_texts=with_texts)
    tokens = found.tokens
    answer = TokenizeAnswer(len(tokens.ids), found.context, tokens.ids, tokens.texts or None)
    await send_json(send, 200, answer, found.headers)


async def detokenize(scope: Scope, receive: Receive, send: Send) -> None:
    """Answer with the text of tokens."""
    require_method(scope, "POST")
    principal = await principal_of(scope)
    request = decode(DetokenizeRequest, await read_body(scope, receive, principal.tenant))
    note_model(scope, request.model)
    runtime = runtime_of(scope)
    text, headers = await text_of(
        runtime, principal, request.intent(_kind_of(runtime, request.model)), request_id_of(scope)
    )
    await send_json(send, 200, DetokenizeAnswer(text), headers)


def _kind_of(runtime: Runtime, model: str) -> Kind:
    """What a request for that model's tokenizer is routed as: a chat, unless it makes nothing but vectors."""
    catalogue = runtime.snapshot.catalogue
    entry = catalogue.models.get(catalogue.named(model))
    return Kind.CHAT if entry is None or Kind.CHAT in entry.kinds else Kind.EMBEDDING
