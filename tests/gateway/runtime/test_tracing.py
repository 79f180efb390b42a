"""Traces: a request's spans hang together, tell what was done and never what was said; off, nothing is imported."""

from __future__ import annotations

import os
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from uuid import uuid4

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from base.ids import uuid7
from gateway import bootstrap
from gateway.errors.refusal import Refusal
from gateway.generation.generation import start_generation
from gateway.http.guard import guarded
from gateway.http.routes import Route
from gateway.runtime import otel, tracing
from inference.tracing import traceparent
from tests.gateway.doubles import collect, make_intent, make_stand

ROOT = Path(__file__).resolve().parents[3]
THEIRS = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"  # with the flag "not sampled"


@pytest.fixture
def exported():
    """Trace in this test; return the spans that were exported, by name."""
    exporter, own = InMemorySpanExporter(), otel.Share(1.0)
    provider = TracerProvider(sampler=ParentBased(own, remote_parent_sampled=own, remote_parent_not_sampled=own))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(otel.Spans(provider))
    yield lambda: {span.name: span for span in exporter.get_finished_spans()}
    tracing.use(None)


async def ignore(message=None):
    return {"type": "http.request", "body": b"", "more_body": False}


async def ask(stand, headers=(), *, prompt="the secret question", route="/v1/chat/completions", before=lambda: None):
    """Send one chat through the guard to a generation."""

    async def application(scope, receive, send):
        scope["exchange"].route = Route(route)
        before()
        generation = await start_generation(
            stand.runtime, stand.principal, make_intent(prompt=prompt), scope["request_id"]
        )
        await collect(generation)
        await stand.settled()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    scope = {"type": "http", "method": "POST", "path": route, "headers": list(headers), "state": {}}
    await guarded(application)(scope, ignore, ignore)


async def test_a_requests_spans_hang_together_and_have_the_conventions_names(exported):
    stand = await make_stand(tokens=5, cached=0.2)
    await ask(stand)
    spans = exported()
    assert set(spans) == {"POST /v1/chat/completions", "admission", "hold", "chat fake", "settle"}
    root, engine = spans["POST /v1/chat/completions"], spans["chat fake"]
    assert root.parent is None
    assert len({span.context.trace_id for span in spans.values()}) == 1
    for name in ("admission", "chat fake", "settle"):
        assert spans[name].parent.span_id == root.context.span_id
    assert spans["hold"].parent.span_id == spans["admission"].context.span_id
    assert (root.kind, engine.kind) == (SpanKind.SERVER, SpanKind.CLIENT)
    assert root.attributes["http.response.status_code"] == 200
    assert root.attributes["http.route"] == "/v1/chat/completions"
    told = dict(engine.attributes)
    assert told["gen_ai.operation.name"] == "chat"
    assert told["gen_ai.request.model"] == told["gen_ai.response.model"] == "fake"
    assert told["gen_ai.usage.output_tokens"] == 5
    assert told["gen_ai.usage.cache_read.input_tokens"] > 0
    assert told["gen_ai.usage.input_tokens"] > told["gen_ai.usage.cache_read.input_tokens"]
    assert told["gen_ai.response.finish_reasons"] == ("stop",)
    assert [event.name for event in engine.events] == ["gen_ai.first_token"]
    [settle] = stand.writer.settles
    assert spans["settle"].attributes["sluice.charge_micro"] == settle.charge > 0


async def test_nothing_that_was_said_is_in_a_span(exported):
    stand = await make_stand(text="the secret answer")
    await ask(stand, [(b"authorization", b"Bearer sk-sluice-secret")])
    assert len(exported()) == 5
    assert "secret" not in "".join(span.to_json() for span in exported().values())


async def test_a_clients_trace_goes_on_and_decides_nothing(exported):
    await ask(await make_stand(), [(b"traceparent", THEIRS.encode())])
    root = exported()["POST /v1/chat/completions"]  # exported, though the client's flag says no
    assert f"{root.context.trace_id:032x}" == THEIRS.split("-")[1]
    assert f"{root.parent.span_id:016x}" == THEIRS.split("-")[2]


@pytest.mark.parametrize(
    "headers",
    [
        [b"00-00000000000000000000000000000000-b7ad6b7169203331-01"],
        [b"00-xyz-b7ad6b7169203331-01"],
        [b"\xff" * 70],
        [THEIRS.encode(), THEIRS.encode()],
        [b"00-" + b"a" * 100_000],
    ],
)
async def test_a_header_that_is_not_valid_begins_a_trace(exported, headers):
    await ask(await make_stand(), [(b"traceparent", value) for value in headers])
    assert exported()["POST /v1/chat/completions"].parent is None


