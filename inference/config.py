"""A worker's spec file and the settings of each engine in it, validated when they are read."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ARCHITECTURES = ("auto", "decoder", "transformers", "encoder", "fake")
QUANTIZATIONS = ("", "w8a8", "int4", "fp8")
TOOLS = (
    "auto",
    "generic",
    "off",
    "hermes",
    "llama3",
    "mistral",
    "mistral-args",
    "qwen3-coder",
    "seed-oss",
    "glm",
    "hunyuan3",
    "minimax-m2",
    "deepseek-v3",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "deepseek-v4",
    "kimi",
    "harmony",
    "solar",
    "gemma4",
    "function-gemma",
    "phi4",
    "granite",
    "granite-20b",
    "nemotron",
    "tool-calls",
    "cohere",
    "apertus",
    "internlm",
    "gigachat3",
    "gigachat",
    "functionary",
    "lfm2",
    "olmo3",
    "pythonic",
)
REASONING = re.compile(r"auto|off|\S+ \S+")
POOLING = ("cls", "mean", "lasttoken", "max", "mean_sqrt_len_tokens")
TIERS = ("auto", "c", "torch", "reference")
CHOICES: Mapping[str, tuple[str, ...]] = {
    "dtype": ("auto", "float32", "bfloat16", "float16"),
    "quantization": QUANTIZATIONS,
    "kv_dtype": ("auto", "int8", "fp8"),
    "architecture": ARCHITECTURES,
}
COUNTS: Mapping[str, tuple[int, int]] = {
    "kv_tokens": (0, 2**31 - 1),
    "block_size": (1, 4096),
    "max_rows": (0, 4096),
    "max_step_tokens": (0, 2**20),
    "prefill_chunk": (0, 2**20),
    "max_context": (0, 2**31 - 1),
    "max_waiting": (1, 2**20),
    "max_waiting_per_tenant": (1, 2**20),
    "speculation": (0, 64),
    "most_adapters": (1, 4096),
    "adapters_per_tenant": (0, 4096),
    "adapter_bytes": (0, 2**40),
}
SECONDS: Mapping[str, float] = {"prefill_seconds": 60.0, "reclaim_seconds": 3600.0}
Rule = tuple[Callable[[Any], bool], str]  # whether a value can be meant, and what can
SAMPLING_FIELDS: Mapping[str, Rule] = {
    "temperature": (lambda value: _is_number(value, 0, 100), "a number from 0 to 100"),
    "top_p": (lambda value: _is_number(value, 1e-9, 1), "a number above 0 and at most 1"),
    "top_k": (lambda value: type(value) is int and 0 <= value < 2**31, "a whole number from 0 (all)"),
    "min_p": (lambda value: _is_number(value, 0, 1), "a number from 0 to 1"),
}
LOAD_OPTIONS: Mapping[str, Rule] = {
    "cache": (lambda value: isinstance(value, str) and value != "", "the path of a folder"),
    "tier": (lambda value: value in TIERS, f"one of {', '.join(TIERS)}"),
    "tools": (lambda value: value in TOOLS, f"one of {', '.join(TOOLS)}"),
    "reasoning": (
        lambda value: isinstance(value, str) and REASONING.fullmatch(value) is not None,
        "auto, off, or two markers with a space between them",
    ),
    "overlap": (lambda value: isinstance(value, bool), "true or false"),
    "pooling": (lambda value: value in POOLING, f"one of {', '.join(POOLING)}"),
    "normalize": (lambda value: isinstance(value, bool), "true or false"),
    "matryoshka": (lambda value: isinstance(value, bool), "true or false"),
}


class StepSizes(NamedTuple):
    """The most rows and tokens of one step, and of one sequence's tokens in it."""

    rows: int
    tokens: int
    chunk: int


ON_CPU = StepSizes(32, 512, 256)
ON_GPU = StepSizes(256, 8192, 2048)  # a GPU that reads its weights for fewer rows and tokens mostly waits for them


