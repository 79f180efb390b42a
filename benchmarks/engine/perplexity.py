"""What each precision costs in quality: a model's perplexity on a text, by dtype and quantisation.

    python benchmarks/engine/perplexity.py --model var/models/SmolLM2-135M-Instruct --text docs/architecture.md

The text is cut into windows, each without what stands before it; `against float32` is the mean Kullback-Leibler
divergence of the next token's distribution, in thousandths of a nat, and how often the best token is the same.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch

from inference.architectures.load import load_model
from inference.architectures.proof import paged_logits
from inference.config import EngineConfig
from inference.text.tokenizer import FolderTokenizer

FORMS = {
    "float32": {"dtype": "float32"},
    "float32, torch reference": {"dtype": "float32", "options": {"tier": "reference"}},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, torch operators": {"dtype": "bfloat16", "options": {"tier": "torch"}},
    "W8A8": {"dtype": "bfloat16", "quantization": "w8a8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8, help="at most so many")
    options = parser.parse_args()
    exact: list[torch.Tensor] = []
    windows: list[list[int]] = []
    print("| precision | perplexity | against float32: divergence | same best token |\n|---|---|---|---|")
    for name, settings in FORMS.items():
        loaded = load_model(EngineConfig("bench", options.model, kv_tokens=options.window, **settings))
        if not windows:
            ids = FolderTokenizer(loaded.tokenizer_folder).encode(options.text.read_text())
            windows = [ids[i : i + options.window] for i in range(0, len(ids), options.window)][: options.windows]
            windows = [window for window in windows if len(window) > 1]
        loss, divergence, same, count = 0.0, 0.0, 0, 0
        for number, window in enumerate(windows):
            with torch.inference_mode():
                logits, _ = paged_logits(loaded.runner._causal, [window, window[:1]], loaded.block_size)
            scores = torch.log_softmax(logits[:-1].float(), -1)
            loss -= float(scores.gather(1, torch.tensor(window[1:])[:, None]).sum())
            count += len(scores)
            if len(exact) == number:
                exact.append(scores)
            divergence += float((exact[number].exp() * (exact[number] - scores)).sum())
            same += int((exact[number].argmax(1) == scores.argmax(1)).sum())
        perplexity = float(torch.tensor(loss / count).exp())
        print(f"| {name} | {perplexity:.3f} | {1000 * divergence / count:.2f} | {same / count:.1%} |", flush=True)


if __name__ == "__main__":
    main()
