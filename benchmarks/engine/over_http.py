"""The whole server over HTTP beside vLLM's build for CPUs: a 19M model, 16 streams at once of 64 tokens each.

    python benchmarks/engine/over_http.py [--streams 16] [--new 64] [--runs 5] [--pause 4] [--quantization w8a8]

`manage.py serve` (SQLite, everything on: keys, routing, limits, hold and settle) and vLLM's own server run at the same
time on the same cores, and are loaded in turns by the same client with the same prompts; medians of the rounds. There
is a pause before each, since vLLM's threads go on for a while after an answer, on cores that whoever comes next has not
got then. The model has random weights in bfloat16: 8 layers of 384, a vocabulary of 16,000 trained on Python's library.
CPU seconds are those of all of a server's processes in a round, for ours by process. `benchmarks/remote/servers.py`
makes vLLM's environment.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.remote.run import free_port, manage, ready  # noqa: E402
from benchmarks.remote.servers import running, versions  # noqa: E402

NAME = "small"  # what both call the model
TEMPLATE = (
    "{% for m in messages %}{{'<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{'<|im_start|>assistant\n'}}{% endif %}"
)


def make_model(folder: Path) -> Path:
    """Write the random model and its tokenizer to `folder`."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=16_000,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    library = Path(sysconfig.get_paths()["stdlib"])
    tokenizer.train([str(path) for path in sorted(library.glob("[a-z]*/*.py"))[:600]], trainer)
    saved = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|im_end|>", pad_token="<|endoftext|>")
    saved.chat_template = TEMPLATE
    saved.save_pretrained(folder)
    torch.manual_seed(0)
    config = Qwen3Config(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=384,
        num_hidden_layers=8,
        num_attention_heads=6,
        num_key_value_heads=2,
        head_dim=64,
        intermediate_size=1024,
        max_position_embeddings=4096,
        tie_word_embeddings=True,
        eos_token_id=2,
        bos_token_id=None,
        pad_token_id=0,
    )
    Qwen3ForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    return folder


@dataclass
class Round:
    """What the client saw of one round."""

    tokens: int = 0
    seconds: float = 0.0
    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    cpu: dict[str, float] = field(default_factory=dict)


def prompts(number: int, streams: int) -> list[str]:
    """One prompt of 24 words for each stream, new in each round."""
    words = Path(__file__).read_text().split()
    return [" ".join(random.Random(1000 * number + i).choices(words, k=24)) for i in range(streams)]


