"""Classification in vLLM's shape: its request, which may name the labels, and its answer."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta

from gateway.apis.ranking.wire import Cut, Text, TextList
from gateway.generation.intent import Intent
from gateway.wire.common import (
    ModelName,
    Priority,
    ShortText,
    check_model,
    task_of,
)
from gateway.wire.decode import MAX_LABEL, MAX_LABELS, MAX_PROBABILITIES, invalid
from gateway.wire.demands import Anything, Fields, Only
from gateway.wire.usage import EmbeddingUsage
from inference.types import Kind

Label = Annotated[str, Meta(min_length=1, max_length=MAX_LABEL)]


class ClassifyRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """``POST /v1/classify``: which of `labels` each text of `input` has; without any, which of the model's own."""

    model: ModelName
    input: Text | TextList
    labels: Annotated[list[Label], Meta(min_length=1, max_length=MAX_LABELS)] | None = None
    user: ShortText | None = None
    priority: Priority | None = None
    truncate_prompt_tokens: Cut | None = None

    add_special_tokens: Annotated[Anything, Only(True)] = UNSET
    activation: Annotated[Anything, Only(True)] = UNSET
    use_activation: Annotated[Anything, Only(True)] = UNSET

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, at most as many as an embedding request may have."""
        return (self.input,) if isinstance(self.input, str) else tuple(self.input)

    def intent(self, task_header: str | None = None) -> Intent:
        """The request after all its checks."""
        Fields().check(self)
        check_model(self.model)
        labels = tuple(self.labels or ())
        for number, label in enumerate(labels):
            if label in labels[:number]:
                raise invalid(f"labels[{number}]", f"'labels' has {label!r} twice.")
        if len(labels) * len(self.texts) > MAX_PROBABILITIES:
            message = (
                f"'input' and 'labels' make more than {MAX_PROBABILITIES} probabilities: send fewer texts at once."
            )
            raise invalid("input", message)
        return Intent(
            endpoint="classification",
            kind=Kind.CLASSIFICATION,
            model=self.model,
            inputs=self.texts,
            labels=labels,
            truncate=self.truncate_prompt_tokens is not None,
            task=task_of(None, task_header),
            end_user=self.user,
            priority=self.priority or 0,
        )


class Classified(msgspec.Struct):
    """A text's most probable label, and the probabilities of all, in the order of the answer's `labels`."""

    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyAnswer(msgspec.Struct):
    """The labels of all texts, in their order. `labels` has every label, and what a text of none of them is called."""

    id: str
    created: int
    model: str
    labels: list[str]
    data: list[Classified]
    usage: EmbeddingUsage
    object: Literal["list"] = "list"
