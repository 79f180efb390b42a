"""``POST /v1/tokenize`` and ``POST /v1/detokenize``. Their answers aren't kept under an idempotency key: they are
large, cost nothing, and are the same when they are asked for again.
"""

from __future__ import annotations

from base.http import send_json
from gateway.apis.shared.answer import QUESTION
from gateway.apis.tokenize.wire import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from gateway.generation.counting import text_of, tokens_of
from gateway.http.endpoint import Call, Work, endpoint
from gateway.runtime.runtime import Runtime
from inference.types import Kind


@endpoint(
    "POST",
    "/v1/tokenize",
    scope="tokenize",
    summary="Tokenize a prompt",
    takes=TokenizeRequest,
    gives=TokenizeAnswer,
    work=Work.COUNTS,
    keeps=False,
    example={"model": "auto", "prompt": QUESTION},
)
async def tokenize(call: Call[TokenizeRequest]) -> None:
    """Answers with the tokens of a prompt, or of messages in the model's chat template. Nothing runs and nothing is
    charged.
    """
    request, runtime = call.request, call.runtime
    intent = request.intent(_kind_of(runtime, request.model))
    with_texts = bool(request.return_token_strs)
    special = request.add_special_tokens is not False
    found = await tokens_of(runtime, call.principal, intent, call.id, special=special, with_texts=with_texts)
    tokens = found.tokens
    answer = TokenizeAnswer(len(tokens.ids), found.context, tokens.ids, tokens.texts or None)
    await send_json(call.send, 200, answer, found.headers)


@endpoint(
    "POST",
    "/v1/detokenize",
    scope="tokenize",
    summary="Detokenize",
    takes=DetokenizeRequest,
    gives=DetokenizeAnswer,
    work=Work.COUNTS,
    keeps=False,
    example={"model": "auto", "tokens": [72, 105]},
)
async def detokenize(call: Call[DetokenizeRequest]) -> None:
    """Answers with the text of tokens."""
    intent = call.request.intent(_kind_of(call.runtime, call.request.model))
    text, headers = await text_of(call.runtime, call.principal, intent, call.id)
    await send_json(call.send, 200, DetokenizeAnswer(text), headers)


def _kind_of(runtime: Runtime, model: str) -> Kind:
    """Return the kind of a request for the model's tokenizer: embedding for a model without chats, else chat."""
    catalogue = runtime.catalogue.snapshot.catalogue
    entry = catalogue.models.get(catalogue.named(model))
    return Kind.CHAT if entry is None or Kind.CHAT in entry.kinds else Kind.EMBEDDING
