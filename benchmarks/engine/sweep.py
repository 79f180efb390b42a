"""Every causal language model that transformers registers, on this engine: equal, refused with the reason, or wrong.

    python benchmarks/engine/sweep.py                # all of them
    python benchmarks/engine/sweep.py gemma2 llama4_text

Of each type a tiny random model is made by machine (`tiny_configs.py`), its windows and chunks lowered to 24 tokens,
and loaded as a deployment would be, in float32. What is served has to give the logits of the model's own forward pass
over whole sequences, paged in chunks and single tokens of two sequences; and its greedy tokens, with prompts of one
token to past every window and chunk, batched, in small chunks beside decoding rows, and again from the prefix cache.
`generate` is asked too. Each type runs in a process of its own, with bounds on its time and memory; the table says what
came of it. The exit status is 1 if any is wrong.
"""

from __future__ import annotations

import argparse
import faulthandler
import multiprocessing
import os
import resource
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from benchmarks.engine.tiny_configs import FORMS, save_tiny_model, types
from inference.architectures.load import load_model
from inference.architectures.proof import distances, paged_logits, plain_logits, random_sequences
from inference.config import EngineConfig
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.types import GenerationRequest, SamplingParams

TOLERANCE = 1e-3  # of the logits' spread
MARGIN = 1e-3  # a greedy token may differ from the reference's where that prefers its own by less
NEW = 12  # tokens
LONGEST = 150  # tokens of a prompt: six windows
MEMORY = 8 << 30

EQUAL, REFUSED, UNBUILT, WRONG = "equal", "refused", "not built", "WRONG"


class Verdict(NamedTuple):
    """What came of a type."""

    kind: str
    result: str
    text: str


def examine(kind: str, changes: Mapping[str, Any], folder: Path, tier: str = "auto") -> Verdict:
    """Make a tiny model of `kind` in `folder`, load it and compare what is served with the model itself."""
    from transformers import AutoModelForCausalLM

    base = kind.partition(" ")[0]
    try:
        save_tiny_model(base, folder, changes)
    except RuntimeError as error:
        return Verdict(kind, UNBUILT, str(error))
    config = EngineConfig(
        "sweep", str(folder), dtype="float32", kv_tokens=4096, options={"cache": str(folder / "cache"), "tier": tier}
    )
    try:
        loaded = load_model(config, threads=1)
    except ModelRefusedError as error:
        return Verdict(kind, REFUSED, error.message.replace(f"{folder}: ", ""))
    plain = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()
    with torch.inference_mode():
        wrong = _differences(loaded, plain)
    served = f"{loaded.details['architecture'].partition(' (')[0]}, up to {loaded.max_context} tokens"
    return Verdict(kind, WRONG, f"{served}: {'; '.join(wrong)}") if wrong else Verdict(kind, EQUAL, served)


def _differences(loaded: LoadedModel, plain: Any) -> list[str]:
    """Say what the served model computes otherwise than its own forward pass."""
    longest = min(LONGEST, loaded.max_context - NEW)
    found: list[str] = []
    whole = random_sequences(loaded.vocab_size, (longest, min(longest, 29)))
    model = loaded.runner._causal  # type: ignore[attr-defined]
    worst = float(distances(paged_logits(model, whole, loaded.block_size), plain_logits(plain, whole)).max())
    if not worst <= TOLERANCE:
        found.append(f"logits differ by {worst:.2g} of their spread")
    one, short, *others = random_sequences(loaded.vocab_size, (1, 5, 17, 33, longest, 2))
    prompts = [ids[:longest] for ids in (one, short, *others, [*others[-2][: longest - 7], *short])]
    for name, changes in (("batched", {}), ("in small chunks", {"prefill_chunk": 7, "max_step_tokens": 16})):
        engine = LocalEngine(EngineConfig("sweep", "-", block_size=loaded.block_size, **changes), loaded)
        for turn in (name, f"{name}, again from the cache"):
            answers = run(engine, prompts)
            leads = [_lead(plain, *pair) for pair in zip(prompts, answers, strict=True)]
            if not max(leads) <= MARGIN:
                found.append(f"{sum(not lead <= MARGIN for lead in leads)} of {len(leads)} answers differ {turn}")
    if not found and (count := sum(_generated(plain, ids) != row for ids, row in zip(prompts, answers, strict=True))):
        found.append(f"{count} of {len(prompts)} answers differ from generate, though not from the forward pass")
    return found


