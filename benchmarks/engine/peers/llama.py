"""llama.cpp as a peer of `cpu.py`, through llama-cpp-python's low-level calls: llama.py MODEL.gguf.

`llama.py MODEL.gguf --quantize q8_0|q4_0 TARGET.gguf` writes the model in another type and ends.

Requests are batched continuously over `llama_decode`, as llama.cpp's own server does: all rows that decode, then prompt
tokens up to 512 in a call.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import llama_cpp as llama
import numpy as np
from workload import PARTS, Job, answer, measure

CALL_TOKENS = 512
THREADS = 2
Item = tuple[int, int, int, bool]  # token, position, sequence, whether its logits are wanted


@llama.llama_log_callback
def _quiet(level: int, text: bytes, data: Any) -> None:
    """Keep llama.cpp's own lines out of the answers."""


class Engine:
    """One model; a context is made for each run, so that its size suits the run."""

    def __init__(self, path: str) -> None:
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        self.words = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.batch = llama.llama_batch_init(4096, 0, 1)

    def context(self, jobs: list[Job]) -> Any:
        settings = llama.llama_context_default_params()
        settings.n_ctx = len(jobs) * -(-max(len(ids) + new for ids, new in jobs) // 256) * 256
        settings.n_batch, settings.n_ubatch, settings.n_seq_max = 2048, CALL_TOKENS, len(jobs)
        settings.n_threads = settings.n_threads_batch = THREADS
        settings.kv_unified = len(jobs) > 1
        return llama.llama_init_from_model(self.model, settings)

    def decode(self, context: Any, items: list[Item]) -> list[int | None]:
        """Compute the tokens of one call; return the likeliest next token where logits were wanted."""
        batch = self.batch
        batch.n_tokens = len(items)
        for i, (token, position, sequence, wanted) in enumerate(items):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position, 1, wanted
            batch.seq_id[i][0] = sequence
        if status := llama.llama_decode(context, batch):
            raise RuntimeError(f"llama_decode returned {status}")
        return [self.likeliest(context, i) if item[3] else None for i, item in enumerate(items)]

    def likeliest(self, context: Any, index: int) -> int:
        logits = llama.llama_get_logits_ith(context, index)
        return int(np.ctypeslib.as_array(logits, (self.words,)).argmax())

    def rate(self, part: str) -> float:
        """Run a part; the prompts' tokens fill each call up to its size."""
        jobs = PARTS[part]
        context = self.context(jobs)
        done, made, newest = [0] * len(jobs), [0] * len(jobs), [0] * len(jobs)

        def step() -> list[tuple[int, int]]:
            items: list[Item] = []
            who: list[int] = []
            for i, (ids, new) in enumerate(jobs):
                if 0 < made[i] < new:
                    items.append((newest[i], len(ids) + made[i] - 1, i, True))
                    who.append(i)
            for i, (ids, _) in enumerate(jobs):
                take = min(len(ids) - done[i], CALL_TOKENS - len(items))
                items += [(ids[p], p, i, p == len(ids) - 1) for p in range(done[i], done[i] + take)]
                who += [i] * take
                done[i] += take
            sampled = [
                (i, token) for i, token in zip(who, self.decode(context, items), strict=True) if token is not None
            ]
            for i, token in sampled:
                newest[i], made[i] = token, made[i] + 1
            return [(i, 1) for i, _ in sampled]

        try:
            return measure(part, step)
        finally:
            llama.llama_free(context)


def quantize(source: str, target: str, kind: str) -> None:
    settings = llama.llama_model_quantize_default_params()
    settings.ftype = {"q8_0": llama.LLAMA_FTYPE_MOSTLY_Q8_0, "q4_0": llama.LLAMA_FTYPE_MOSTLY_Q4_0}[kind]
    settings.nthread = THREADS
    if llama.llama_model_quantize(source.encode(), target.encode(), ctypes.byref(settings)):
        raise SystemExit(f"llama.cpp could not write {target}")


def main() -> None:
    llama.llama_log_set(_quiet, ctypes.c_void_p(0))
    if "--quantize" in sys.argv:
        source, _, kind, target = sys.argv[1:]
        quantize(source, target, kind)
        return
    engine = Engine(sys.argv[1])
    engine.rate("batch 1")
    answer(engine.rate)


if __name__ == "__main__":
    main()
