"""Any transformers causal LM on our paged K/V, through the library's attention interface: served only when proved.

The model computes one packed sequence [1, T] with explicit positions and no cache of its own; each attention layer
calls our hook, which stores its keys and values and attends over the blocks. The architecture is proved on a small
model first (`proof`); then every layer of the loaded model has to call the hook, and its logits have to agree with
those of its plain forward pass.
"""

from __future__ import annotations

import itertools
from functools import partial
from pathlib import Path
from typing import Any, Self

import torch
from torch.nn.functional import scaled_dot_product_attention

from inference.architectures.proof import (
    FLOAT32_TOLERANCE,
    Proof,
    UnservableError,
    distances,
    paged_logits,
    plain_logits,
    proved,
    random_sequences,
)
from inference.architectures.replaced import replace_linears, watched_linears
from inference.architectures.small_model import first_line
from inference.architectures.weights import read_model
from inference.errors import ModelRefusedError
from inference.execution.adapters import Adapters
from inference.execution.attention.base import Attention
from inference.execution.inputs import StepBatch
from inference.execution.kv_cache import KVCache, KVSpec, LayerShape
from inference.execution.low_rank import LowRank
from inference.execution.operators import Operators

# A part of the logits' spread in 16 bits or fewer, at nine positions of ten: rounding may choose another expert at one.
ROUNDED_TOLERANCE = 0.2

_interface_numbers = itertools.count()


class PagedHook:
    """One model's attention function. `attention` is set during a forward pass; without it, shapes are recorded."""

    def __init__(self) -> None:
        self.attention: Attention | None = None
        self.shapes: dict[int, LayerShape] = {}
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
        if key.shape[2] != query.shape[2]:
            raise UnservableError(f"it gives {key.shape[2]} keys for {query.shape[2]} tokens")
        scale = query.shape[-1] ** -0.5 if scaling is None else float(scaling)
        self.calls += 1
        if self.attention is None:
            self.shapes[number] = LayerShape(key.shape[1], key.shape[-1], value.shape[-1])
            mixed = scaled_dot_product_attention(query, key, value, is_causal=True, scale=scale, enable_gqa=True)
            return mixed.transpose(1, 2), None
        self.attention.store(number, key[0].transpose(0, 1), value[0].transpose(0, 1))
        mixed = self.attention.attend(
            number,
            query[0].transpose(0, 1),
            scale=scale,
            window=int(options.get("sliding_window") or 0),
            softcap=float(options.get("softcap") or 0.0),
            sinks=options.get("s_aux"),
        )
        return mixed[None], None

    @staticmethod
    def _layer(module: torch.nn.Module, mask: torch.Tensor | None, options: dict[str, Any]) -> int:
        """Return the layer's number; raise UnservableError for attention that the hook doesn't implement."""
        if mask is not None:
            raise UnservableError("it passes an attention mask of its own")
        if options.get("position_bias") is not None:
            raise UnservableError("it adds a position bias to its scores")
        if options.get("is_causal", getattr(module, "is_causal", True)) is False:
            raise UnservableError("its attention is not causal")
        number = getattr(module, "layer_idx", None)
        if not isinstance(number, int):
            raise UnservableError("its attention layers carry no number")
        return number


