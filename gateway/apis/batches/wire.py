"""Batches: the request that makes one, the object that clients see, and lists of them."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gateway.apis.files.wire import ExpirySeconds, Identifier, name_of_file
from gateway.batches.models import Batch
from gateway.wire.common import Metadata
from gateway.wire.usage import CompletionDetails, PromptDetails, credits_text

PREFIX = "batch_"

Endpoint = Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]


class OutputExpiry(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """When a batch's output and error file expire."""

    anchor: Literal["created_at"]
    seconds: ExpirySeconds


class BatchRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/batches``."""

    input_file_id: Identifier
    endpoint: Endpoint
    completion_window: Literal["24h"]
    metadata: Metadata | None = None
    output_expires_after: OutputExpiry | None = None


class BatchError(msgspec.Struct):
    """A fault of a line of the input file, or (without line) of the file."""

    code: str
    line: int | None
    message: str
    param: str | None


class BatchErrors(msgspec.Struct, kw_only=True):
    """Why a batch failed."""

    object: Literal["list"] = "list"
    data: list[BatchError]


class BatchCounts(msgspec.Struct):
    """Its requests, and how many of them were answered or will not be."""

    total: int
    completed: int
    failed: int


class BatchUsage(msgspec.Struct, kw_only=True):
    """The usage and cost of its answers so far."""

    input_tokens: int
    input_tokens_details: PromptDetails
    output_tokens: int
    output_tokens_details: CompletionDetails
    total_tokens: int
    credits: str | None
    credits_micro: int


class BatchObject(msgspec.Struct, kw_only=True):
    """One batch. `model` is that of all its requests, where they have the same."""

    id: str
    object: Literal["batch"] = "batch"
    endpoint: str
    model: str | None
    errors: BatchErrors | None
    input_file_id: str
    completion_window: str
    status: str
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    expires_at: int
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    expired_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    request_counts: BatchCounts
    usage: BatchUsage
    metadata: dict[str, Any] | None


class BatchList(msgspec.Struct, kw_only=True):
    """A page of batches."""

    object: Literal["list"] = "list"
    data: list[BatchObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class BatchQuery(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``GET /v1/batches``."""

    after: Identifier | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 20


def batch_object(batch: Batch) -> BatchObject:
    """Return the batch as clients see it."""
    return BatchObject(
        id=f"{PREFIX}{batch.id.hex}",
        endpoint=batch.endpoint,
        model=batch.model or None,
        errors=BatchErrors(data=[BatchError(**error) for error in batch.errors]) if batch.errors else None,
        input_file_id=name_of_file(batch.input_file.hex),
        completion_window=batch.completion_window,
        status=batch.status,
        output_file_id=None if batch.output_file is None else name_of_file(batch.output_file.hex),
        error_file_id=None if batch.error_file is None else name_of_file(batch.error_file.hex),
        created_at=int(batch.created_at.timestamp()),
        in_progress_at=_seconds(batch.in_progress_at),
        expires_at=int(batch.expires_at.timestamp()),
        finalizing_at=_seconds(batch.finalizing_at),
        completed_at=_seconds(batch.completed_at),
        failed_at=_seconds(batch.failed_at),
        expired_at=_seconds(batch.expired_at),
        cancelling_at=_seconds(batch.cancelling_at),
        cancelled_at=_seconds(batch.cancelled_at),
        request_counts=BatchCounts(batch.total, batch.completed, batch.failed),
        usage=BatchUsage(
            input_tokens=batch.input_tokens,
            input_tokens_details=PromptDetails(batch.cached_tokens),
            output_tokens=batch.output_tokens,
            output_tokens_details=CompletionDetails(batch.reasoning_tokens),
            total_tokens=batch.input_tokens + batch.output_tokens,
            credits=credits_text(batch.charge),
            credits_micro=batch.charge,
        ),
        metadata=batch.metadata,
    )


def batch_list(batches: list[Batch], limit: int) -> BatchList:
    """Return the page of at most `limit` of `batches`, which has one more where more follow."""
    data = [batch_object(batch) for batch in batches[:limit]]
    return BatchList(
        data=data,
        first_id=data[0].id if data else None,
        last_id=data[-1].id if data else None,
        has_more=len(batches) > limit,
    )


def _seconds(moment: datetime | None) -> int | None:
    return None if moment is None else int(moment.timestamp())
