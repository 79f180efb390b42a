"""The data plane's endpoints: what each takes, answers and is for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from gateway.apis.adapters.wire import AdapterDeleted, AdapterList, AdapterObject, AdapterRequest
from gateway.apis.batches.wire import BatchList, BatchObject, BatchQuery, BatchRequest
from gateway.apis.chat.wire import ChatChunk, ChatCompletion, ChatRequest
from gateway.apis.classification.wire import ClassifyAnswer, ClassifyRequest
from gateway.apis.completions.wire import Completion, CompletionRequest
from gateway.apis.embeddings.wire import EmbeddingAnswer, EmbeddingRequest
from gateway.apis.files.wire import FileDeleted, FileForm, FileList, FileObject, FileQuery
from gateway.apis.messages.message_object import (
    AnsweredMessage,
    MessageEvent,
    TokenCount,
)
from gateway.apis.messages.wire import CountTokensRequest, MessageRequest
from gateway.apis.models.wire import ModelCard, ModelList
from gateway.apis.ranking.wire import RerankAnswer, RerankRequest, ScoreAnswer, ScoreRequest
from gateway.apis.responses.response_object import Response
from gateway.apis.responses.stored_wire import DeletedResponse, InputItems, InputTokens
from gateway.apis.responses.wire import InputTokensRequest, ResponseRequest
from gateway.apis.tokenize.wire import DetokenizeAnswer, DetokenizeRequest, TokenizeAnswer, TokenizeRequest
from gateway.wire.usage import RequestUsage

Struct = type[msgspec.Struct]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One endpoint. `answers` by media type, None for a file, empty for one that says with its status alone whether it
    is ready, to anybody; `example` is a body that any installation with a chat
    model answers (those of a batch and an adapter need a file). `form` has the fields of an upload beside `file`,
    `query` the path's.
    """

    method: str
    path: str
    identifier: str
    summary: str
    description: str
    answers: Mapping[str, Struct | None]
    body: Struct | None = None
    example: Mapping[str, Any] | None = None
    parameter: str = ""
    form: Struct | None = None
    query: Struct | None = None