class TransformersModel:
    """A `CausalBackend` over a transformers model.

    Creating one makes the model's attention layers call the hook; it raises UnservableError unless each does, once.
    """

    exact = False  # norms, activations and experts are the model's own
    quantized: float  # which part of all weights is

    def __init__(self, model: Any, operators: Operators) -> None:
        from transformers import AttentionInterface

        self.operators = operators
        self.device = operators.device
        self.model = model.to(operators.device)
        self.hook = PagedHook()
        self.interface = f"sluice_paged_{next(_interface_numbers)}"
        # transformers builds no mask for a name without an entry in its mask registry, and the hook needs none.
        AttentionInterface.register(self.interface, self.hook)
        text = model.config.get_text_config()
        self.vocab_size = int(text.vocab_size)
        self.adapters: Adapters | None = None
        self.low_rank: LowRank | None = None
        self.layer_count = int(text.num_hidden_layers)
        self.proof = Proof(0, "not proved")
        model.set_attn_implementation(self.interface)
        ids, positions = torch.tensor([1, 2], device=self.device), torch.arange(2, device=self.device)
        with watched_linears(model) as linears:
            try:
                self._logits(ids, positions, positions)
            except UnservableError:
                raise
            except Exception as error:  # a foreign model can raise anything
                raise UnservableError(f"it needs a mask or a cache of its own ({first_line(error)})") from error
            self._expect_calls()
        weights = sum(parameter.numel() for parameter in model.parameters())
        self.quantized = replace_linears(model, linears, operators) / weights if operators.quantization else 0.0
        logits = self._logits(ids, positions, positions)
        self._body: Any = model.base_model
        self._output: Any = None  # the class of what the body returns
        self._splits = self._splits_at_body(ids, positions, logits)
        self.spec = KVSpec(tuple(self.hook.shapes[i] for i in range(self.layer_count)), model.dtype)

    @classmethod
    def load(
        cls,
        config: Any,
        folder: Path,
        dtype: torch.dtype,
        operators: Operators,
        *,
        proving: Operators,
        block_size: int,
        proofs: Path,
    ) -> Self:
        """Prove the config's architecture, load the folder's model and check it too.

        Raise ModelRefusedError with the reason where one of these fails. Its linear layers and its attention are those
        of `operators`; `proving` are those of the proof, in float32; `proofs` is the folder of earlier proofs.
        """
        from transformers import AutoModelForCausalLM

        name = (config.architectures or [config.model_type])[0]
        try:
            candidate = partial(cls, operators=proving)
            proof = proved(config, f"transformers, {proving.tier}", candidate, block_size, proofs)
            model = read_model(AutoModelForCausalLM, folder, dtype, attn_implementation="eager")
            loaded = cls(model, operators)
            loaded._check(block_size, proof.max_context)
        except ModelRefusedError:
            raise
        except UnservableError as error:
            raise ModelRefusedError(f"{name} can't be served through the attention interface: {error}") from error
        except Exception as error:  # a foreign model can raise anything, and none of it may end the worker
            raise ModelRefusedError(f"{name} failed in a paged run: {first_line(error)}") from error
        if operators.quantization and not loaded.quantized:
            raise ModelRefusedError(f"{name}: quantization {operators.quantization} fits none of its layers")
        loaded.proof = proof
        return loaded

    def attention(self, cache: KVCache, *, max_rows: int, max_blocks: int) -> Attention:
        return self.operators.attention(cache, max_rows=max_rows, max_blocks=max_blocks)

    def forward(self, batch: StepBatch) -> torch.Tensor:
        self.hook.attention = batch.attention
        try:
            if self._splits:
                return self._hidden(batch.ids, batch.positions)[batch.sampled]
            return self._logits(batch.ids, batch.positions, batch.sampled)
        finally:
            self.hook.attention = None

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self._after_body(hidden) if self._splits else hidden

    def _splits_at_body(self, ids: torch.Tensor, positions: torch.Tensor, logits: torch.Tensor) -> bool:
        """Whether the body and what follows it can run apart; else `forward` computes the logits at once."""
        if self._body is self.model:
            return False
        try:
            return torch.equal(self._after_body(self._hidden(ids, positions)), logits)
        except Exception:  # noqa: BLE001 - a foreign model can raise anything where it is called otherwise than usual
            return False

    def _after_body(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits [n, vocabulary]: head, scales and caps as the model has them, after a body that is given."""
        self._body.forward = lambda *_, **__: self._output(last_hidden_state=hidden[None])
        try:
            answer = self.model(input_ids=None, inputs_embeds=hidden[None], use_cache=False)
        finally:
            del self._body.forward
        logits: torch.Tensor = answer.logits[0]
        return logits

    def _hidden(self, ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        answer = self._body(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        self._output = type(answer)
        hidden: torch.Tensor = answer.last_hidden_state[0]
        return hidden

    def _logits(self, ids: torch.Tensor, positions: torch.Tensor, sampled: torch.Tensor) -> torch.Tensor:
        answer = self.model(input_ids=ids[None], position_ids=positions[None], use_cache=False)
        logits: torch.Tensor = answer.logits[0]
        return logits[sampled]

    def _check(self, block_size: int, most: int) -> None:
        """Compare with the plain forward pass, within the rounding of the dtype; raise UnservableError.

        The sequences are no longer than `most` (0: any number of) tokens.
        """
        lengths = (3 * block_size + 5, block_size + 3)
        sequences = random_sequences(self.vocab_size, [min(length, most or length) for length in lengths])
        paged = paged_logits(self, sequences, block_size)
        self.model.set_attn_implementation("eager")
        error = distances(paged, plain_logits(self.model, sequences))
        self.model.set_attn_implementation(self.interface)
        exact = self.spec.dtype is torch.float32 and not self.operators.quantization
        worst = float(error.max() if exact else error.quantile(0.9))
        if not worst <= (FLOAT32_TOLERANCE if exact else ROUNDED_TOLERANCE):
            raise UnservableError(f"its paged logits differ from its plain forward by {worst:.2g} of their spread")

    def _expect_calls(self) -> None:
        """Raise UnservableError unless each layer has called the hook exactly once, with its own number."""
        found = len(self.hook.shapes)
        if found == 0:
            raise UnservableError("none of its layers calls it")
        if sorted(self.hook.shapes) != list(range(self.layer_count)):
            raise UnservableError("only some of its layers call it")
        if self.hook.calls != self.layer_count:
            raise UnservableError(f"its {self.layer_count} layers call it {self.hook.calls} times in one pass")
