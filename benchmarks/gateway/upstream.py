"""A model server that costs almost nothing: OpenAI's chat completions, whole or streamed, on a raw asyncio protocol.

Each answer has 64 tokens and the usage that says so; of the model "paced" one comes each 20 ms. `GET /v1/models` lists
the models, and `GET /stats` says how many answers and tokens were sent: what a gateway's books must agree with.
"""

from __future__ import annotations

import argparse
import asyncio
import json

import uvloop

TOKENS = 64
PROMPT_TOKENS = 48
PACE = 0.02
MODELS = ("whole", "stream", "paced")
USAGE = {
    "prompt_tokens": PROMPT_TOKENS,
    "completion_tokens": TOKENS,
    "total_tokens": PROMPT_TOKENS + TOKENS,
    "prompt_tokens_details": {"cached_tokens": 16},
}
SSE = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"

sent = {"answers": 0, "tokens": 0}


def compact(body: object) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


def chunk(delta: dict[str, str] | None, finish: str | None = None, usage: object = None) -> bytes:
    """One event of a stream, as one chunk of HTTP."""
    choices = [] if delta is None else [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}]
    body = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": choices}
    event = b"data: %b\n\n" % compact({**body, **({"usage": usage} if usage else {})})
    return b"%x\r\n%b\r\n" % (len(event), event)


def whole(body: object) -> bytes:
    """One JSON answer."""
    data = compact(body)
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(data), data)


WORDS = [f"word{number % 10} " for number in range(TOKENS)]
OPENING = chunk({"role": "assistant", "content": ""})
PIECES = [chunk({"content": word}) for word in WORDS]
CLOSING = chunk({}, "stop") + chunk(None, usage=USAGE) + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
STREAM = SSE + OPENING + b"".join(PIECES) + CLOSING
MESSAGE = {"role": "assistant", "content": "".join(WORDS)}
ANSWER = whole(
    {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "usage": USAGE,
        "choices": [{"index": 0, "message": MESSAGE, "logprobs": None, "finish_reason": "stop"}],
    }
)
LIST = whole({"object": "list", "data": [{"id": name, "object": "model", "max_model_len": 8192} for name in MODELS]})


class Upstream(asyncio.Protocol):
    """Answers the requests of one connection, one at a time."""

    def __init__(self) -> None:
        self.data = b""
        self.pacing: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        if self.pacing is not None:
            self.pacing.cancel()

    def data_received(self, data: bytes) -> None:
        self.data += data
        while b"\r\n\r\n" in self.data:
            head, _, rest = self.data.partition(b"\r\n\r\n")
            size = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
            if len(rest) < size:
                return
            self.data = rest[size:]
            self.answer(head, rest[:size])

    def answer(self, head: bytes, body: bytes) -> None:
        if head.startswith(b"GET"):
            self.transport.write(whole(sent) if head.startswith(b"GET /stats") else LIST)
            return
        sent["answers"] += 1
        request = json.loads(body)
        if not request.get("stream"):
            sent["tokens"] += TOKENS
            self.transport.write(ANSWER)
        elif request["model"] == "paced":
            self.pacing = asyncio.get_running_loop().create_task(self.paced())
        else:
            sent["tokens"] += TOKENS
            self.transport.write(STREAM)

    async def paced(self) -> None:
        self.transport.write(SSE + OPENING)
        for piece in PIECES:
            await asyncio.sleep(PACE)
            sent["tokens"] += 1
            self.transport.write(piece)
        self.transport.write(CLOSING)


async def serve(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=1024)
    await server.serve_forever()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, required=True)
    uvloop.run(serve(parser.parse_args().port))