async def load(address: str, key: str, texts: list[str], new: int, *, model: str = NAME) -> Round:
    """Open a stream for each text at once and read all to their ends."""
    found = Round()

    async def one(session: aiohttp.ClientSession, text: str) -> None:
        given = {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": new,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, last = time.perf_counter(), 0.0
        async with session.post(f"{address}/v1/chat/completions", json=given) as answer:
            assert answer.status == 200, await answer.text()
            async for line in answer.content:
                if not line.startswith(b"data: {"):
                    continue
                now, event = time.perf_counter(), json.loads(line[6:])
                found.tokens += (event.get("usage") or {}).get("completion_tokens", 0)
                if event["choices"] and event["choices"][0]["delta"].get("content"):
                    if last:
                        found.gaps.append(now - last)
                    else:
                        found.first.append(now - began)
                    last = now

    headers = {"authorization": f"Bearer {key}"}
    async with aiohttp.ClientSession(headers=headers, connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()
        await asyncio.gather(*(one(session, text) for text in texts))
        found.seconds = time.perf_counter() - began
    assert found.tokens == new * len(texts), f"{found.tokens} tokens, where {new * len(texts)} were asked for"
    return found


def cpu_seconds() -> dict[int, tuple[int, str, float]]:
    """Of each process: its parent, what it is, and its CPU seconds so far."""
    found = {}
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat = (path / "stat").read_text().rpartition(")")[2].split()
            line = (path / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        spent = (int(stat[11]) + int(stat[12])) / os.sysconf("SC_CLK_TCK")
        name = "worker" if "inference.worker" in line else "gateway" if " gateway" in line else "other"
        found[int(path.name)] = (int(stat[1]), name, spent)
    return found


def spent(root: int, before: dict[int, tuple[int, str, float]]) -> dict[str, float]:
    """CPU seconds of the processes below `root`, and of itself, since `before`."""
    now, total = cpu_seconds(), defaultdict(float)
    for process, (parent, name, seconds) in now.items():
        above = process
        while above not in {root, 0}:
            above = now[above][0] if above in now else 0
        if above == root:
            total[name] += seconds - before.get(process, (parent, name, 0.0))[2]
    return dict(total)


def measured(rounds: list[Round]) -> list[str]:
    """The cells of a server's row."""

    def percentile(values: list[float], part: float) -> float:
        return 1000 * sorted(values)[min(len(values) - 1, int(part * len(values)))]

    rates = [each.tokens / each.seconds for each in rounds]
    cells = [f"{statistics.median(rates):,.0f} ({min(rates):,.0f}–{max(rates):,.0f})"]
    for values in ([each.first for each in rounds], [each.gaps for each in rounds]):
        cells += [f"{statistics.median(percentile(each, part) for each in values):.1f}" for part in (0.5, 0.99)]
    names = sorted({name for each in rounds for name in each.cpu if each.cpu[name] > 0.005})
    parts = [f"{name} {statistics.median(each.cpu.get(name, 0) for each in rounds):.2f}" for name in names]
    return [*cells, ", ".join(parts) or "-"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--new", type=int, default=64)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--pause", type=float, default=4.0, help="seconds before each load")
    parser.add_argument("--quantization", default="", help="of ours: w8a8 or int4")
    parser.add_argument("--no-peer", action="store_true")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is ended
    with tempfile.TemporaryDirectory(prefix="sluice-http-") as name:
        work = Path(name)
        model = make_model(work / NAME)
        os.environ["SLUICE_HOME"] = str(work / "home")
        facts = json.loads(manage("quickstart", "--json"))
        for first in reversed(facts["models"]):  # adapters before their base; nothing else is on these cores
            manage("models", "remove", first, "--force")
        quantization = ["--quantization", options.quantization] if options.quantization else []
        manage("models", "add", str(model), "--name", NAME, *quantization)
        port = free_port()
        command = [sys.executable, str(ROOT / "manage.py"), "serve", "--port", str(port)]
        with (work / "serve.log").open("w") as log:
            process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        try:
            address = f"http://127.0.0.1:{port}"
            ready(address, facts["api_key"], process, NAME, seconds=300)  # kernels are built first
            servers = {"Sluice": (address, facts["api_key"], process.pid)}
            if options.no_peer:
                compare(servers, options)
            else:
                with running("vllm", model, free_port(), Path(tempfile.gettempdir()) / "vllm.log") as (peer, _):
                    pid = max(pid for pid, (parent, _, _) in cpu_seconds().items() if parent == os.getpid())
                    servers[versions("vllm")] = (peer, "none", pid)
                    compare(servers, options)
        except BaseException:
            print((work / "serve.log").read_text()[-4000:], file=sys.stderr)
            raise
        finally:
            process.terminate()
            process.wait(40)


def compare(servers: dict[str, tuple[str, str, int]], options: argparse.Namespace) -> None:
    """Load the servers in turns and print their table."""
    rounds: dict[str, list[Round]] = {name: [] for name in servers}
    for number in range(options.runs + 1):
        for name in list(servers)[:: 1 if number % 2 else -1]:
            address, key, pid = servers[name]
            time.sleep(options.pause)
            before = cpu_seconds()
            found = asyncio.run(load(address, key, prompts(number, options.streams), options.new))
            found.cpu = spent(pid, before)
            if number:  # the first round warms up
                rounds[name].append(found)
    print(f"{options.streams} streams of {options.new} tokens, {options.runs} rounds in turns\n")
    print("| server | tokens/s | TTFT p50 ms | p99 | gap p50 ms | p99 | CPU s a round |\n|---|---|---|---|---|---|---|")
    for name, each in rounds.items():
        print(f"| {name} | {' | '.join(measured(each))} |")


if __name__ == "__main__":
    main()