def run(engine: LocalEngine, prompts: list[list[int]]) -> list[list[int]]:
    """Return the greedy answers of all prompts, submitted at once."""
    sampling = SamplingParams(temperature=0.0, ignore_eos=True)
    answers: dict[str, list[int]] = {}
    for prompt in prompts:
        name = f"{time.perf_counter_ns()}"
        answers[name] = []
        request = GenerationRequest(name, tenant="t", domain="d", sampling=replace(sampling, seed=0))
        engine.submit(Prompt(request, NEW, ids=tuple(prompt)))
    while engine.unfinished:
        for output in engine.step():
            answers[output.request_id] += output.tokens
    return list(answers.values())


def _lead(plain: Any, prompt: list[int], row: list[int]) -> float:
    """By how much the model's own forward pass prefers another token at any place; infinite for a short answer."""
    if len(row) != NEW:
        return float("inf")
    [logits] = plain_logits(plain, [[*prompt, *row[:-1]]])
    logits = logits[len(prompt) - 1 :]
    return float((logits.amax(1) - logits.gather(1, torch.tensor(row)[:, None])[:, 0]).max())


def _generated(plain: Any, prompt: list[int]) -> list[int]:
    ids = torch.tensor([prompt])
    made = plain.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=NEW)
    tokens: list[int] = made[0, len(prompt) :].tolist()
    return tokens


def _in_process(kind: str, tier: str, seconds: float, folder: Path) -> Verdict:
    """`examine` in a process of its own."""
    context = multiprocessing.get_context("fork")  # torch and transformers are imported already
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(kind, tier, folder, sender))
    process.start()
    sender.close()
    try:
        if not receiver.poll(seconds):
            return Verdict(kind, WRONG, f"no result within {seconds:.0f} s")
        try:
            return receiver.recv()
        except EOFError:
            process.join()
            return Verdict(kind, WRONG, f"the process ended with {process.exitcode}")
    finally:
        process.kill()
        process.join()


def _child(kind: str, tier: str, folder: Path, sender: Any) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    torch.set_num_threads(1)
    try:
        verdict = examine(kind, FORMS.get(kind, {}), folder, tier)
    except Exception as error:  # noqa: BLE001  a foreign model can raise anything
        lines = str(error).strip().splitlines()
        reason = f"{type(error).__name__}: {lines[0] if lines else ''}"
        verdict = Verdict(kind, WRONG, f"fails after it was loaded: {reason}")
    sender.send(verdict)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("types", nargs="*", help="model types, or their forms; default: all")
    parser.add_argument("--tier", default="auto", help="how they are computed: auto, c, torch or reference")
    parser.add_argument("--seconds", type=float, default=300, help="for each")
    options = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    faulthandler.enable()
    import transformers
    import transformers.generation.utils
    import transformers.modeling_utils

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    verdicts: list[Verdict] = []
    begin = time.monotonic()
    print("| model type | result | |\n|---|---|---|", flush=True)
    for kind in options.types or [*types(), *FORMS]:
        with tempfile.TemporaryDirectory() as folder:
            verdicts.append(_in_process(kind, options.tier, options.seconds, Path(folder)))
        print(f"| {kind} | {verdicts[-1].result} | {verdicts[-1].text} |", flush=True)
    counts = Counter(verdict.result for verdict in verdicts)
    found = ", ".join(f"{counts[result]} {result}" for result in (EQUAL, REFUSED, UNBUILT, WRONG))
    seconds = time.monotonic() - begin
    print(f"\ntransformers {transformers.__version__}, torch {torch.__version__}, {seconds:.0f} s: {found}")
    sys.exit(bool(counts[WRONG]))


if __name__ == "__main__":
    main()
