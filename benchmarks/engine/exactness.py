"""Whether an answer depends on what else runs: random requests alone, and then in every other condition.

    python benchmarks/engine/exactness.py                     # 1,000 requests, each precision, each condition
    python benchmarks/engine/exactness.py --model var/models/SmolLM2-135M-Instruct --requests 100

Requests are greedy and seeded, with penalties, biases, masks, stop strings, several answers and log-probabilities, of
mixed lengths. A cell says "equal" when every request got the same tokens, text and bits of log-probabilities as alone;
else how many got others, and by how much the log-probability of the same token behind the same text differed at most.
The model is a small random one unless `--model` names a folder.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from inference.architectures.load import load_model
from inference.config import EngineConfig
from tests.inference.exactness import CONDITIONS, Exactness
from tests.inference.tiny import save_tiny

FORMS = {
    "bf16, C kernels": {"dtype": "bfloat16"},
    "W8A8, C kernels": {"dtype": "bfloat16", "quantization": "w8a8"},
    "int4, C kernels": {"dtype": "bfloat16", "quantization": "int4"},
    "fp32, C kernels": {"dtype": "float32"},
    "bf16, K/V in int8, C kernels": {"dtype": "bfloat16", "kv_dtype": "int8"},
    "W8A8, K/V in int8, C kernels": {"dtype": "bfloat16", "quantization": "w8a8", "kv_dtype": "int8"},
    "bf16, torch operators": {"dtype": "bfloat16", "options": {"tier": "torch"}},
    "fp32, torch operators": {"dtype": "float32", "options": {"tier": "torch"}},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a folder; default: a small random model")
    parser.add_argument("--requests", type=int, default=1000, help="for each precision")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--forms", default="", help=f"some of: {'; '.join(FORMS)}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    options = parser.parse_args()
    names = [name.strip() for name in options.forms.split(";") if name.strip()] or list(FORMS)
    begin = time.perf_counter()
    with tempfile.TemporaryDirectory() as temporary:
        folder = options.model or save_tiny(
            "qwen3",
            Path(temporary),
            vocab_size=1537,
            hidden_size=192,
            intermediate_size=320,
            head_dim=48,
            sliding_window=None,
        )
        print("| precision | " + " | ".join(CONDITIONS) + " |\n|---|" + "---|" * len(CONDITIONS))
        lines: list[str] = []
        for name in names:
            loaded = load_model(
                EngineConfig("bench", str(folder), kv_tokens=16_384, **FORMS[name]), threads=options.threads
            )
            exactness = Exactness(loaded, options.requests, options.seed)
            cells = [str(exactness.compare(condition)) for condition in CONDITIONS.values()]
            print(f"| {name} | " + " | ".join(cells) + " |", flush=True)
            lines.append(
                f"{name} ({loaded.details['tier']}): {loaded.details['exact']}. {exactness.preemptions} preemptions, "
                f"{exactness.accepted} accepted drafts, {exactness.cached} cached tokens"
            )
    print(f"\n{options.requests} requests for each precision, {time.perf_counter() - begin:.0f} s\n")
    print(*lines, sep="\n")


if __name__ == "__main__":
    main()
