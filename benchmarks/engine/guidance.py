"""What guidance costs: compiling, a mask for each token, tokens per second beside free text; and whether it holds.

    python benchmarks/engine/guidance.py --model var/models/SmolLM2-135M-Instruct [--parts masks,speed,schemas]

"masks" walks answers through four schemas without a model: how long the first request of a schema waits for its
grammar (it is compiled in a process of its own first, then here), and what a mask and a token cost behind it. "speed"
has tokens per second of streams whose answers can't end, with guidance and without, in turns; the best of each.
"schemas" asks the model for JSON by 100 schemas of growing difficulty, and validates every answer that ends by itself.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as a worker has it

import jsonschema
import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from inference.errors import InvalidRequestError
from inference.execution.backend import LoadedModel
from inference.guidance import library
from inference.guidance.grammars import Grammars
from inference.local.engine import LocalEngine
from inference.messages import Message
from inference.text.tokenizer import FolderTokenizer
from inference.types import FinishReason, GenerationRequest, Guidance, GuidanceKind, SamplingParams
from tests.inference.guidance.schemas import random_object

MASKED: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}, "member": {"type": "boolean"}},
        "required": ["name", "age", "member"],
        "additionalProperties": False,
    },
    "formats and patterns": {
        "type": "object",
        "properties": {
            "id": {"type": "string", "format": "uuid"},
            "at": {"type": "string", "format": "date-time"},
            "mail": {"type": "string", "format": "email"},
            "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4,8}$"},
            "note": {"type": "string", "maxLength": 80},
        },
        "required": ["id", "at", "mail", "code", "note"],
        "additionalProperties": False,
    },
    "80 fields": {
        "type": "object",
        "properties": {f"field_{n}": {"type": ["string", "integer", "boolean"][n % 3]} for n in range(80)},
        "required": [f"field_{n}" for n in range(80)],
        "additionalProperties": False,
    },
    "recursive": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value", "children"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
}
ENDLESS = Guidance(
    GuidanceKind.JSON_SCHEMA,
    json.dumps(
        {
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "object",
                "properties": {"city": {"type": "string"}, "people": {"type": "integer"}},
                "required": ["city", "people"],
                "additionalProperties": False,
            },
        }
    ),
)


def guided(schema: dict[str, Any]) -> Guidance:
    return Guidance(GuidanceKind.JSON_SCHEMA, json.dumps(schema))


def masks(loaded: LoadedModel, tokenizer: FolderTokenizer, walks: int) -> None:
    """Print what compiling, masks and tokens cost with the model's vocabulary."""
    grammars = Grammars(tokenizer.serialized, vocabulary=loaded.vocab_size, ends=loaded.eos_ids)
    begin = time.perf_counter()
    grammars.compiled(Guidance(GuidanceKind.REGEX, "warm"))
    print(
        f"vocabulary of {loaded.vocab_size}; the first grammar of a deployment: {time.perf_counter() - begin:.2f} s\n"
    )
    vocabulary = library.Vocabulary(tokenizer.serialized() or "", loaded.vocab_size, loaded.eos_ids)
    print(
        "| schema | first request, ms | compiled here, ms | again, µs | first mask, µs | mask, µs | worst | token, µs |"
    )
    print("|---|---|---|---|---|---|---|---|")
    for name, schema in MASKED.items():
        guidance = guided(schema)
        first = _microseconds(partial(grammars.compiled, guidance))
        again = _microseconds(partial(grammars.known, guidance))
        text = library.text_of(guidance)
        here = _microseconds(partial(vocabulary.compile, text))
        grammar = grammars.compiled(guidance)
        chance = random.Random(0)
        spent: list[float] = []
        accepted: list[float] = []
        for _ in range(walks):
            matcher = grammar.begin()
            for _ in range(200):
                took = time.perf_counter()
                mask = matcher.mask()
                spent.append((time.perf_counter() - took) * 1e6)
                token = _any_of(mask, chance)
                if token in loaded.eos_ids:
                    break
                took = time.perf_counter()
                matcher.accept(token)
                accepted.append((time.perf_counter() - took) * 1e6)
        print(
            f"| {name} | {first / 1e3:.1f} | {here / 1e3:.1f} | {again:.0f} | {spent[0]:.0f} "
            f"| {statistics.mean(spent):.0f} | {max(spent):.0f} | {statistics.mean(accepted):.0f} |",
            flush=True,
        )


