"""Transformers' continuous batching as a peer of `cpu.py`: continuous.py MODEL."""

from __future__ import annotations

import math
import sys

import torch
from transformers import AutoModelForCausalLM, ContinuousBatchingConfig, GenerationConfig
from workload import PARTS, answer, measure


def main() -> None:
    model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.bfloat16, attn_implementation="sdpa").eval()
    greedy = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0, max_new_tokens=128)
    paged = ContinuousBatchingConfig(page_size=32, num_blocks=512, max_batch_tokens=512, allow_block_sharing=False)

    def rate(part: str) -> float:
        if part == "32 × 2048":
            return math.nan  # more memory than the machine has
        with model.continuous_batching_context_manager(
            generation_config=greedy, continuous_batching_config=paged, block=True, timeout=10
        ) as manager:
            told: dict[str, int] = {}

            def step() -> list[tuple[str, int]]:
                result = manager.get_result(timeout=5)
                if result is None or len(result.generated_tokens) <= told.get(result.request_id, 0):
                    return []
                count = len(result.generated_tokens) - told.get(result.request_id, 0)
                told[result.request_id] = len(result.generated_tokens)
                return [(result.request_id, count)]

            for number, (ids, new) in enumerate(PARTS[part]):
                manager.add_request(ids, request_id=str(number), max_new_tokens=new, streaming=True)
            return measure(part, step)

    rate("batch 1")
    answer(rate)


if __name__ == "__main__":
    main()
