"""Models that make one vector of each whole input, pooled as the model's sentence-transformers folder specifies.

Most are encoders. A decoder makes embeddings the same way: its last token has read all before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch

from inference.architectures.weights import read_model
from inference.errors import ModelRefusedError
from inference.json_files import read_json, read_object

Pool = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
STEP_TOKENS = 4096  # padded tokens of one forward pass: more would cost memory and gain nothing


def _mean(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1)


def _mean_root(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    weights = mask[..., None].to(hidden.dtype)
    return (hidden * weights).sum(1) / weights.sum(1).sqrt()


def _greatest(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden.masked_fill(mask[..., None] == 0, float("-inf")).amax(1)


def _first(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[:, 0]


def _last(hidden: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return hidden[torch.arange(hidden.shape[0], device=hidden.device), mask.sum(1) - 1]


# Several poolings are concatenated in this order.
POOLING: dict[str, Pool] = {
    "pooling_mode_cls_token": _first,
    "pooling_mode_max_tokens": _greatest,
    "pooling_mode_mean_tokens": _mean,
    "pooling_mode_mean_sqrt_len_tokens": _mean_root,
    "pooling_mode_lasttoken": _last,
}
SHORT_NAMES = {
    "cls": "pooling_mode_cls_token",
    "max": "pooling_mode_max_tokens",
    "mean": "pooling_mode_mean_tokens",
    "mean_sqrt_len_tokens": "pooling_mode_mean_sqrt_len_tokens",
    "lasttoken": "pooling_mode_lasttoken",
}
# Of the tasks that a model was trained for, and transformers' own pooler, which isn't used here.
HEADS = (
    r"(?:\w+\.)?pooler\.|(?:cls|\w*lm_head|head|\w*predictions|\w*classifier|score|qa_outputs|vocab_\w+|lm_loss)\."
    r"|decoder\.(?:weight|bias)$"
)
_DECODERS = ("ForCausalLM", "LMHeadModel")


class Encoder:
    """An `EncoderBackend`: a transformers model with its pooling. `max_input` includes special tokens.

    With `nests` the first dimensions of a vector are a shorter embedding.
    """

    def __init__(
        self, model: Any, pooling: tuple[str, ...], *, normalise: bool, max_input: int, nests: bool = False
    ) -> None:
        self.model = model
        self.device = torch.device(model.device)
        self.pooling = pooling
        self.normalise = normalise
        self.max_input = max_input
        self.nests = nests
        self.vocab_size = int(model.config.vocab_size)
        self.width = int(model.config.hidden_size) * len(pooling)

    @classmethod
    def load(
        cls, folder: Path, dtype: torch.dtype, device: torch.device, options: Mapping[str, Any] | None = None
    ) -> Self:
        """Return the encoder of `folder` on `device`; raise ModelRefusedError where a module isn't supported.

        A model without `modules.json` is normalised and pooled by the mean over its tokens, a decoder by its last one.
        The deployment's `options` "pooling", "normalize" and "matryoshka" precede what the folder says.
        """
        from transformers import AutoModel

        options = options or {}
        pooling, normalise = _modules(folder, str(options.get("pooling", "")))
        normalise = bool(options.get("normalize", normalise))
        model = read_model(AutoModel, folder, dtype, unused=HEADS)
        if getattr(model.config, "is_encoder_decoder", False):
            raise ModelRefusedError(f"{folder}: encoder-decoder models make no embeddings here")
        stated = getattr(model.config, "is_matryoshka", False) or getattr(model.config, "matryoshka_dimensions", None)
        return cls(
            model.to(device),
            pooling,
            normalise=normalise,
            max_input=max_input(folder, model.config),
            nests=bool(options.get("matryoshka", stated)),
        )

    @property
    def pooling_text(self) -> str:
        """The pooling in words, for operators."""
        names = " + ".join(name.removeprefix("pooling_mode_") for name in self.pooling)
        return f"{names}{', normalised' if self.normalise else ''}"

    def encode(self, inputs: list[tuple[int, ...]], seconds: Sequence[int] = ()) -> torch.Tensor:
        """Return the vectors of inputs in their order, float32 on the CPU."""
        vectors = torch.empty(len(inputs), self.width, dtype=torch.float32)
        for numbers in batches(inputs):
            ids, mask = (part.to(self.device) for part in padded([inputs[i] for i in numbers]))
            hidden = self.model(input_ids=ids, attention_mask=mask).last_hidden_state.float()
            pooled = torch.cat([POOLING[name](hidden, mask) for name in self.pooling], 1)
            if self.normalise:
                pooled = torch.nn.functional.normalize(pooled, dim=1)
            vectors[numbers] = pooled.cpu()
        return vectors


def batches(inputs: list[tuple[int, ...]]) -> Iterator[list[int]]:
    """Yield batches of input numbers, of similar length and within `STEP_TOKENS` padded tokens."""
    batch: list[int] = []
    for i in sorted(range(len(inputs)), key=lambda i: len(inputs[i]), reverse=True):
        if batch and (len(batch) + 1) * len(inputs[batch[0]]) > STEP_TOKENS:
            yield batch
            batch = []
        batch.append(i)
    yield batch


def padded(inputs: list[tuple[int, ...]], pad: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs as one tensor, `pad` behind the shorter ones, and a mask of what is input in it."""
    longest = max(map(len, inputs))
    ids = torch.full((len(inputs), longest), pad, dtype=torch.long)
    mask = torch.zeros(len(inputs), longest, dtype=torch.long)
    for row, tokens in enumerate(inputs):
        ids[row, : len(tokens)] = torch.tensor(tokens)
        mask[row, : len(tokens)] = 1
    return ids, mask