JSON, EVENTS = "application/json", "text/event-stream"
FORM, BYTES = "multipart/form-data", "application/octet-stream"
_QUESTION = "What is the capital of France?"
ENDPOINTS = (
    Endpoint(
        "post",
        "/v1/chat/completions",
        "chat_completions",
        "Create a chat completion",
        "Answers a conversation; with `stream` in chunks that end with `data: [DONE]`.",
        {JSON: ChatCompletion, EVENTS: ChatChunk},
        ChatRequest,
        {"model": "auto", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64},
    ),
    Endpoint(
        "post",
        "/v1/responses",
        "responses",
        "Create a response",
        "Answers a conversation; with `stream` in events, the last of which has the whole response. The same path is a"
        " websocket. With `store` it is kept, so that it can be read and continued.",
        {JSON: Response, EVENTS: Response},
        ResponseRequest,
        {"model": "auto", "input": _QUESTION, "max_output_tokens": 64},
    ),
    Endpoint(
        "post",
        "/v1/responses/input_tokens",
        "responses_input_tokens",
        "Count a response's input",
        "How many tokens the input of a response has where it would run. Nothing runs or is charged.",
        {JSON: InputTokens},
        InputTokensRequest,
        {"model": "auto", "input": _QUESTION},
    ),
    Endpoint(
        "get",
        "/v1/responses/{id}",
        "responses_show",
        "Show a stored response",
        "A response of this project that was stored. With `stream`, the events of one in the background, from behind"
        " number `starting_after` on.",
        {JSON: Response, EVENTS: Response},
        parameter="id",
    ),
    Endpoint(
        "delete",
        "/v1/responses/{id}",
        "responses_delete",
        "Delete a stored response",
        "Deletes it for good; what continues it can't be continued any more.",
        {JSON: DeletedResponse},
        parameter="id",
    ),
    Endpoint(
        "post",
        "/v1/responses/{id}/cancel",
        "responses_cancel",
        "Cancel a response in the background",
        "Ends it; what was generated is charged. One that has ended stays as it is.",
        {JSON: Response},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/responses/{id}/input_items",
        "responses_input_items",
        "List a stored response's input",
        "The conversation that it continues and its own input, newest first; `limit`, `order` and `after` page it.",
        {JSON: InputItems},
        parameter="id",
    ),
    Endpoint(
        "post",
        "/v1/messages",
        "messages",
        "Create a message",
        "Answers a conversation as Anthropic's Messages API does; with `stream` in events. The key may be sent as"
        " `x-api-key`; errors have that API's shape.",
        {JSON: AnsweredMessage, EVENTS: MessageEvent},
        MessageRequest,
        {"model": "auto", "messages": [{"role": "user", "content": _QUESTION}], "max_tokens": 64},
    ),
    Endpoint(
        "post",
        "/v1/messages/count_tokens",
        "messages_count_tokens",
        "Count a message's tokens",
        "Says how many tokens a prompt has where it would run now. Nothing runs and nothing is charged.",
        {JSON: TokenCount},
        CountTokensRequest,
        {"model": "auto", "messages": [{"role": "user", "content": _QUESTION}]},
    ),
    Endpoint(
        "post",
        "/v1/completions",
        "completions",
        "Create a completion",
        "Goes on from a text, without messages and chat template.",
        {JSON: Completion, EVENTS: Completion},
        CompletionRequest,
        {"model": "auto", "prompt": "The capital of France is", "max_tokens": 16},
    ),
    Endpoint(
        "post",
        "/v1/embeddings",
        "embeddings",
        "Create embeddings",
        "Answers with one vector for each input.",
        {JSON: EmbeddingAnswer},
        EmbeddingRequest,
        {"model": "auto", "input": ["A text", "Another one"]},
    ),
    Endpoint(
        "post",
        "/v1/rerank",
        "rerank",
        "Rank documents by a query",
        "Answers with the documents, the most relevant first, by a model that reads query and document at once, or by"
        " the angle between their embeddings.",
        {JSON: RerankAnswer},
        RerankRequest,
        {"model": "auto", "query": "Which one is a fruit?", "documents": ["A stone", "An apple"], "top_n": 1},
    ),
    Endpoint(
        "post",
        "/v1/score",
        "score",
        "Score pairs of texts",
        "Answers with one number for each pair: how well the second text matches the first.",
        {JSON: ScoreAnswer},
        ScoreRequest,
        {"model": "auto", "text_1": "A fruit", "text_2": ["A stone", "An apple"]},
    ),
    Endpoint(
        "post",
        "/v1/classify",
        "classify",
        "Classify texts",
        "Answers with the most probable label of each text, and how probable each is: of labels that the request names,"
        " where the model compares texts with any, or of the model's own.",
        {JSON: ClassifyAnswer},
        ClassifyRequest,
        {"model": "auto", "input": ["Where is my parcel?"], "labels": ["delivery", "billing"]},
    ),
    Endpoint(
        "post",
        "/v1/tokenize",
        "tokenize",
        "Tokenize a prompt",
        "Answers with the tokens of a prompt, or of messages in the model's chat template. Nothing runs and nothing is"
        " charged.",
        {JSON: TokenizeAnswer},
        TokenizeRequest,
        {"model": "auto", "prompt": _QUESTION},
    ),
    Endpoint(
        "post",
        "/v1/detokenize",
        "detokenize",
        "Detokenize",
        "Answers with the text of tokens.",
        {JSON: DetokenizeAnswer},
        DetokenizeRequest,
        {"model": "auto", "tokens": [72, 105]},
    ),
    Endpoint(
        "post",
        "/v1/files",
        "files_create",
        "Upload a file",
        "Stores a file for a batch: a request in each line.",
        {JSON: FileObject},
        form=FileForm,
    ),
    Endpoint(
        "get",
        "/v1/files",
        "files_list",
        "List files",
        "The files of the key's project, those that batches wrote included.",
        {JSON: FileList},
        query=FileQuery,
    ),
    Endpoint("get", "/v1/files/{id}", "files_show", "Show a file", "One file.", {JSON: FileObject}, parameter="id"),
    Endpoint(
        "delete",
        "/v1/files/{id}",
        "files_delete",
        "Delete a file",
        "Hides a file at once; its bytes go when no open batch reads them.",
        {JSON: FileDeleted},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/files/{id}/content",
        "files_content",
        "Download a file",
        "The file's bytes, or those that the header `range` asks for.",
        {BYTES: None},
        parameter="id",
    ),
    Endpoint(
        "post",
        "/v1/batches",
        "batches_create",
        "Create a batch",
        "Runs the requests of a file within 24 hours, at the models' rates for batches.",
        {JSON: BatchObject},
        BatchRequest,
        {"input_file_id": "file-id", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    ),
    Endpoint(
        "get",
        "/v1/batches",
        "batches_list",
        "List batches",
        "The batches of the key's project, the newest first.",
        {JSON: BatchList},
        query=BatchQuery,
    ),
    Endpoint(
        "get", "/v1/batches/{id}", "batches_show", "Show a batch", "One batch.", {JSON: BatchObject}, parameter="id"
    ),
    Endpoint(
        "post",
        "/v1/batches/{id}/cancel",
        "batches_cancel",
        "Cancel a batch",
        "Sends no more of its requests; those that are on their way are answered.",
        {JSON: BatchObject},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/models",
        "models_list",
        "List the models",
        "The models that the key's plan may use, with context and prices.",
        {JSON: ModelList},
    ),
    Endpoint(
        "get",
        "/v1/usage/{id}",
        "usage_of_request",
        "Show a request's usage",
        "What any request of the tenant used and cost, a cut stream included. The id is its `x-request-id`, or that of"
        " its answer (`chatcmpl-…`, `resp_…`).",
        {JSON: RequestUsage},
        parameter="id",
    ),
    Endpoint("get", "/health", "health", "Ask whether requests are served", "Needs no key.", {}),
    Endpoint(
        "post",
        "/v1/adapters",
        "adapters_create",
        "Make an adapter",
        "Makes a model of the tenant's own: `base` with a LoRA adapter in PEFT's format. `file_id` names its"
        " adapter_model.safetensors, uploaded with the purpose `adapter`; `config` is its adapter_config.json.",
        {JSON: AdapterObject},
        AdapterRequest,
        {"base": "a-model", "name": "tickets", "file_id": "file-0199", "config": {"peft_type": "LORA", "r": 8}},
    ),
    Endpoint(
        "get",
        "/v1/adapters",
        "adapters_list",
        "List adapters",
        "The tenant's own, each with whether it can be served.",
        {JSON: AdapterList},
    ),
    Endpoint(
        "get",
        "/v1/adapters/{id}",
        "adapters_show",
        "Show an adapter",
        "By the name of its model.",
        {JSON: AdapterObject},
        parameter="id",
    ),
    Endpoint(
        "delete",
        "/v1/adapters/{id}",
        "adapters_delete",
        "Delete an adapter",
        "Withdraws its model; requests that run with it end with it.",
        {JSON: AdapterDeleted},
        parameter="id",
    ),
    Endpoint(
        "get",
        "/v1/models/{id}",
        "models_show",
        "Show a model",
        "One model; slashes in its name stay as they are.",
        {JSON: ModelCard},
        parameter="id",
    ),
)