def _microseconds(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return (time.perf_counter() - begin) * 1e6


def _any_of(mask: bytes, chance: random.Random) -> int:
    """Return a random token of the mask, all bytes with one as likely."""
    place = chance.choice([place for place, byte in enumerate(mask) if byte])
    return place * 8 + chance.choice([bit for bit in range(8) if mask[place] >> bit & 1])


def speed(loaded: LoadedModel, tokenizer: FolderTokenizer, streams: list[int], new: int, runs: int) -> None:
    """Print tokens per second of streams that decode, with guidance and without."""
    print(f"\n{new} tokens of each answer, best of {runs}\n")
    print("| streams | free text, tokens/s | guided, tokens/s | guided / free |")
    print("|---|---|---|---|")
    for count in streams:
        rates: dict[bool, list[float]] = {False: [], True: []}
        for turn in range(runs):
            for is_guided in (False, True)[:: 1 if turn % 2 else -1]:
                rates[is_guided].append(_rate(loaded, tokenizer, count, new, ENDLESS if is_guided else None))
        free, held = max(rates[False]), max(rates[True])
        print(f"| {count} | {free:.0f} | {held:.0f} | {held / free:.2f} |", flush=True)


def _rate(loaded: LoadedModel, tokenizer: FolderTokenizer, count: int, new: int, guidance: Guidance | None) -> float:
    engine = LocalEngine(
        EngineConfig("bench", "-", block_size=loaded.block_size, max_rows=max(32, count)), loaded, tokenizer
    )
    for number in range(count):
        sampling = SamplingParams(
            temperature=0.7, max_tokens=new, seed=number, guidance=guidance, ignore_eos=guidance is None
        )
        messages = (Message("user", ("List cities and how many people live there, as JSON.",)),)
        engine.submit(engine.prepare(GenerationRequest(str(number), "t", "d", messages=messages, sampling=sampling)))
    begun: set[str] = set()
    while len(begun) < count:
        begun |= {output.request_id for output in engine.step() if output.tokens}
    tokens, begin = 0, time.perf_counter()
    while engine.unfinished:
        tokens += sum(len(output.tokens) for output in engine.step())
    return tokens / (time.perf_counter() - begin)


def schemas(loaded: LoadedModel, tokenizer: FolderTokenizer, count: int, new: int) -> None:
    """Ask for JSON by `count` schemas, and print how many answers are valid."""
    engine = LocalEngine(
        EngineConfig("bench", "-", block_size=loaded.block_size, max_waiting_per_tenant=count), loaded, tokenizer
    )
    wanted: dict[str, tuple[int, dict[str, Any]]] = {}
    seed = refused = 0
    begin = time.perf_counter()
    while len(wanted) < count:
        level = 1 + 4 * len(wanted) // count
        schema = random_object(random.Random(seed), level)
        seed += 1
        question = f"Answer with an example of this JSON Schema:\n{json.dumps(schema)}"
        sampling = SamplingParams(temperature=0.7, max_tokens=new, seed=seed, guidance=guided(schema))
        request = GenerationRequest(f"s{seed}", "t", "d", messages=(Message("user", (question,)),), sampling=sampling)
        try:
            engine.submit(engine.prepare(request))
        except InvalidRequestError as error:  # what no value can be, or a prompt longer than the context
            refused += 1
            print(f"left out: {error}"[:150])
            continue
        wanted[request.id] = level, schema
    compiled = time.perf_counter() - begin
    texts = dict.fromkeys(wanted, "")
    ended: dict[str, FinishReason] = {}
    tokens = 0
    while engine.unfinished:
        for output in engine.step():
            texts[output.request_id] += output.text
            tokens += len(output.tokens)
            if output.finished is not None:
                ended[output.request_id] = output.finished.reason
    print(f"\n{count} schemas compiled and prompts prepared in {compiled:.1f} s, {refused} left out, {tokens} tokens\n")
    print("| levels | schemas | cut by max_tokens | ended by themselves | of those valid |")
    print("|---|---|---|---|---|")
    for level in (1, 2, 3, 4):
        mine = [name for name, (depth, _) in wanted.items() if depth == level]
        whole = [name for name in mine if ended[name] is FinishReason.STOP]
        valid = sum(_is_valid(texts[name], wanted[name][1]) for name in whole)
        print(f"| {level} | {len(mine)} | {len(mine) - len(whole)} | {len(whole)} | {valid} |")


def _is_valid(text: str, schema: dict[str, Any]) -> bool:
    try:
        jsonschema.validate(json.loads(text), schema)
    except (ValueError, jsonschema.ValidationError) as error:
        print(f"not valid: {text[:200]!r}: {error}"[:400])
        return False
    return True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True, help="hub id, folder or GGUF file")
    parser.add_argument("--parts", default="masks,speed,schemas")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantization", default="")
    parser.add_argument("--streams", default="1,8,32")
    parser.add_argument("--new", type=int, default=96, help="tokens of each answer")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--schemas", type=int, default=100)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    config = EngineConfig(
        "bench", options.model, dtype=options.dtype, quantization=options.quantization, kv_tokens=32_768
    )
    loaded = load_model(config, threads=options.threads)
    tokenizer = FolderTokenizer(loaded.tokenizer_folder)
    print(f"{Path(options.model).name}, {loaded.details['dtype']}, {loaded.details['tier']}, {options.threads} threads")
    parts = options.parts.split(",")
    if "masks" in parts:
        masks(loaded, tokenizer, walks=5)
    if "speed" in parts:
        speed(loaded, tokenizer, [int(part) for part in options.streams.split(",")], options.new, options.runs)
    if "schemas" in parts:
        schemas(loaded, tokenizer, options.schemas, 2 * options.new)


if __name__ == "__main__":
    main()
