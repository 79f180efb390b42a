"""What stands beside the gateway: servers that answer the bytes of its own answers, without any of its work.

`--server asgi` is a bare uvicorn application: the difference to it is what the gateway adds. `--server raw` is an
asyncio protocol that writes each answer at once: how much the client can take at most.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from pathlib import Path

import uvicorn
import uvloop

SSE = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache, no-transform")]


def application(answer: bytes, events: list[bytes], delay: float):
    """An ASGI application that reads the request and answers `answer`, or `events` one by one."""
    whole = [(b"content-type", b"application/json"), (b"content-length", str(len(answer)).encode())]

    async def app(scope, receive, send):
        body, more = b"", True
        while more:
            message = await receive()
            body += message["body"]
            more = message["more_body"]
        request = json.loads(body)
        if not request.get("stream"):
            await send({"type": "http.response.start", "status": 200, "headers": whole})
            await send({"type": "http.response.body", "body": answer})
            return
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        await send({"type": "http.response.body", "body": events[0], "more_body": True})
        for event in events[1:-1]:
            await asyncio.sleep(delay if request["model"] == "paced" else 0)
            await send({"type": "http.response.body", "body": event, "more_body": True})
        await send({"type": "http.response.body", "body": events[-1]})

    return app


class RawProtocol(asyncio.Protocol):
    """Answers each request with one write; requests come whole, one at a time."""

    def __init__(self, answer: bytes, stream: bytes) -> None:
        self.answer = answer
        self.stream = stream

    def connection_made(self, transport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(self.stream if b'"stream": true' in data else self.answer)


async def serve_raw(port: int, answer: bytes, events: list[bytes]) -> None:
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(answer)
    chunks = [b"%x\r\n%b\r\n" % (len(event), event) for event in events]
    stream = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"".join(chunks) + b"0\r\n\r\n"
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: RawProtocol(head + answer, stream), "127.0.0.1", port)
    await server.serve_forever()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--server", choices=["asgi", "raw"], required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--answers", type=Path, required=True, help="JSON: answer, events, delay (seconds)")
    options = parser.parse_args()
    answers = json.loads(options.answers.read_text())
    answer, events = answers["answer"].encode(), [event.encode() for event in answers["events"]]
    if options.server == "raw":
        uvloop.run(serve_raw(options.port, answer, events))
        return
    app = application(answer, events, answers["delay"])
    uvicorn.run(app, port=options.port, lifespan="off", access_log=False, log_level="error", server_header=False)


if __name__ == "__main__":
    main()
