"""Choosing the next token of each row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.core.step import Row, RowFailure
from inference.sampling.guides import Guides, field_of
from inference.sampling.logprobs import Distributions
from inference.sampling.passes import Lines, Passes
from inference.sampling.penalties import Histories
from inference.sampling.processors import process
from inference.sampling.rng import noise_keys
from inference.sampling.state import SlotStates
from inference.sampling.torch_passes import TorchPasses
from inference.types import PositionLogprobs

NON_FINITE = RowFailure("non_finite_logits", "The model gave logits that are not finite for this request.")


@dataclass(frozen=True, slots=True)
class Sampled:
    """The tokens [rows] that were chosen, on the device; `failures` and `logprobs` are by row number."""

    tokens: torch.Tensor
    failures: dict[int, RowFailure]
    logprobs: dict[int, PositionLogprobs]


class Sampler:
    """Samples the rows of one model's steps on `device`, by `passes` (default: torch's operators). Not thread-safe.

    A row's result depends on its own logits, parameters, seed, history and output index alone. Temperature 0 or top-k 1
    takes the largest processed logit (the first of equals). Otherwise the token with the smallest Exp(1) / probability
    is an exact draw.
    """

    def __init__(self, device: torch.device, passes: Passes | None = None) -> None:
        self._passes = passes or TorchPasses()
        self._states = SlotStates(device)
        self._histories = Histories(device)
        self._guides = Guides()

    def fill_masks(self, rows: Sequence[Row]) -> None:
        """Find what guided rows permit next, so that `sample` needn't: while their logits are computed.

        In any thread, but not beside `sample`.
        """
        self._guides.fill(rows)

    def sample(self, logits: torch.Tensor, rows: Sequence[Row]) -> Sampled:
        """Choose the token of each row from `logits` [rows, vocabulary], which may be overwritten."""
        logits = self._passes.read(logits)
        states = self._states.admit(rows)
        special = [i for i, state in enumerate(states) if not state.is_plain]
        asking = [i for i in special if rows[i].sampling.logprobs is not None]
        told = logits[asking] if asking else None
        peak, tokens = self._passes.argmax(logits)  # NaN or +inf where there is one, -inf where there is nothing else
        failures = dict.fromkeys(_not_finite(peak), NON_FINITE)
        guided = [i for i, row in enumerate(rows) if row.grammar is not None]
        self._guides.forget(rows)
        if guided:
            failures = self._guide(logits, rows, guided) | failures
        penalised = [i for i in special if states[i].is_penalised]
        if penalised or any(states[i].is_masked for i in special):
            logits = logits.float()
            process(logits, rows, states)
            if penalised:
                self._penalise(logits, rows, penalised)
            peak, tokens = self._passes.argmax(logits)
            failures = _none_left(peak, rows) | failures
        elif guided:
            among = slice(None) if len(guided) == len(rows) else guided  # a slice copies nothing
            peak[among], tokens[among] = self._passes.argmax(logits[among])
            failures = _none_left(peak, rows) | failures
        for is_filtered in (False, True):
            drawn = [
                i
                for i in special
                if not states[i].is_greedy and states[i].is_filtered is is_filtered and i not in failures
            ]
            if drawn:
                lines = self._lines(logits, peak, rows, drawn)
                tokens[drawn] = self._passes.draw_filtered(lines) if is_filtered else self._passes.draw(lines)
        if penalised:
            self._histories.append([rows[i] for i in penalised], tokens[penalised])
        if following := [i for i in guided if i not in failures]:
            self._guides.append([rows[i] for i in following], tokens[following].tolist())
        logprobs: dict[int, PositionLogprobs] = {}
        if told is not None:
            raw = Distributions.of(self._passes, told, [rows[i].sampling.logprobs or 0 for i in asking])
            logprobs = dict(zip(asking, raw.positions(tokens[asking]), strict=True))
        return Sampled(tokens, failures, logprobs)

    def distributions(self, logits: torch.Tensor, counts: Sequence[int]) -> Distributions:
        """Return the distributions of raw `logits` [n, vocabulary], of which line i tells the largest `counts[i]`."""
        return Distributions.of(self._passes, self._passes.read(logits), counts)

    def _guide(self, logits: torch.Tensor, rows: Sequence[Row], numbers: list[int]) -> dict[int, RowFailure]:
        """Rule out in place what the guided rows with these numbers don't permit; return which of them failed."""
        masks, failures = self._guides.masks([rows[i] for i in numbers])
        self._passes.rule_out(logits, torch.tensor(numbers), masks)
        return {numbers[i]: failure for i, failure in failures.items()}

    def _penalise(self, logits: torch.Tensor, rows: Sequence[Row], numbers: list[int]) -> None:
        chosen = [rows[i] for i in numbers]
        slots = torch.tensor([row.slot for row in chosen]).to(logits.device)
        lines = torch.tensor(numbers).to(logits.device)
        self._histories.apply(logits, lines, chosen, self._states.penalties(slots))

    def _lines(self, logits: torch.Tensor, peak: torch.Tensor, rows: Sequence[Row], numbers: list[int]) -> Lines:
        both = torch.tensor([[rows[i].slot for i in numbers], [rows[i].output_index for i in numbers]])
        slots, positions = both.to(self._states.device)
        params = self._states.gather(slots)
        if len(numbers) < len(rows):
            logits, peak = logits[numbers], peak[numbers]
        return Lines(logits, peak, params, noise_keys(params.seed_keys, positions))


def _not_finite(peak: torch.Tensor) -> list[int]:
    if torch.isfinite(peak).all():
        return []
    return [i for i, finite in enumerate(torch.isfinite(peak).tolist()) if not finite]


def _none_left(peak: torch.Tensor, rows: Sequence[Row]) -> dict[int, RowFailure]:
    """Return the failures of rows that had finite logits before what their requests don't permit was ruled out."""
    failures = {}
    for number in _not_finite(peak):
        row = rows[number]
        fields = ["allowed_token_ids"] if row.sampling.allowed_token_ids else []
        fields += [field_of(row)] if row.grammar is not None else []
        names = " and ".join(f"'{name}'" for name in fields) or "its parameters"
        message = f"{names} leave no token with which the answer could go on: permit more"
        failures[number] = RowFailure("no_token_left", message, next(iter(fields), None))
    return failures
