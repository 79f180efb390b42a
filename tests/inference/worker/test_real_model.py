"""A worker process with torch: a tiny random model behind the same seam, tokenizer and template included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.text.tokenizer import FolderTokenizer
from inference.types import FinishReason
from tests.inference.engine_contract import chat, end_of, run, text_of
from tests.inference.text.folders import save_tokenizer
from tests.inference.tiny import save_tiny
from tests.inference.worker.processes import WorkerProcess


@pytest.mark.stack
async def test_a_small_decoder_answers_through_the_worker(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    save_tiny("llama", folder, vocab_size=save_tokenizer(folder))
    options = {"cache": str(tmp_path / "cache")}
    config = EngineConfig("tiny", str(folder), dtype="float32", kv_tokens=512, options=options)
    worker = WorkerProcess(config, threads=1).start()
    try:
        engine = await worker.open("tiny")
        request = chat("the quick brown fox jumps over the end", temperature=0.0, max_tokens=24)
        events = await run(engine, request)
        finished = end_of(events)
        tokenizer = FolderTokenizer(folder)
        assert (finished.reason, finished.usage.output) == (FinishReason.LENGTH, 24)
        assert finished.usage.prompt == len(tokenizer.prompt(request.messages))
        again = await run(engine, replace(request, id="again"))
        assert text_of(again) == text_of(events)
        assert end_of(again).usage.cache_read > 0
        await engine.close()
        assert worker.stop() == 0
    finally:
        worker.close()
