"""What a worker is told at start: the spec file, validated once; no other module reads settings."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

ARCHITECTURES = ("auto", "decoder", "transformers", "encoder", "fake")
SAMPLING_FIELDS = ("temperature", "top_p", "top_k", "min_p")


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One deployment as its worker runs it.

    `source` is a hub id, a folder or a GGUF file. `dtype` is "auto" (the checkpoint's), "float32", "bfloat16" or
    "float16". `kv_tokens` is the KV cache's size in tokens, 0 sizes it from the memory at hand. `max_rows` and
    `max_step_tokens` bound one step;
    `prefill_chunk` bounds one sequence's part of it. `sampling` holds values of temperature, top_p, top_k and min_p for
    clients that leave them open, before the model's own. `rates` are the rate card's of input, cache_read and output in
    any one unit: fairness between tenants counts by their ratios. The switches exist for operators and for the equality
    tests.
    """

    deployment: str
    source: str
    model: str = ""
    dtype: str = "auto"
    kv_tokens: int = 0
    block_size: int = 16
    max_rows: int = 32
    max_step_tokens: int = 512
    prefill_chunk: int = 256
    max_context: int = 0  # 0: the model's own
    max_waiting: int = 256
    max_waiting_per_tenant: int = 64
    prefix_cache: bool = True
    architecture: str = "auto"  # one of ARCHITECTURES
    sampling: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, int] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def revision(self) -> str:
        """A digest that differs between configurations for which a model is loaded anew: all but their rates."""
        loaded = {name: value for name, value in asdict(self).items() if name != "rates"}
        return hashlib.sha256(json.dumps(loaded, sort_keys=True).encode()).hexdigest()[:16]

    def __post_init__(self) -> None:
        bounds = ("block_size", "max_rows", "max_step_tokens", "prefill_chunk")
        for name in (*bounds, "max_waiting", "max_waiting_per_tenant"):
            if getattr(self, name) < 1:
                raise ValueError(f"engine {self.deployment}: {name} must be at least 1")
        for name in ("max_context", "kv_tokens"):
            if getattr(self, name) < 0:
                raise ValueError(f"engine {self.deployment}: {name} can't be negative")
        if self.dtype not in {"auto", "float32", "bfloat16", "float16"}:
            raise ValueError(f"engine {self.deployment}: dtype {self.dtype!r} is unknown")
        if self.architecture not in ARCHITECTURES:
            raise ValueError(f"engine {self.deployment}: architecture {self.architecture!r} is unknown")
        if unknown := set(self.sampling) - set(SAMPLING_FIELDS):
            raise ValueError(f"engine {self.deployment}: sampling.{min(unknown)} can't be recommended")


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker process: where it listens, its append-only record, the secret that roots its cache keys, its engines.

    A running worker follows the `engines` of its file; everything else counts from its start. `threads` 0 takes every
    core. A turn of the step thread that takes longer than `step_seconds` counts as hung. What runs on a deployment that
    is withdrawn may go on for `withdraw_seconds`. `kv_share` bounds the K/V of a model without `kv_tokens`: its part of
    the memory that is free once the weights are loaded. `endpoint` is a ZeroMQ ipc address, whose path holds at most
    107 characters.
    """

    endpoint: str
    record: str
    secret: str
    engines: tuple[EngineConfig, ...]
    threads: int = 0
    step_seconds: float = 60.0
    session_seconds: float = 5.0
    pause_seconds: float = 2.0
    prepared_seconds: float = 30.0
    session_bytes: int = 64 * 1024 * 1024
    drain_seconds: float = 5.0
    withdraw_seconds: float = 300.0
    kv_share: float = 0.3

    def __post_init__(self) -> None:
        if not self.endpoint.startswith("ipc://"):
            raise ValueError(f"endpoint {self.endpoint}: a worker listens at an ipc path of its host")
        if len(self.endpoint.removeprefix("ipc://").encode()) > 107:
            raise ValueError(f"endpoint {self.endpoint}: an ipc path holds at most 107 characters")
        if not 0 < self.kv_share <= 1:
            raise ValueError("kv_share is a part of the free memory: above 0, at most 1")
        names = [engine.deployment for engine in self.engines]
        if len(set(names)) != len(names):
            raise ValueError("a deployment stands twice among the engines")

    @classmethod
    def load(cls, path: Path) -> WorkerConfig:
        """Return the spec in `path`; raise ValueError naming what is wrong with it."""
        try:
            data = json.loads(path.read_text())
            engines = tuple(EngineConfig(**engine) for engine in data.pop("engines"))
            return cls(engines=engines, **data)
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"worker spec {path}: {error}") from error

    def save(self, path: Path) -> None:
        """Write the spec to `path`, readable by its owner alone: a reader finds the old one or the new one, whole."""
        beside = path.with_name(f".{path.name}.{os.getpid()}")
        beside.touch(mode=0o600)
        beside.write_text(json.dumps(asdict(self), indent=1))
        beside.replace(path)
