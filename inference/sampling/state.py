"""The sampling parameters of running rows by slot, written when a row is admitted and gathered in each step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from inference.core.step import Row
from inference.sampling.rng import seed_key
from inference.types import SamplingParams

LEAST_TEMPERATURE = 1e-30  # above 0 in float32, as its reciprocal is finite
MOST_TEMPERATURE = 1e30  # beyond float32 a token that is ruled out would be as likely as any other
MOST_TOP_K = 2**31 - 1  # more than any vocabulary


@dataclass(frozen=True, slots=True, eq=False)
class Admitted:
    """Parameters that the row in one slot uses: they decide which parts of a step are skipped.

    `is_plain`: but for a grammar, the token with the largest logit is all that is wanted. `is_filtered`: top-k, top-p
    or min-p (never with greedy). The tensors are None where the row doesn't use them:
    `bias` (ids, values), `allowed` ids, and `banned` ids of `min_tokens`.
    """

    sampling: SamplingParams
    seed: int
    is_plain: bool
    is_greedy: bool
    is_filtered: bool
    is_penalised: bool
    bias: tuple[torch.Tensor, torch.Tensor] | None
    allowed: torch.Tensor | None
    banned: torch.Tensor | None

    @property
    def is_masked(self) -> bool:
        """Whether tokens are ruled out, or may be."""
        return self.bias is not None or self.allowed is not None or self.banned is not None


@dataclass(frozen=True, slots=True)
class Gathered:
    """The parameters of n rows: float32 [n], `top_k` (0: off) and `seed_keys` int64 [n]."""

    temperature: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    top_k: torch.Tensor
    seed_keys: torch.Tensor

    def among(self, numbers: list[int]) -> Gathered:
        """Return those of the rows with these numbers."""
        return Gathered(
            self.temperature[numbers],
            self.top_p[numbers],
            self.min_p[numbers],
            self.top_k[numbers],
            self.seed_keys[numbers],
        )


@dataclass(frozen=True, slots=True)
class Penalties:
    """The penalties of n rows, float32 [n, 1]."""

    repetition: torch.Tensor
    presence: torch.Tensor
    frequency: torch.Tensor


class SlotStates:
    """The parameters by slot: one float32 and one int64 tensor, which grow with the highest slot."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._slots: list[Admitted | None] = []
        self._floats = torch.zeros(0, 6, dtype=torch.float32, device=device)
        self._words = torch.zeros(0, 2, dtype=torch.long, device=device)

    def admit(self, rows: Sequence[Row]) -> list[Admitted]:
        """Return what each row uses; the parameters of rows that are new in their slot are written."""
        known = self._slots
        fresh: dict[int, Admitted] = {}
        admitted: list[Admitted] = []
        for row in rows:
            slot = row.slot
            if slot >= len(known):
                self._grow(slot + 1)
            state = known[slot]
            # The parameters decide, not the request: an equal pair of them is the same state.
            if state is None or state.sampling is not row.sampling or state.seed != row.seed:
                state = fresh[slot] = known[slot] = self._admitted(row)
            admitted.append(state)
        if fresh:
            self._write(fresh)
        return admitted

    def gather(self, slots: torch.Tensor) -> Gathered:
        """Return the parameters of `slots` [n]."""
        floats, words = self._floats[slots], self._words[slots]
        return Gathered(floats[:, 0], floats[:, 1], floats[:, 2], words[:, 0], words[:, 1])

    def penalties(self, slots: torch.Tensor) -> Penalties:
        """Return the penalties of `slots` [n]."""
        floats = self._floats[slots]
        return Penalties(floats[:, 3:4], floats[:, 4:5], floats[:, 5:6])

    def _admitted(self, row: Row) -> Admitted:
        p = row.sampling
        is_greedy = p.temperature <= 0 or p.top_k == 1  # the first of equals, which filters don't tell on every tier
        is_changed = p.penalises or p.logit_bias or p.allowed_token_ids or p.min_tokens
        return Admitted(
            sampling=p,
            seed=row.seed,
            is_plain=is_greedy and not is_changed and p.logprobs is None,
            is_greedy=is_greedy,
            is_filtered=not is_greedy and (p.top_k > 0 or p.top_p < 1 or p.min_p > 0),
            is_penalised=p.penalises,
            bias=self._bias(p.logit_bias) if p.logit_bias else None,
            allowed=self._ids(p.allowed_token_ids) if p.allowed_token_ids else None,
            banned=self._ids(row.banned) if row.banned and p.min_tokens else None,
        )

    def _bias(self, pairs: Sequence[tuple[int, float]]) -> tuple[torch.Tensor, torch.Tensor]:
        values = torch.tensor([value for _, value in pairs], dtype=torch.float32)
        return self._ids([token for token, _ in pairs]), sent(values, self.device)

    def _ids(self, ids: Sequence[int]) -> torch.Tensor:
        return sent(torch.tensor(ids, dtype=torch.long), self.device)

    def _write(self, fresh: dict[int, Admitted]) -> None:
        slots = self._ids(list(fresh))
        floats = [
            (
                # Of a greedy row nothing is drawn: noise would choose among equal logits of 0, however cold it is.
                0.0 if state.is_greedy else min(max(p.temperature, LEAST_TEMPERATURE), MOST_TEMPERATURE),
                p.top_p,
                p.min_p,
                p.repetition_penalty,
                p.presence_penalty,
                p.frequency_penalty,
            )
            for state, p in ((state, state.sampling) for state in fresh.values())
        ]
        self._floats[slots] = sent(torch.tensor(floats, dtype=torch.float32), self.device)
        words = [(min(state.sampling.top_k, MOST_TOP_K), seed_key(state.seed)) for state in fresh.values()]
        self._words[slots] = sent(torch.tensor(words), self.device)

    def _grow(self, count: int) -> None:
        count = max(count, 2 * len(self._slots), 16)
        more = count - len(self._slots)
        self._slots += [None] * more
        self._floats = torch.cat((self._floats, self._floats.new_zeros(more, 6)))
        self._words = torch.cat((self._words, self._words.new_zeros(more, 2)))


def sent(numbers: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return `numbers` of the host on `device`, which hasn't got them yet: they come behind the work that it has, and
    nobody waits for that. From memory that isn't pinned the host would.
    """
    return numbers if device.type == "cpu" else numbers.pin_memory().to(device, non_blocking=True)
