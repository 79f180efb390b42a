"""Cross-encoders: models that read two texts at once and say how well the second one answers or matches the first."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from inference.architectures.encoder import batches, max_input, padded
from inference.architectures.weights import read_model
from inference.errors import ModelRefusedError
from inference.json_files import read_object

# What sentence-transformers and text-embeddings-inference write into a model's config, by the last part of the name.
_ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Sigmoid": torch.sigmoid,
    "Identity": lambda logits: logits,
}


def labels_of(folder: Path) -> int:
    """Return how many numbers the folder's model gives for its whole input: 1 is a score; 0 where it does not."""
    config = read_object(folder / "config.json")
    if not any(str(name).endswith("ForSequenceClassification") for name in config.get("architectures") or ()):
        return 0
    return len(config.get("id2label") or (0, 0))  # transformers' default is two


class PairModel:
    """A transformers model with a head for a text, or for two at once. `max_input` includes special tokens."""

    def __init__(self, model: Any, *, longest: int) -> None:
        from transformers import MODEL_FOR_MASKED_LM_MAPPING

        self.model = model
        self.config = model.config
        self.device = torch.device(model.device)
        self.max_input = longest
        self.vocab_size = int(model.config.vocab_size)
        self._kinds = int(getattr(model.config, "type_vocab_size", 0) or 0)
        # A decoder scores at its last token, which transformers finds by the padding's id. That may stand in a text, so
        # its inputs run alone and without padding; encoders score at their first token.
        self._pad = getattr(model.config, "pad_token_id", None)
        self._is_alone = self._pad is None or type(model.config) not in MODEL_FOR_MASKED_LM_MAPPING
        if self._is_alone:
            model.config.pad_token_id = None

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the model of `folder` on `device`; raise ModelRefusedError for a model that isn't one."""
        from transformers import AutoModelForSequenceClassification

        model = read_model(AutoModelForSequenceClassification, folder, dtype)
        return cls(model.to(device), longest=max_input(folder, model.config))

    def logits(self, inputs: list[tuple[int, ...]], seconds: Sequence[int] = ()) -> torch.Tensor:
        """Return the logits of inputs in their order, float32 [inputs, labels] on the CPU."""
        logits = torch.empty(len(inputs), self.config.num_labels, dtype=torch.float32)
        starts = seconds or [0] * len(inputs)
        for numbers in [[i] for i in range(len(inputs))] if self._is_alone else batches(inputs):
            ids, mask = (part.to(self.device) for part in padded([inputs[i] for i in numbers], self._pad or 0))
            more = {}
            if self._kinds > 1:
                kinds = torch.zeros_like(ids)
                for row, i in enumerate(numbers):
                    if starts[i]:
                        kinds[row, starts[i] : len(inputs[i])] = 1
                more["token_type_ids"] = kinds
            logits[numbers] = self.model(input_ids=ids, attention_mask=mask, **more).logits.float().cpu()
        return logits


class Scorer:
    """An `EncoderBackend` whose vectors have one number: the model's only label, behind its activation."""

    width = 1

    def __init__(self, model: PairModel, activation: str) -> None:
        self.activation = activation
        self.max_input = model.max_input
        self.vocab_size = model.vocab_size
        self._model = model

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the cross-encoder of `folder` on `device`; raise ModelRefusedError for a model that isn't one."""
        from transformers import AutoConfig

        activation = _activation(folder, AutoConfig.from_pretrained(folder, trust_remote_code=False))
        return cls(PairModel.load(folder, dtype, device), activation)

    def encode(self, inputs: list[tuple[int, ...]], seconds: Sequence[int] = ()) -> torch.Tensor:
        """Return the scores of pairs in their order, float32 on the CPU."""
        return _ACTIVATIONS[self.activation](self._model.logits(inputs, seconds))


def _activation(folder: Path, config: Any) -> str:
    named = (getattr(config, "sentence_transformers", None) or {}).get("activation_fn")
    named = named or getattr(config, "sbert_ce_default_activation_function", None) or "Sigmoid"
    activation = str(named).rpartition(".")[2]
    if activation not in _ACTIVATIONS:
        raise ModelRefusedError(f"{folder}: the activation {named} is not supported")
    return activation
