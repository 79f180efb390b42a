"""Any transformers causal LM on our paged K/V, through the library's attention interface: served only when proved.

The model computes one packed sequence [1, T] with explicit positions and no cache of its own; each attention layer
calls our hook, which stores its keys and values and attends over the blocks. Many architectures keep a state elsewhere
or never call the hook and would then give wrong tokens without any error. So before a model is served, its logits in
a chunked, paged run of two sequences are compared with its own plain forward.
"""

from __future__ import annotations

import inspect
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference.core.step import Row
from inference.errors import ModelRefusedError
from inference.execution.attention.paged import AttentionMeta, attend
from inference.execution.inputs import StepBatch, pack
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.types import SamplingParams

EXACT = 1e-3  # of the logits' spread, at every position, in float32
ROUNDED = 0.2  # the same where 16 bits round, at nine positions of ten (an expert may be chosen otherwise)
LONGEST_WINDOW_PROVED = 1024

_names = itertools.count()


class UnhookedError(Exception):
    """The attention call asks for something that the paged hook doesn't do."""


class PagedHook:
    """The attention function of one model. `step` is set around each forward; without it, shapes are recorded."""

    def __init__(self) -> None:
        self.step: tuple[AttentionMeta, KVCache] | None = None
        self.shapes: dict[int, LayerShape] = {}
        self.windows: set[int] = set()
        self.calls = 0

    def __call__(  # noqa: PLR0917 - the order is transformers'
        self,
        module: torch.nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        **options: Any,
    ) -> tuple[torch.Tensor, None]:
        """Attend with `query`, `key` and `value` [1, heads, T, width]; return ([1, T, heads, width], None)."""
        number = self._layer(module, attention_mask, options)
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        window = int(options.get("sliding_window") or 0)
        self.calls += 1
        if self.step is None:
            self.shapes[number] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
            self.windows.add(window)
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
            return mixed.transpose(1, 2), None
        meta, cache = self.step
        held = cache.layers[number]
        held.store(meta.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
        mixed = attend(
            query[0].transpose(0, 1),
            held,
            meta,
            scale=scale,
            window=window,
            softcap=float(options.get("softcap") or 0.0),
            sinks=options.get("s_aux"),
        )
        return mixed[None], None

    @staticmethod
    def _layer(module: torch.nn.Module, mask: torch.Tensor | None, options: dict[str, Any]) -> int:
        """The layer's number; raise UnhookedError for what we would do wrong."""
        if mask is not None:
            raise UnhookedError("it passes an attention mask of its own")
        if options.get("position_bias") is not None:
            raise UnhookedError("it adds a position bias to its scores")
        if options.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise UnhookedError("its attention is not causal")
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int):
            raise UnhookedError("its attention layers carry no number")
        return number


