"""The first model over HTTP beside the peers' own servers: Sluice as `make run` serves it, vLLM's build for CPUs,
llama.cpp's server and `transformers serve`, with one client.

    python benchmarks/engine/beside.py [--rounds 2] [--servers sluice,vllm,llama,transformers]

One server runs at a time, on all cores, since vLLM's threads go on after an answer; the rounds take them in turns.
Prompts are new in each measurement, and of as many tokens of the model's tokenizer as a row says. Medians of all
rounds. `benchmarks/remote/servers.py` makes the peers' environments; all serve the weights of this checkout's model in
bfloat16 but Sluice, which chooses its precision as it does for everybody.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import aiohttp
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.engine.served import MODEL, Served  # noqa: E402
from benchmarks.remote.run import free_port  # noqa: E402
from benchmarks.remote.servers import running, versions  # noqa: E402

FOLDER = ROOT / "var" / "models" / "SmolLM2-135M-Instruct"
WORDS = (
    "river",
    "stone",
    "light",
    "garden",
    "paper",
    "winter",
    "music",
    "window",
    "market",
    "silver",
    "engine",
    "letter",
)
FRAME = 30  # tokens that the chat template adds
STREAMS = (1, 8, 32)
PROMPTS = (130, 530, 1531)


@dataclass
class Answer:
    """What the client saw of one request."""

    first: float
    seconds: float
    prompt: int
    completion: int


class Client:
    """Asks one server for chats, with prompts that it has not seen."""

    def __init__(
        self, address: str, key: str, model: str, tokenizer: Tokenizer, numbers: Iterator[int], **more: object
    ) -> None:
        self._address, self._model, self._more = address, model, more
        self._headers = {"authorization": f"Bearer {key}"}
        self._tokenizer, self._numbers = tokenizer, numbers

    def text(self, tokens: int) -> str:
        """Words of about so many tokens, with those of the template."""
        chance = random.Random(next(self._numbers))
        words = " ".join(chance.choices(WORDS, k=tokens))
        return self._tokenizer.decode(self._tokenizer.encode(words).ids[: max(tokens - FRAME, 4)])

    async def ask(self, session: aiohttp.ClientSession, tokens: int, new: int, after: float = 0.0) -> Answer:
        text = self.text(tokens)
        await asyncio.sleep(after)
        given = {
            "model": self._model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": new,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._more,
        }
        began, first, pieces, usage = time.perf_counter(), 0.0, 0, {}
        async with session.post(f"{self._address}/v1/chat/completions", json=given) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if line.startswith(b"data: {"):
                    event = json.loads(line[6:])
                    usage = event.get("usage") or usage
                    if event["choices"] and event["choices"][0]["delta"].get("content"):
                        first = first or time.perf_counter() - began
                        pieces += 1
        # A server that reports nothing is taken by the pieces that it sent.
        return Answer(
            first,
            time.perf_counter() - began,
            usage.get("prompt_tokens", tokens),
            usage.get("completion_tokens", pieces),
        )

    async def together(self, asked: list[tuple[int, int, float]]) -> tuple[list[Answer], float]:
        """Send requests of (tokens, new tokens, seconds until it is sent) and return their answers and the seconds."""
        timeout, connector = aiohttp.ClientTimeout(total=600), aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(headers=self._headers, timeout=timeout, connector=connector) as session:
            began = time.perf_counter()
            answers = await asyncio.gather(*(self.ask(session, *one) for one in asked))
            return list(answers), time.perf_counter() - began

    def measure(self) -> Iterator[tuple[str, float]]:
        """Yield (row, value) of each measurement, after one that doesn't count."""

        def run(asked: list[tuple[int, int, float]]) -> tuple[list[Answer], float]:
            return asyncio.run(self.together(asked))

        run([(60, 16, 0.0)] * 2)
        for streams in STREAMS:
            for _ in range(3):
                answers, seconds = run([(60, 64, 0.0)] * streams)
                yield f"{streams} streams of 64 tokens, tokens/s", sum(a.completion for a in answers) / seconds
        for tokens in PROMPTS:
            for _ in range(5):
                answers, _ = run([(tokens, 1, 0.0)])  # a token that may have no text
                yield f"prompt of {tokens} tokens, ms to its one token", 1000 * answers[0].seconds
        for _ in range(2):
            answers, seconds = run([(430, 48, 0.0)] * 16)
            tokens = sum(a.prompt + a.completion for a in answers)
            yield "16 × 430 + 48 at once, tokens/s read and made", tokens / seconds
            yield "… the last first token, s", max(a.first for a in answers)
        chance = random.Random(7)
        mixed = [(chance.randrange(40, 400), chance.randrange(4, 48), number / 3) for number in range(40)]
        answers, _ = run(mixed)
        taken = sorted(1000 * a.seconds for a in answers)
        yield "40 mixed requests, 3 a second, p50 ms", statistics.median(taken)
        yield "… p90 ms", taken[35]


@contextmanager
def served(kind: str) -> Iterator[tuple[str, str, str]]:
    """Serve the model by one kind of server: (address, key, the model's name)."""
    if kind == "sluice":
        with Served(ROOT, "") as ours:
            yield ours.address, ours.key, MODEL
    else:
        with running(kind, FOLDER, free_port(), Path(tempfile.gettempdir()) / f"{kind}.log") as (address, name):
            yield address, "none", name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--servers", default="sluice,vllm,llama,transformers")
    asked = parser.parse_args()
    kinds = asked.servers.split(",")
    tokenizer = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
    numbers = count(int(time.time()))
    found: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for _ in range(asked.rounds):
        for kind in kinds:
            with served(kind) as (address, key, name):
                more = (
                    {} if kind == "transformers" else {"ignore_eos": True}
                )  # which it refuses: answers may end before
                for row, value in Client(address, key, name, tokenizer, numbers, **more).measure():
                    found[row][kind].append(value)
                    print(f"{kind}: {row}: {value:.1f}", file=sys.stderr, flush=True)
    print(f"| | {' | '.join('Sluice' if kind == 'sluice' else versions(kind) for kind in kinds)} |")
    print("|---|" + "---|" * len(kinds))
    for row, of in found.items():
        print(f"| {row} | " + " | ".join(f"{statistics.median(of[kind]):,.1f}" for kind in kinds) + " |")


if __name__ == "__main__":
    main()
