"""Attention that is changed, in whichever backend this machine takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from inference.execution.attention.c import CAttention
from inference.execution.attention.reference import ReferenceAttention


def change_attention(
    monkeypatch: pytest.MonkeyPatch, change: Callable[[torch.Tensor], torch.Tensor] = lambda mixed: mixed, **forced: Any
) -> None:
    """Make every attention call ignore its options for those that are `forced`, and `change` what it returns."""
    for backend in (ReferenceAttention, CAttention):

        def attend(*args: Any, real: Any = backend.attend, **options: Any) -> torch.Tensor:
            return change(real(*args, **{**options, **forced}))

        monkeypatch.setattr(backend, "attend", attend)