async def test_probes_are_not_exported(exported):
    await ask(await make_stand(), route="/readyz")
    assert "POST /readyz" not in exported()
    assert "request" not in exported()


async def test_a_refusal_is_named_by_its_code_alone(exported):
    stand = await make_stand(credit=0)
    with pytest.raises(Refusal):
        await start_generation(stand.runtime, stand.principal, make_intent(), uuid7())
    for name in ("admission", "hold"):
        span = exported()[name]
        assert span.attributes["error.type"] == "credit_balance_exhausted"
        assert span.status.status_code is StatusCode.ERROR
        assert not span.status.description
        assert not span.events


async def test_an_engines_client_is_told_of_the_call(exported, monkeypatch):
    stand, seen = await make_stand(), []
    [entry] = stand.runtime.engines.entries()
    generate = entry.engine.generate

    def generate_noting(*arguments):
        seen.append(traceparent.get())
        return generate(*arguments)

    monkeypatch.setattr(entry.engine, "generate", generate_noting)
    await ask(stand)
    engine = exported()["chat fake"]
    [(version, trace, parent, flags)] = [header.split("-") for header in seen]
    assert (version, int(trace, 16), int(parent, 16)) == ("00", engine.context.trace_id, engine.context.span_id)
    assert int(flags, 16) & 1, "sampled"
    assert traceparent.get() == ""


async def test_lines_of_the_log_name_the_trace(exported):
    from gateway import logs

    about = []
    await ask(await make_stand(), [(b"traceparent", THEIRS.encode())], before=lambda: about.append(logs._about.get()))
    assert about[0]["trace_id"] == THEIRS.split("-")[1]


async def test_a_share_of_none_exports_nothing_whatever_the_client_says(exported):
    exporter, own = InMemorySpanExporter(), otel.Share(0.0)
    provider = TracerProvider(sampler=ParentBased(own, remote_parent_sampled=own, remote_parent_not_sampled=own))
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    tracing.use(otel.Spans(provider))
    await ask(await make_stand(), [(b"traceparent", THEIRS[:-2].encode() + b"01")])
    assert exporter.get_finished_spans() == ()


async def test_what_waits_for_export_is_exported_at_the_end():
    exporter = InMemorySpanExporter()
    close = otel.open_spans(1.0, "here", exporter)
    await ask(await make_stand())
    await close()
    spans = exporter.get_finished_spans()
    assert len(spans) == 5
    assert spans[0].resource.attributes["service.name"] == "sluice-gateway"
    with tracing.span("later") as span:
        assert span is None


async def test_a_collector_gets_the_spans_over_http(monkeypatch, settings):
    """Wherever the settings have its address from."""
    got = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["content-length"]))
            got.append((self.path, self.headers["content-type"], body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *arguments):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
        settings.OTEL_EXPORTER_OTLP_ENDPOINT = f"http://127.0.0.1:{server.server_port}"
        settings.SLUICE_TRACE_SHARE = 1.0
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_COMPRESSION", "none")
        close = bootstrap.open_traces(uuid4())
        await ask(await make_stand())
        await close()
        server.shutdown()
    assert {(path, kind) for path, kind, _ in got} == {("/v1/traces", "application/x-protobuf")}
    sent = b"".join(body for _, _, body in got)
    assert b"POST /v1/chat/completions" in sent
    assert b"gen_ai.usage.output_tokens" in sent
    assert b"secret" not in sent


@pytest.mark.parametrize(
    ("own", "address"),
    [("http://traces:4318/own/", "http://traces:4318/own/"), ("", "http://collector/base/v1/traces")],
)
async def test_an_address_for_traces_alone_is_taken_as_it_is(monkeypatch, settings, own, address):
    settings.OTEL_EXPORTER_OTLP_ENDPOINT, settings.OTEL_EXPORTER_OTLP_TRACES_ENDPOINT = "http://collector/base", own
    opened, open_spans = [], otel.open_spans
    monkeypatch.setattr(otel, "open_spans", lambda *given: opened.append(given[2]._endpoint) or open_spans(*given))
    close = bootstrap.open_traces(uuid4())
    await close()
    assert opened == [address]


def test_off_nothing_of_it_is_imported(tmp_path):
    program = (
        "import django, sys; django.setup(); import gateway.asgi, gateway.bootstrap, gateway.http.listener.server\n"
        "sys.exit('gateway.runtime.otel' in sys.modules or 'opentelemetry.sdk' in sys.modules)"
    )
    environment = {**os.environ, "SLUICE_HOME": str(tmp_path), "DJANGO_SETTINGS_MODULE": "gateway.settings"}
    environment.pop("OTEL_EXPORTER_OTLP_ENDPOINT", None)
    assert subprocess.run([sys.executable, "-c", program], cwd=ROOT, env=environment, check=False).returncode == 0