class SettingError(ValueError):
    """A setting of an engine that can't be meant; `message` names it and what it may be."""

    def __init__(self, deployment: str, message: str) -> None:
        super().__init__(f"engine {deployment}: {message}")
        self.message = message


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """One deployment as its worker runs it.

    `source` is a hub id, a folder or a GGUF file. `dtype` is "auto" (the checkpoint's, or float32 where that is
    faster), "float32", "bfloat16" or "float16". `quantization` "w8a8" computes the linear layers in eight bits, "int4"
    keeps their weights in four (in groups; eight for the head), "fp8" computes in float8 (GPUs of capability 8.9 and
    later), "" leaves them in `dtype`, or as the checkpoint stores them. `device` is "cpu", "cuda" (the first GPU
    that the process sees), "cuda:1" …, or "auto": a GPU where there is one. `kv_tokens` is the KV cache's size in
    tokens; 0 sizes it from the free memory.
    `kv_dtype` "int8" keeps K/V in eight bits with a scale for each token and head (the CPU's C kernels), "fp8" in eight
    bits on GPUs, "auto" in the model's dtype. `max_rows` and `max_step_tokens` bound one step, `prefill_chunk` one
    sequence's tokens in it (0: as many as suit the device, 32, 512 and 256 on a CPU, 256, 8192 and 2048 on a GPU);
    beside rows that decode, prompts take at most `prefill_seconds` of a step (0: as long as they take), and the step
    takes at most one and a half times what one with every row takes, or 25 ms; five times as long without such rows. A
    tenant with fewer than half of its share of rows gets more at once from those above theirs, then one each
    `reclaim_seconds`.
    While few sequences run, each may have up to `speculation` drafts in a step, copied from its own text (0: none),
    where steps don't overlap. `max_context` 0 is the model's own. `sampling` holds recommended values of temperature,
    top_p, top_k and min_p, for requests that don't set them; they precede the model's own. `rates` are the rate card's
    of input, cache_read and output in any one unit: fairness between tenants counts by their ratios. `adapters` has the
    folder of each adapter that requests may name; at most `most_adapters` of them are in memory, of `adapter_bytes`
    together (0: as many of rank 16), and of those at most `adapters_per_tenant` are used by one tenant (0: half).
    `options` are those of `load_model`, or for the architecture "fake" those of `FakeModelOptions`.
    """

    deployment: str
    source: str
    model: str = ""
    dtype: str = "auto"
    quantization: str = ""  # one of QUANTIZATIONS
    device: str = "auto"
    kv_tokens: int = 0
    kv_dtype: str = "auto"  # or "int8", "fp8"
    block_size: int = 16
    max_rows: int = 0
    max_step_tokens: int = 0
    prefill_chunk: int = 0
    prefill_seconds: float = 0.1
    reclaim_seconds: float = 0.25
    max_context: int = 0
    max_waiting: int = 256
    max_waiting_per_tenant: int = 64
    prefix_cache: bool = True
    speculation: int = 0
    architecture: str = "auto"  # one of ARCHITECTURES
    sampling: Mapping[str, float] = field(default_factory=dict)
    rates: Mapping[str, int] = field(default_factory=dict)
    most_adapters: int = 16
    adapters_per_tenant: int = 0
    adapter_bytes: int = 0
    adapters: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def revision(self) -> str:
        """A digest of every setting but `rates` and `adapters`: a deployment is loaded again when it changes."""
        loaded = {name: value for name, value in asdict(self).items() if name not in {"rates", "adapters"}}
        return hashlib.sha256(json.dumps(loaded, sort_keys=True).encode()).hexdigest()[:16]

    def sizes(self, usual: StepSizes) -> StepSizes:
        """Return the sizes of steps, where those that aren't stated are the device's `usual` ones."""
        return StepSizes(
            self.max_rows or usual.rows, self.max_step_tokens or usual.tokens, self.prefill_chunk or usual.chunk
        )

    def __post_init__(self) -> None:
        """Raise `SettingError` for the first setting that can't be meant."""
        for name in ("deployment", "source", "model", "device", *CHOICES):
            self._require(name, isinstance(getattr(self, name), str), "a text")
        for name, known in CHOICES.items():
            self._require(name, getattr(self, name) in known, "one of " + ", ".join(map(repr, known)))
        on = re.fullmatch(r"auto|cpu|cuda(:\d{1,3})?", self.device)
        self._require("device", on is not None, "auto, cpu, cuda or cuda:<number>")
        for name, (least, most) in COUNTS.items():
            value = getattr(self, name)
            fits = type(value) is int and least <= value <= most  # true is no number here
            self._require(name, fits, f"a whole number from {least} to {most}")
        for name, longest in SECONDS.items():
            self._require(name, _is_number(getattr(self, name), 0, longest), f"a number from 0 to {longest:g}")
        self._require("prefix_cache", isinstance(self.prefix_cache, bool), "true or false")
        are_folders = isinstance(self.adapters, Mapping) and all(
            isinstance(each, str) for each in self.adapters.values()
        )
        self._require("adapters", are_folders, "an object of folders")
        self._require_all("sampling", SAMPLING_FIELDS)
        self._require_all("options", {} if self.architecture == "fake" else LOAD_OPTIONS)

    def _require(self, name: str, fits: bool, what: str) -> None:
        if not fits:
            raise SettingError(self.deployment, f"{name} is {what}, not {_short(getattr(self, name))}")

    def _require_all(self, name: str, rules: Mapping[str, Rule]) -> None:
        """Hold the settings within `name` to their rules; without any its model has its own."""
        values = getattr(self, name)
        self._require(name, isinstance(values, Mapping), "an object")
        for key, value in values.items() if rules else ():
            if key not in rules:
                raise SettingError(self.deployment, f"{name} has no {key!r}, only {', '.join(rules)}")
            fits, what = rules[key]
            if not fits(value):
                raise SettingError(self.deployment, f"{name}.{key} is {what}, not {_short(value)}")


