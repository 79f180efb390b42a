"""vLLM's build for CPUs as a peer of `cpu.py`: vllm_cpu.py MODEL [KV_GIB]."""

from __future__ import annotations

import os
import sys

os.environ |= {
    "VLLM_CPU_KVCACHE_SPACE": sys.argv[2] if len(sys.argv) > 2 else "2",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "0-1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}

from workload import PARTS, answer, measure


def main() -> None:
    from vllm import LLM, SamplingParams

    settings = {"max_model_len": 2304, "max_num_seqs": 32, "enable_prefix_caching": False, "skip_tokenizer_init": True}
    engine = LLM(model=sys.argv[1], dtype="bfloat16", disable_log_stats=True, **settings).llm_engine

    def rate(part: str) -> float:
        told: dict[str, int] = {}

        def step() -> list[tuple[str, int]]:
            outputs = engine.step()
            made = [(one.request_id, len(one.outputs[0].token_ids) - told.get(one.request_id, 0)) for one in outputs]
            told.update((one.request_id, len(one.outputs[0].token_ids)) for one in outputs)
            return [(request, count) for request, count in made if count]

        for number, (ids, new) in enumerate(PARTS[part]):
            sampling = SamplingParams(temperature=0, max_tokens=new, min_tokens=new, ignore_eos=True, detokenize=False)
            engine.add_request(str(number), {"prompt_token_ids": ids}, sampling)
        try:
            return measure(part, step)
        finally:
            engine.abort_request([str(number) for number in range(len(PARTS[part]))])
            while engine.has_unfinished_requests():
                engine.step()

    rate("batch 1")
    answer(rate)


if __name__ == "__main__":
    main()
