"""The ASGI application: which path goes to which endpoint of the data plane; Django answers everything else."""

from __future__ import annotations

import os
from typing import cast

from django.conf import settings
from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django_application = get_asgi_application()

from base.http.asgi import Application  # noqa: E402
from gateway.apis.adapters.endpoint import adapter, adapters  # noqa: E402
from gateway.apis.batches.endpoint import batch, batches, cancel  # noqa: E402
from gateway.apis.chat.endpoint import chat_completions  # noqa: E402
from gateway.apis.classification.endpoint import classify  # noqa: E402
from gateway.apis.completions.endpoint import completions  # noqa: E402
from gateway.apis.embeddings.endpoint import embeddings  # noqa: E402
from gateway.apis.files.endpoint import file, file_content, files  # noqa: E402
from gateway.apis.messages.endpoint import count_tokens, messages  # noqa: E402
from gateway.apis.models.endpoint import model, models  # noqa: E402
from gateway.apis.ranking.endpoint import rerank, score  # noqa: E402
from gateway.apis.responses.endpoint import input_tokens, responses  # noqa: E402
from gateway.apis.responses.stored_endpoint import cancel_response, input_items, stored_response  # noqa: E402
from gateway.apis.tokenize.endpoint import detokenize, tokenize  # noqa: E402
from gateway.apis.usage.endpoint import usage  # noqa: E402
from gateway.apis.websocket.endpoint import (  # noqa: E402 - models need Django to be set up
    MOST_SOCKETS,
    ResponsesConsumer,
    too_many_sockets,
)
from gateway.concurrency.caps import Cap  # noqa: E402
from gateway.errors.bodies import anthropic_error  # noqa: E402
from gateway.http.bounds import bounded, counted_by_address, limited_by_address, paced_by_address  # noqa: E402
from gateway.http.cors import with_cors  # noqa: E402
from gateway.http.guard import guarded  # noqa: E402
from gateway.http.kept import kept  # noqa: E402
from gateway.http.probes import health, probe_paths  # noqa: E402
from gateway.http.routes import (  # noqa: E402
    NEAR_THE_API,
    path,
    re_path,
    refuse_websocket,
    routed_by_path,
    routed_by_type,
    unknown_endpoint,
)
from gateway.lifespan import lifespan  # noqa: E402
from tenancy.services import scopes  # noqa: E402

# On a port of their own where SLUICE_METRICS_PORT is set, else beside the other paths.
_own_port = [*probe_paths(is_own_port=True), re_path(r"", unknown_endpoint, "unknown")]
probes = guarded(bounded(routed_by_path(_own_port)))

_control_plane = paced_by_address(counted_by_address(cast("Application", django_application)))

# Each path with its endpoint and what a key needs for it (None: it asks for no key). Whatever takes POSTs is `kept`;
# uploads, which are too large to be read first, keep their answers themselves. Tokens aren't: they are large,
# cost nothing, and are the same when they are asked for again.
http_routes = [
    path("v1/chat/completions", kept(chat_completions), scopes.CHAT),
    path("v1/completions", kept(completions), scopes.COMPLETIONS),
    path("v1/responses", kept(responses), scopes.RESPONSES),
    path("v1/responses/input_tokens", kept(input_tokens), scopes.RESPONSES),
    path("v1/responses/<str:response_id>", stored_response, scopes.RESPONSES, "/v1/responses/{id}"),
    path("v1/responses/<str:response_id>/cancel", kept(cancel_response), scopes.RESPONSES, "/v1/responses/{id}/cancel"),
    path("v1/responses/<str:response_id>/input_items", input_items, scopes.RESPONSES, "/v1/responses/{id}/input_items"),
    path("v1/embeddings", kept(embeddings), scopes.EMBEDDINGS),
    path("v1/messages", kept(messages), scopes.MESSAGES, error_body=anthropic_error),
    path("v1/messages/count_tokens", kept(count_tokens), scopes.MESSAGES, error_body=anthropic_error),
    path("v1/tokenize", tokenize, scopes.TOKENIZE),
    path("v1/detokenize", detokenize, scopes.TOKENIZE),
    path("v1/rerank", kept(rerank), scopes.RANKING),
    path("v1/classify", kept(classify), scopes.CLASSIFICATION),
    path("v1/score", kept(score), scopes.RANKING),
    path("v1/models", models, scopes.MODELS),
    path("v1/models/<path:name>", model, scopes.MODELS, "/v1/models/{id}"),
    path("v1/files", files, scopes.FILES),
    path("v1/files/<str:file_id>", file, scopes.FILES, "/v1/files/{id}"),
    path("v1/files/<str:file_id>/content", file_content, scopes.FILES, "/v1/files/{id}/content"),
    path("v1/batches", kept(batches), scopes.BATCHES),
    path("v1/batches/<str:batch_id>", batch, scopes.BATCHES, "/v1/batches/{id}"),
    path("v1/batches/<str:batch_id>/cancel", kept(cancel), scopes.BATCHES, "/v1/batches/{id}/cancel"),
    path("v1/adapters", kept(adapters), scopes.ADAPTERS),
    path("v1/adapters/<path:name>", adapter, scopes.ADAPTERS, "/v1/adapters/{id}"),
    path("v1/usage/<str:request_id>", usage, scopes.USAGE, "/v1/usage/{id}"),
    re_path(r"^v1/organization/", _control_plane, "/v1/organization/*"),
    re_path(r"^v1(/|$)", unknown_endpoint, "/v1/*"),
    path("health", health, None),
    *([] if settings.SLUICE_METRICS_PORT else probe_paths(is_own_port=False)),
    re_path(NEAR_THE_API, unknown_endpoint, "near"),
    re_path(r"", _control_plane, "control"),
]
websocket_routes = [
    path(
        "v1/responses",
        ResponsesConsumer.as_asgi(sockets=Cap(MOST_SOCKETS, too_many_sockets)),
        scopes.RESPONSES,
    ),
    re_path(r"", refuse_websocket, "/v1/*"),
]
router = routed_by_type(
    {"lifespan": lifespan, "http": routed_by_path(http_routes), "websocket": routed_by_path(websocket_routes)}
)

application = with_cors(
    guarded(bounded(limited_by_address(router) if settings.SLUICE_TRUST_PROXY else router)),
    settings.SLUICE_CORS_ORIGINS,
)