def _is_number(value: Any, least: float, most: float) -> bool:
    """Whether it is a number between the two; NaN is not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """A worker process: its endpoint, the path of its append-only record, the secret of its cache keys, its engines.

    A running worker follows the `engines` of its file; everything else takes effect when it starts. `endpoint` is a
    ZeroMQ address: ipc with a path of at most 107 bytes, or tcp, with `keys` the path of its key file
    (`inference.curve.WorkerKeys`): there is no tcp in the clear. `threads` 0 takes every core. The step thread counts
    as hung when an iteration takes longer than `step_seconds`. A session ends after `session_seconds` without a
    renewal, or with more than `session_bytes` unread; it also holds at most that many bytes of prepared requests, each
    for `prepared_seconds`. `pause_seconds` is how long a request waits at its allowance. Running requests may go on for
    `drain_seconds` when the worker is stopped, and for `withdraw_seconds` when their deployment is withdrawn.
    `kv_share` sizes the K/V cache of a model without `kv_tokens`, as a part of the memory that is free once the weights
    are loaded. `refused` are further deployments, each with the reason why its settings can't be meant.
    """

    endpoint: str
    record: str
    secret: str
    engines: tuple[EngineConfig, ...]
    refused: Mapping[str, str] = field(default_factory=dict)
    keys: str = ""
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
        if not self.endpoint.startswith(("ipc://", "tcp://")):
            raise ValueError(f"endpoint {self.endpoint}: a worker listens at ipc://path or tcp://address:port")
        if self.endpoint.startswith("tcp://") != bool(self.keys):
            raise ValueError(f"endpoint {self.endpoint}: a worker has a key file if it listens over tcp, and only then")
        if self.endpoint.startswith("ipc://") and len(self.endpoint.removeprefix("ipc://").encode()) > 107:
            raise ValueError(f"endpoint {self.endpoint}: an ipc path holds at most 107 characters")
        if not 0 < self.kv_share <= 1:
            raise ValueError("kv_share is a part of the free memory: above 0, at most 1")
        names = [engine.deployment for engine in self.engines]
        if len(set(names)) != len(names):
            raise ValueError("engines: two of them have the same deployment")

    @classmethod
    def load(cls, path: Path) -> WorkerConfig:
        """Return the spec in `path`; raise OSError or a ValueError that names what is wrong with it."""
        try:
            data = json.loads(path.read_text())
            engines = tuple(EngineConfig(**engine) for engine in data.pop("engines"))
            return cls(engines=engines, **data)
        except (TypeError, KeyError, json.JSONDecodeError) as error:
            raise ValueError(f"worker spec {path}: {error}") from error

    def save(self, path: Path) -> None:
        """Replace the file at `path` by this spec in one step, readable by its owner alone."""
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.touch(mode=0o600)
        temporary.write_text(json.dumps(asdict(self), indent=1))
        temporary.replace(path)
