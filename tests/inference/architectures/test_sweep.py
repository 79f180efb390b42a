"""A part of the sweep over transformers' causal models (benchmarks/engine/sweep.py): one type for each way it goes."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.engine.sweep import EQUAL, REFUSED, examine
from benchmarks.engine.tiny_configs import FORMS
from tests.inference.sweeps import first

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "result", "text"),
    first(
        [
            ("llama4_text", EQUAL, "transformers, up to 24 tokens"),  # no further than its first chunk
            ("deepseek_v3", EQUAL, "transformers, up to 512 tokens"),  # keys and values of different widths
            ("gemma4_text", EQUAL, "transformers, up to 512 tokens"),  # layers of different widths
            ("gemma3n_text", EQUAL, "transformers, up to 512 tokens"),  # layers that share others' keys and values
            ("phi3 longrope", EQUAL, "up to 64 tokens"),
            ("moshi", REFUSED, "its own cache gives other logits than its plain forward pass"),
            ("deepseek_v4", REFUSED, "it gives 23 keys for 19 tokens"),
            # a state beside attention in each layer
            ("falcon_h1", REFUSED, "its paged logits differ from its plain forward"),
            ("diffllama", REFUSED, "its 2 layers call it 4 times in one pass"),
            ("mamba", REFUSED, "none of its layers calls it"),
        ],
        of=lambda case: case[1],
    ),
)
def test_a_type_is_served_as_transformers_runs_it_or_refused(tmp_path: Path, kind: str, result: str, text: str) -> None:
    verdict = examine(kind, FORMS.get(kind, {}), tmp_path)
    assert verdict.result == result, verdict
    assert text in verdict.text
