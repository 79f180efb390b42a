"""llama.cpp beside this engine: a process in an environment of its own that answers one job a line.

The environment is $SLUICE_BENCH_HOME/llama (by default under ~/.cache/sluice-bench), made by

    python -m venv ~/.cache/sluice-bench/llama
    ~/.cache/sluice-bench/llama/bin/pip install --no-binary llama-cpp-python llama-cpp-python numpy

This file is both ends: `Llama` is for scripts here, and run as a program it is the process.
"""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("SLUICE_BENCH_HOME", "~/.cache/sluice-bench")).expanduser() / "llama"
BATCH = 2048  # tokens of one call


class Llama:
    """A GGUF file in llama.cpp; with `form` ("q8_0", "q4_0") its tensors are quantised anew first."""

    def __init__(self, gguf: Path, *, threads: int, form: str = "") -> None:
        python = HOME / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"{python} isn't there: see {__file__}")
        self._process = subprocess.Popen(
            [python, __file__, gguf, str(threads), form], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def seconds(self, prompts: list[list[int]], new: int) -> float:
        """How long it takes to answer all prompts at once with `new` greedy tokens each."""
        return float(self._ask(prompts=prompts, new=new))

    def logits(self, ids: list[int]) -> Any:
        """Return float32 [tokens, vocabulary]: the logits behind each token."""
        import numpy as np

        return np.load(self._ask(ids=ids))

    def close(self) -> None:
        """End the process."""
        self._process.stdin.close()  # type: ignore[union-attr]
        self._process.wait()

    def _ask(self, **job: Any) -> Any:
        self._process.stdin.write(json.dumps(job) + "\n")  # type: ignore[union-attr]
        self._process.stdin.flush()  # type: ignore[union-attr]
        return json.loads(self._process.stdout.readline())  # type: ignore[union-attr]


def _serve(path: str, threads: int, form: str) -> None:
    import tempfile

    import llama_cpp as cpp
    import numpy as np

    @cpp.llama_log_callback
    def quiet(*_: Any) -> None: ...

    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # the library prints too
    cpp.llama_backend_init()
    cpp.llama_log_set(quiet, ctypes.c_void_p(0))
    folder = tempfile.TemporaryDirectory()
    if form:
        settings = cpp.llama_model_quantize_default_params()
        settings.ftype = getattr(cpp, f"LLAMA_FTYPE_MOSTLY_{form.upper()}")
        settings.allow_requantize = True
        settings.nthread = threads
        target = f"{folder.name}/{form}.gguf"
        if cpp.llama_model_quantize(path.encode(), target.encode(), ctypes.byref(settings)):
            raise SystemExit(f"{path} can't be quantised to {form}")
        path = target
    model = cpp.llama_model_load_from_file(path.encode(), cpp.llama_model_default_params())
    vocabulary = cpp.llama_vocab_n_tokens(cpp.llama_model_get_vocab(model))
    batch = cpp.llama_batch_init(BATCH, 0, 1)

    def context(sequences: int, tokens: int) -> Any:
        settings = cpp.llama_context_default_params()
        settings.n_ctx, settings.n_batch, settings.n_ubatch = tokens, BATCH, 512
        settings.n_seq_max, settings.kv_unified = sequences, sequences > 1
        settings.n_threads = settings.n_threads_batch = threads
        return cpp.llama_init_from_model(model, settings)

    def decode(made: Any, items: list[tuple[int, int, int, bool]]) -> list[Any]:
        """Compute (token, position, sequence, whether its logits are wanted); return those logits."""
        batch.n_tokens = len(items)
        for i, (token, position, sequence, wanted) in enumerate(items):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, wanted
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
        if cpp.llama_decode(made, batch):
            raise SystemExit("llama_decode failed")
        return [
            np.ctypeslib.as_array(cpp.llama_get_logits_ith(made, i), (vocabulary,))
            for i, item in enumerate(items)
            if item[3]
        ]

    for line in sys.stdin:
        job = json.loads(line)
        if "ids" in job:
            made = context(1, len(job["ids"]) + 8)
            logits = decode(made, [(token, i, 0, True) for i, token in enumerate(job["ids"])])
            answer: Any = f"{folder.name}/logits.npy"
            np.save(answer, np.stack(logits))
        else:
            prompts, new = job["prompts"], job["new"]
            made = context(len(prompts), sum(len(prompt) + new for prompt in prompts) + 256)
            begin = time.perf_counter()
            newest: list[int] = []
            fitting = max(1, BATCH // len(prompts[0]))
            for first in range(0, len(prompts), fitting):
                some = list(enumerate(prompts))[first : first + fitting]
                items = [(t, i, s, i == len(prompt) - 1) for s, prompt in some for i, t in enumerate(prompt)]
                newest += [int(row.argmax()) for row in decode(made, items)]
            for step in range(new - 1):
                items = [(t, len(prompts[s]) + step, s, True) for s, t in enumerate(newest)]
                newest = [int(row.argmax()) for row in decode(made, items)]
            answer = time.perf_counter() - begin
        cpp.llama_free(made)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), sys.argv[3])