class TransformersModel:
    """A proved model behind `CausalBackend`. `proof` says how, `max_context` bounds it further where it is not 0."""

    def __init__(self, model: Any, dtype: torch.dtype) -> None:
        from transformers import AttentionInterface

        self.model = model
        self.hook = PagedHook()
        self.interface = f"sluice_paged_{next(_names)}"
        # Its name is in no mask registry: transformers then builds no mask, which is what the paged hook wants.
        AttentionInterface.register(self.interface, self.hook)
        text = model.config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        self.layer_count = int(text.num_hidden_layers)
        self.spec = KVSpec((), dtype)
        self.proof = ""
        self.max_context = _fixed_rope_limit(text)
        self._keeps_some = "logits_to_keep" in inspect.signature(model.forward).parameters

    @classmethod
    def load(cls, config: Any, folder: Path, dtype: torch.dtype, block_size: int) -> Self:
        """Load the folder's model and prove it; raise ModelRefusedError with the reason otherwise."""
        name = (config.architectures or [config.model_type])[0]
        try:
            from transformers import AutoModelForCausalLM

            model, report = AutoModelForCausalLM.from_pretrained(
                folder, dtype=dtype, attn_implementation="eager", output_loading_info=True
            )
        except Exception as error:  # a foreign model's loading can raise anything, and none of it may end the worker
            raise ModelRefusedError(f"{name} can't be loaded by transformers: {_sentence(error)}") from error
        if report["missing_keys"]:
            raise ModelRefusedError(f"{name}: the checkpoint lacks {min(report['missing_keys'])} and others")
        loaded = cls(model.eval(), dtype)
        try:
            loaded._prove(block_size)
        except UnhookedError as error:
            raise ModelRefusedError(f"{name} can't be served through the attention interface: {error}") from error
        except Exception as error:  # the same
            raise ModelRefusedError(f"{name} failed in a paged run: {_sentence(error)}") from error
        return loaded

    def forward(self, batch: StepBatch, cache: KVCache) -> torch.Tensor:
        self.hook.step = (batch.attention, cache)
        try:
            return self._logits(batch.ids, batch.positions, batch.sampled)
        finally:
            self.hook.step = None

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
        keep = {"logits_to_keep": wanted} if self._keeps_some else {}
        answer = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False, **keep)
        logits: torch.Tensor = answer.logits[0]
        return logits if self._keeps_some else logits[wanted]

    def _prove(self, block_size: int) -> None:
        """Record the layers in a two-token pass, then compare a paged run with the plain forward."""
        self.model.set_attn_implementation(self.interface)
        self._logits(torch.tensor([1, 2]), torch.arange(2), torch.arange(2))
        self._expect_calls()
        self.spec = KVSpec(tuple(self.hook.shapes[i] for i in range(self.layer_count)), self.spec.dtype)
        windows = [window for window in self.hook.windows if 0 < window <= LONGEST_WINDOW_PROVED]
        lengths = (max([3 * block_size, *windows]) + 5, block_size + 3)
        generator = torch.Generator().manual_seed(1)
        sequences = [torch.randint(self.vocab_size, (n,), generator=generator).tolist() for n in lengths]
        paged = self._paged_run(sequences, block_size)
        self.model.set_attn_implementation("eager")
        plain = [self.model(input_ids=torch.tensor([ids]), use_cache=False).logits[0].float() for ids in sequences]
        self.model.set_attn_implementation(self.interface)
        error = torch.cat([(a - b).abs().amax(1) / b.std(1) for a, b in zip(paged, plain, strict=True)])
        exact = self.spec.dtype is torch.float32
        worst = float(error.max() if exact else error.quantile(0.9))
        if not worst <= (EXACT if exact else ROUNDED):
            raise UnhookedError(f"its paged logits differ from its plain forward by {worst:.2g} of their spread")
        self.proof = f"{self.layer_count} layers hooked; paged logits within {worst:.1g} of their spread"

    def _expect_calls(self) -> None:
        """Each layer must have called the hook exactly once, under its own number."""
        found = len(self.hook.shapes)
        if found == 0:
            raise UnhookedError("none of its layers calls it")
        if sorted(self.hook.shapes) != list(range(self.layer_count)):
            raise UnhookedError(f"only {found} of its {self.layer_count} layers call it")
        if self.hook.calls != self.layer_count:
            raise UnhookedError(f"its {self.layer_count} layers call it {self.hook.calls} times in one pass")

    def _paged_run(self, sequences: list[list[int]], block_size: int) -> list[torch.Tensor]:
        """Logits of all positions of each sequence, computed together in chunks and single tokens."""
        needed = [-(-len(ids) // block_size) for ids in sequences]
        cache = KVCache(self.spec, sum(needed) + 1, block_size)
        free = list(range(1, sum(needed) + 1))
        tables = [tuple(free.pop() if i % 2 else free.pop(0) for i in range(n)) for n in needed]
        done = [0 for _ in sequences]
        logits: list[list[torch.Tensor]] = [[] for _ in sequences]
        sizes = itertools.cycle(((block_size + 1, 2), (1, block_size - 1 or 1), (7, 1), (1, 1)))
        while any(n < len(ids) for n, ids in zip(done, sequences, strict=True)):
            turn = [
                (i, ids[done[i] : done[i] + size])
                for (i, ids), size in zip(enumerate(sequences), next(sizes), strict=True)
                if done[i] < len(ids)
            ]
            rows = [_row(i, ids, done[i], tables[i]) for i, ids in turn]
            batch = pack(rows, block_size)
            batch = replace(batch, sampled=torch.arange(batch.ids.shape[0]))
            # Packing puts single tokens first.
            packed = sorted(turn, key=lambda item: (len(item[1]) > 1, done[item[0]] if len(item[1]) == 1 else 0))
            parts = torch.split(self.forward(batch, cache).float(), [len(ids) for _, ids in packed])
            for (i, ids), part in zip(packed, parts, strict=True):
                logits[i].append(part)
                done[i] += len(ids)
        return [torch.cat(parts) for parts in logits]


def _row(number: int, ids: list[int], start: int, blocks: tuple[int, ...]) -> Row:
    return Row(number, str(number), tuple(ids), start, blocks, False, 0, SamplingParams(), 0)


def _fixed_rope_limit(config: Any) -> int:
    """Up to where a rope that depends on the batch's longest position is still the same for all, else 0."""
    parameters = getattr(config, "rope_parameters", None) or {}
    if parameters.get("rope_type") not in {"dynamic", "longrope"}:
        return 0
    original = parameters.get("original_max_position_embeddings") or getattr(
        config, "original_max_position_embeddings", None
    )
    return int(original or config.max_position_embeddings)


def _sentence(error: Exception) -> str:
    """The error's first line, or its class."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0]}" if lines else type(error).__name__
