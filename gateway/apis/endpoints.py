"""The endpoints of the API, in the order of the documentation."""

from __future__ import annotations

from gateway.apis.adapters.endpoint import adapters_create, adapters_delete, adapters_list, adapters_show
from gateway.apis.batches.endpoint import batches_cancel, batches_create, batches_list, batches_show
from gateway.apis.chat.endpoint import chat_completions, chat_completions_quote
from gateway.apis.classification.endpoint import classify
from gateway.apis.completions.endpoint import completions, completions_quote
from gateway.apis.embeddings.endpoint import embeddings, embeddings_quote
from gateway.apis.files.endpoint import files_content, files_create, files_delete, files_list, files_show
from gateway.apis.messages.endpoint import messages, messages_count_tokens, messages_quote
from gateway.apis.models.endpoint import models_list, models_show
from gateway.apis.ranking.endpoint import rerank, score
from gateway.apis.responses.endpoint import responses, responses_input_tokens, responses_quote
from gateway.apis.responses.stored_endpoint import (
    responses_cancel,
    responses_delete,
    responses_input_items,
    responses_show,
)
from gateway.apis.tokenize.endpoint import detokenize, tokenize
from gateway.apis.usage.endpoint import key_show, usage_of_request

ENDPOINTS = (
    chat_completions,
    chat_completions_quote,
    responses,
    responses_input_tokens,
    responses_quote,
    responses_show,
    responses_delete,
    responses_cancel,
    responses_input_items,
    messages,
    messages_count_tokens,
    messages_quote,
    completions,
    completions_quote,
    embeddings,
    embeddings_quote,
    rerank,
    score,
    classify,
    tokenize,
    detokenize,
    files_create,
    files_list,
    files_show,
    files_delete,
    files_content,
    batches_create,
    batches_list,
    batches_show,
    batches_cancel,
    models_list,
    models_show,
    adapters_create,
    adapters_list,
    adapters_show,
    adapters_delete,
    usage_of_request,
    key_show,
)
POSTS = {one.path: one for one in ENDPOINTS if one.method == "POST"}
"""The POSTs by path; a batch names one."""
