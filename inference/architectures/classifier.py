"""Classifiers: checkpoints with labels of their own, and an encoder whose head compares texts with any labels."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self
from weakref import WeakKeyDictionary

import torch

from inference.architectures.encoder import Encoder
from inference.architectures.label_head import LabelHead
from inference.architectures.scorer import PairModel
from inference.architectures.weights import FolderWeights
from inference.errors import ModelRefusedError
from inference.json_files import read_object
from inference.labels import Labels, LabelSet

HEAD, WEIGHTS = "label_head.json", "label_head.safetensors"
MOST_KNOWN = 4096  # labels whose vectors are kept


class FixedClassifier:
    """A `ClassifierBackend` of a checkpoint that was trained for its own labels."""

    def __init__(self, model: PairModel) -> None:
        config = model.config
        names = tuple(str(config.id2label[number]) for number in range(config.num_labels))
        if len(set(names)) != len(names) or not all(names):
            raise ModelRefusedError("two of the model's labels have the same name, or one has none")
        self.labels = Labels(names)
        self.vocab_size = model.vocab_size
        self.max_input = model.max_input
        self._model = model
        self._is_each = config.problem_type == "multi_label_classification"

    def classify(self, inputs: list[tuple[int, ...]], labels: Sequence[LabelSet]) -> list[torch.Tensor]:
        """Return the probabilities of each input's labels: among these alone, or each by itself where several may be
        true.
        """
        found = []
        for logits, chosen in zip(self._model.logits(inputs), labels, strict=True):
            own = logits[[number for (number,) in chosen.ids]]
            found.append(own.sigmoid() if self._is_each else own.softmax(-1))
        return found


class OpenClassifier:
    """A `ClassifierBackend` of an encoder and a `LabelHead`: labels are texts too.

    Their vectors are kept as long as a request has them, so that they are computed once for all of its inputs, and then
    for the next ones of its domain. What another domain's requests name can't be told from how long an answer takes.
    """

    def __init__(self, encoder: Encoder, head: LabelHead, labels: Labels) -> None:
        self.labels = labels
        self.vocab_size = encoder.vocab_size
        self.max_input = encoder.max_input
        self._encoder = encoder
        self._head = head
        self._known: OrderedDict[tuple[str, tuple[int, ...]], torch.Tensor] = OrderedDict()  # by domain and label
        self._in_use: WeakKeyDictionary[LabelSet, torch.Tensor] = WeakKeyDictionary()

    @classmethod
    def load(cls, folder: Path, dtype: torch.dtype, device: torch.device) -> Self:
        """Return the classifier of `folder` on `device`; raise ModelRefusedError for a head that doesn't fit."""
        encoder = Encoder.load(folder, dtype, device, {"normalize": False})
        labels = _labels(read_object(folder / HEAD))
        try:
            with FolderWeights(folder, WEIGHTS) as weights:
                tensors = {name: weights.take(name, torch.float32) for name in weights}
            head = LabelHead(encoder.width, len(tensors["text.weight"]))
            head.load_state_dict(tensors)
        except (KeyError, RuntimeError) as error:
            raise ModelRefusedError(f"{folder}: {WEIGHTS} doesn't fit: {error}") from error
        return cls(encoder, head.eval(), labels)

    def classify(self, inputs: list[tuple[int, ...]], labels: Sequence[LabelSet]) -> list[torch.Tensor]:
        """Return the probabilities of each input's labels, the last that none of them is true."""
        texts = self._encoder.encode(inputs)
        if new := [chosen for chosen in dict.fromkeys(labels) if chosen not in self._in_use]:
            self._take(new)
        return [
            self._head(text[None], self._in_use[chosen])[0].softmax(-1)
            for text, chosen in zip(texts, labels, strict=True)
        ]

    def _take(self, sets: list[LabelSet]) -> None:
        """Have the vectors of the sets' labels; those that their domains didn't name lately are computed."""
        wanted = {(chosen.domain, label) for chosen in sets for label in chosen.ids}
        if new := sorted(wanted - self._known.keys()):
            vectors = self._head.project(self._encoder.encode([label for _, label in new]))
            self._known.update(zip(new, vectors, strict=True))
        for key in wanted:
            self._known.move_to_end(key)
        for chosen in sets:
            self._in_use[chosen] = torch.stack([self._known[chosen.domain, label] for label in chosen.ids])
        while len(self._known) > MOST_KNOWN:
            self._known.popitem(last=False)


def has_label_head(folder: Path) -> bool:
    """Whether the folder's encoder has a head that compares texts with labels."""
    return (folder / HEAD).is_file()


def _labels(stated: dict[str, Any]) -> Labels:
    names, none = stated.get("labels"), stated.get("none")
    if not (isinstance(names, list) and names and all(isinstance(name, str) and name for name in names)):
        raise ModelRefusedError(f"{HEAD} has no list of labels")
    if not isinstance(none, str) or not none or none in names:
        raise ModelRefusedError(f"{HEAD} has to say what `none` of its labels is called")
    return Labels(tuple(names), is_open=True, none=none)
