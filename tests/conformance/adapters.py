"""PEFT's files served by us and ours by PEFT: the answers are those of the model into which PEFT merged the adapter.

    PYTHONPATH=<where peft and accelerate are> python -m tests.conformance.adapters

It needs both packages beside the repository's own environment, and nothing of the network.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import peft
import torch

from tests.inference.adapting import FUSED, SPLIT, save_adapter
from tests.inference.drive import Drive, Reference, assert_same, reference_model
from tests.inference.test_adapters import NEW, PROMPTS, load
from tests.inference.tiny import save_tiny

KINDS = {"llama": SPLIT, "qwen3": ("q_proj", "down_proj"), "phi3": FUSED}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "rank-stabilised": {"use_rslora": True},
    "gaussian": {"init_lora_weights": "gaussian"},
    "all-linear": {"target_modules": "all-linear"},
    "by a pattern": {"target_modules": r".*\.(q_proj|o_proj|qkv_proj|down_proj)"},
    "one layer": {"layers_to_transform": [0]},
    "bfloat16": {},
}


def check(model: Path, adapter: Path) -> None:
    """Fail unless our answers with `adapter` are PEFT's merged model's, and others than without it."""
    merged = peft.PeftModel.from_pretrained(reference_model(model), str(adapter)).merge_and_unload().eval().float()
    drive = Drive(load(model))
    drive.engine.offer({"one": adapter})
    answers = drive.run(PROMPTS, NEW, adapters=["one"] * len(PROMPTS))
    assert_same(answers, [Reference.of(merged, prompt, NEW) for prompt in PROMPTS])
    assert answers != drive.run(PROMPTS, NEW), "the adapter changes nothing"


def made_by_peft(model: Path, folder: Path, setting: str, targets: tuple[str, ...]) -> Path:
    """Return the folder of an adapter with random weights that PEFT made and wrote."""
    torch.manual_seed(5)
    settings = {"r": 5, "lora_alpha": 12, "target_modules": list(targets), "task_type": "CAUSAL_LM"}
    made = peft.get_peft_model(reference_model(model), peft.LoraConfig(**settings | SETTINGS[setting]))
    for name, weight in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.3)
    (made.to(torch.bfloat16) if setting == "bfloat16" else made).save_pretrained(str(folder))
    return folder


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as work:
        for kind, targets in KINDS.items():
            model = save_tiny(kind, Path(work, kind))
            check(model, save_adapter(model, Path(work, f"{kind}-ours"), rank=8, targets=targets))
            print(f"{kind}: ours by PEFT {peft.__version__}")
            for setting in SETTINGS:
                check(model, made_by_peft(model, Path(work, f"{kind}-{setting}"), setting, targets))
                print(f"{kind}: PEFT's by us, {setting}")


if __name__ == "__main__":
    main()