def _modules(folder: Path, chosen: str) -> tuple[tuple[str, ...], bool]:
    """The pooling modes of the folder, or the one that was `chosen`, and whether vectors are normalised."""
    listing = folder / "modules.json"
    pooling: tuple[str, ...] = (SHORT_NAMES[chosen],) if chosen else ()
    if not listing.is_file():
        config = read_object(folder / "config.json")
        is_decoder = any(str(name).endswith(_DECODERS) for name in config.get("architectures") or ())
        return pooling or (SHORT_NAMES["lasttoken" if is_decoder else "mean"],), True
    normalise = False
    for module in read_json(listing):
        kind = str(module["type"]).rpartition(".")[2]
        if kind == "Pooling" and chosen:
            continue
        if kind == "Pooling":
            settings = read_object(folder / module["path"] / "config.json")
            pooling = _pooling_modes(folder, settings)
        elif kind == "Normalize":
            normalise = True
        elif kind != "Transformer":
            raise ModelRefusedError(f"{folder}: sentence-transformers module {kind} is not supported")
    if not pooling:
        raise ModelRefusedError(f"{folder}: modules.json names no pooling")
    return pooling, normalise


def _pooling_modes(folder: Path, settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the modes of a pooling config in either spelling; raise ModelRefusedError for unknown ones."""
    named = settings.get("pooling_mode")
    if isinstance(named, str):
        wanted = {SHORT_NAMES.get(named, named)}
    else:
        wanted = {name for name, on in settings.items() if name.startswith("pooling_mode_") and on is True}
    if not wanted or wanted - set(POOLING):
        raise ModelRefusedError(f"{folder}: pooling {sorted(wanted)} is not supported")
    return tuple(name for name in POOLING if name in wanted)


def max_input(folder: Path, config: Any) -> int:
    """The longest input in tokens: the folder's setting, within the model's number of positions."""
    limit = int(getattr(config, "max_position_embeddings", 0) or 512)
    if "roberta" in config.model_type or config.model_type in {"mpnet", "camembert"}:
        limit -= int(config.pad_token_id or 0) + 1  # their positions begin after the padding id
    settings = folder / "sentence_bert_config.json"
    if settings.is_file():
        limit = min(limit, int(read_object(settings).get("max_seq_length") or limit))
    return limit
