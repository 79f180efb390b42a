"""OpenTelemetry behind `gateway.runtime.tracing`: imported only where an exporter is configured."""

from __future__ import annotations

import asyncio
import os
import random
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from opentelemetry import context, trace
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.trace.sampling import Decision, ParentBased, Sampler, SamplingResult
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes as AnyAttributes

from gateway.errors.refusal import Refusal
from gateway.runtime import tracing
from gateway.runtime.tracing import Attributes
from inference.tracing import traceparent

CLOSE_SECONDS = 2.0  # for what was not exported yet when the gateway ends

_propagator = TraceContextTextMapPropagator()


class Share(Sampler):
    """Keeps a share of the traces by chance: neither a client's flag nor a trace id that it made up decides."""

    def __init__(self, share: float) -> None:
        self._share = share

    def should_sample(  # noqa: PLR0917 - the SDK calls it so
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: AnyAttributes = None,
        links: Sequence[Link] | None = None,
        trace_state: Any = None,
    ) -> SamplingResult:
        """Return the decision about a trace that begins here."""
        is_kept = random.random() < self._share
        return SamplingResult(Decision.RECORD_AND_SAMPLE if is_kept else Decision.DROP)

    def get_description(self) -> str:
        """Name it."""
        return f"Share({self._share})"


class Spans:
    """Makes the spans of requests."""

    def __init__(self, provider: trace.TracerProvider) -> None:
        self._tracer = provider.get_tracer("sluice")

    @contextmanager
    def request(self, headers: Sequence[tuple[bytes, bytes]], is_wanted: Callable[[], bool]) -> Iterator[Span]:
        """Make the span of a request: a child of the client's, or the first of a trace where there is no valid one."""
        given = [value.decode("latin-1") for name, value in headers if name == b"traceparent"]
        parent = _propagator.extract({"traceparent": given[0]} if len(given) == 1 else {}, Context())
        span = self._tracer.start_span("request", parent, SpanKind.SERVER)
        token = context.attach(trace.set_span_in_context(span, parent))
        try:
            yield span
        finally:
            context.detach(token)
            if is_wanted():
                span.end()

    @contextmanager
    def span(self, name: str, attributes: Attributes | None, kind: SpanKind = SpanKind.INTERNAL) -> Iterator[Span]:
        """Make the span of a step. An error is named by its code or class: its text may quote a client."""
        with self._tracer.start_as_current_span(
            name, kind=kind, attributes=attributes, record_exception=False, set_status_on_exception=False
        ) as span:
            try:
                yield span
            except BaseException as error:
                code = error.code if isinstance(error, Refusal) else type(error).__name__
                span.set_attribute("error.type", code)
                self.failed(span)
                raise

    @contextmanager
    def call(self, name: str, attributes: Attributes) -> Iterator[Span]:
        """Make the span of an engine's call, which the engine's own client sends on."""
        with self.span(name, attributes, SpanKind.CLIENT) as span:
            carrier: dict[str, str] = {}
            _propagator.inject(carrier)
            token = traceparent.set(carrier.get("traceparent", ""))
            try:
                yield span
            finally:
                traceparent.reset(token)

    def failed(self, span: Span) -> None:
        """Mark the span as failed."""
        span.set_status(Status(StatusCode.ERROR))

    def event(self, name: str, attributes: Attributes | None) -> None:
        """Add an event to the current span."""
        trace.get_current_span().add_event(name, attributes)


def exporter_to(address: str) -> SpanExporter:
    """Return what sends spans to exactly that address; OTEL_EXPORTER_OTLP_… says the rest."""
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    # The exporter would read addresses from the environment alone, and ours may come from a file.
    return OTLPSpanExporter(endpoint=address)


def open_spans(share: float, instance: str, exporter: SpanExporter) -> Callable[[], Awaitable[None]]:
    """Export `share` of the traces from now on; return what ends it."""
    resource = Resource.create({"service.instance.id": instance})
    if not os.environ.get("OTEL_SERVICE_NAME") and "service.name=" not in os.environ.get(
        "OTEL_RESOURCE_ATTRIBUTES", ""
    ):
        resource = resource.merge(Resource({"service.name": "sluice-gateway"}))
    own = Share(share)
    sampler = ParentBased(own, remote_parent_sampled=own, remote_parent_not_sampled=own)
    provider = TracerProvider(sampler=sampler, resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(exporter))
    tracing.use(Spans(provider))

    async def close() -> None:
        tracing.use(None)
        # A collector that doesn't answer would hold the process's end up for longer.
        flushing = threading.Thread(target=provider.force_flush, name="gateway-traces", daemon=True)
        flushing.start()
        await asyncio.to_thread(flushing.join, CLOSE_SECONDS)

    return close
