"""What each precision costs in quality: a model's perplexity on a text, by dtype and quantisation, also of K/V.

    python benchmarks/engine/perplexity.py --model var/models/SmolLM2-135M-Instruct --text docs/architecture.md
    python benchmarks/engine/perplexity.py --gguf SmolLM2-135M-Instruct.Q4_1.gguf --text docs/architecture.md

The text is cut into windows, each without what stands before it; `divergence` is the mean Kullback-Leibler
divergence of the next token's distribution from float32's, in thousandths of a nat; `same best token` says how often
both prefer the same. With `--gguf` llama.cpp runs the file too (`llama.py`), as it is and quantised anew.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import torch
from llama import Llama

from inference.architectures.load import load_model
from inference.architectures.proof import paged_logits
from inference.config import EngineConfig
from inference.text.tokenizer import FolderTokenizer

FORMS: dict[str, dict[str, Any]] = {
    "float32": {"dtype": "float32"},
    "float32, torch reference": {"dtype": "float32", "options": {"tier": "reference"}},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16, torch operators": {"dtype": "bfloat16", "options": {"tier": "torch"}},
    "W8A8": {"dtype": "bfloat16", "quantization": "w8a8"},
    "int4": {"dtype": "bfloat16", "quantization": "int4"},
}
FORMS |= {
    f"{name}, K/V in int8": {**FORMS[name], "kv_dtype": "int8"} for name in ("float32", "bfloat16", "W8A8", "int4")
}
LLAMA = {"as it is": "", "q8_0": "q8_0", "q4_0": "q4_0"}
Logits = Callable[[list[int]], torch.Tensor]


def precisions(model: str, gguf: Path | None, window: int) -> Iterator[tuple[str, Logits]]:
    """Yield each precision's name and its function from ids to logits, float32 [tokens, vocabulary]."""
    for name, settings in FORMS.items():
        loaded = load_model(EngineConfig("bench", model, kv_tokens=window, **settings))

        def ours(ids: list[int], loaded: Any = loaded) -> torch.Tensor:
            runner = loaded.runner
            with torch.inference_mode():
                spec = runner._packer.attention.cache.spec
                return paged_logits(runner._causal, [ids, ids[:1]], loaded.block_size, spec)[0].float()

        yield name, ours
    if gguf is not None:
        for name, form in LLAMA.items():
            peer = Llama(gguf, threads=torch.get_num_threads(), form=form)
            yield f"llama.cpp, {name}", lambda ids, peer=peer: torch.from_numpy(peer.logits(ids))
            peer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--model", help="hub id or folder")
    source.add_argument("--gguf", type=Path, help="a GGUF file, for llama.cpp too")
    parser.add_argument("--text", type=Path, required=True)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--windows", type=int, default=8, help="at most so many")
    options = parser.parse_args()
    model = str(options.model or options.gguf)
    folder = load_model(EngineConfig("bench", model, kv_tokens=64)).tokenizer_folder
    ids = FolderTokenizer(folder).encode(options.text.read_text())
    windows = [ids[i : i + options.window] for i in range(0, len(ids), options.window)][: options.windows]
    windows = [window for window in windows if len(window) > 1]
    print(f"{sum(map(len, windows))} tokens in {len(windows)} windows\n")
    print("| precision | perplexity | divergence | same best token |\n|---|---|---|---|")
    exact: list[torch.Tensor] = []
    for name, logits in precisions(model, options.gguf, options.window):
        loss, divergence, same, count = 0.0, 0.0, 0, 0
        for number, window in enumerate(windows):
            scores = torch.log_softmax(logits(window)[:-1], -1)
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
