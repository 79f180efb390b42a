"""A model without weights and without torch: answers with a set text or with the last user message, at a set speed.

Its KV cache holds tokens instead of tensors, written and read through the block tables of each step, so that a wrong
table, a lost block or a wrong prefix hit gives a wrong answer. A guided answer is the simplest that its guidance
permits: it ends where it may, and closes what is open rather than going on.
"""

from __future__ import annotations

import hashlib
import math
import struct
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from inference.config import EngineConfig
from inference.core.grammar import Grammar, GrammarError
from inference.core.step import NOTHING_SAMPLED, EncodeRow, Row, RowFailure, RowResult, StepPlan, StepResult
from inference.errors import ModelRefusedError
from inference.execution.backend import LoadedModel
from inference.text.byte_tokenizer import END_OF_TURN, START_OF_TURN, VOCABULARY
from inference.types import Kind

UNWRITTEN = -1
KV_TOKENS = 16_384  # when `EngineConfig.kv_tokens` is 0


@dataclass(frozen=True, slots=True)
class FakeModelOptions:
    """The options of the fake model, from `EngineConfig.options`.

    Without `text` it answers with the last user message; with `sampled` in letters, each of which is drawn by the seed,
    its number and every token before it. `step_seconds` and `token_seconds` are what a step and each
    of its tokens take. A message that starts with `poison` makes the step raise, one that starts with `bad` fails its
    row alone, both when output token number `fail_at` (0 = first) is due. `refuse` makes loading fail with its text.
    Loading takes `load_seconds`.
    """

    text: str = ""
    sampled: bool = False
    step_seconds: float = 0.0
    token_seconds: float = 0.0
    poison: str = ""
    bad: str = ""
    fail_at: int = 0
    vector_width: int = 8
    max_context: int = 8192
    kinds: Sequence[str] = ("chat",)
    refuse: str = ""
    load_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class FakePending:
    """A step that is over at `due` (monotonic seconds), with a result or an error."""

    outcome: StepResult | Exception
    due: float

    def wait(self) -> StepResult:
        delay = self.due - time.monotonic()
        if delay > 0:
            time.sleep(delay)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class FakeRunner:
    """Runs steps over a KV cache of tokens."""

    overlaps = False

    def __init__(self, options: FakeModelOptions, blocks: int, block_size: int) -> None:
        self._options = options
        self._size = block_size
        self._blocks = [[UNWRITTEN] * block_size for _ in range(blocks)]
        self._answer = list(options.text.encode())
        self._last: dict[int, int] = {}  # the newest token of each slot

    def launch(self, plan: StepPlan) -> FakePending:
        options = self._options
        due = time.monotonic() + options.step_seconds + options.token_seconds * plan.tokens
        try:
            return FakePending(self._compute(plan), due)
        except Exception as error:  # noqa: BLE001  `wait` raises it
            return FakePending(error, due)

    def _compute(self, plan: StepPlan) -> StepResult:
        for row in plan.rows:
            self._write(row)
        rows = tuple(self._answered(row) if row.samples else NOTHING_SAMPLED for row in plan.rows)
        return StepResult(rows, tuple(self._encode(row) for row in plan.encodes))

    def _answered(self, row: Row) -> RowResult | RowFailure:
        """Sample behind the row's last known token, and behind each draft that was right."""
        tokens: list[int] = []
        for ahead, draft in enumerate((*row.ids[len(row.ids) - row.drafts :], None)):
            token = self._sample(row, ahead)
            if isinstance(token, RowFailure):
                return token
            tokens.append(token)
            if token != draft:
                break
        self._last[row.slot] = tokens[-1]
        return RowResult(tuple(tokens))

    def _write(self, row: Row) -> None:
        ids = (self._last[row.slot], *row.ids) if row.follows else row.ids
        for position, token in enumerate(ids, row.start):
            block = row.blocks[position // self._size]
            if block == 0:
                raise ValueError(f"{row.request_id}: the null block stands in a block table")
            self._blocks[block][position % self._size] = token

    def _sample(self, row: Row, ahead: int) -> int | RowFailure:
        """Return output token number `row.output_index` + `ahead`."""
        options = self._options
        index = row.output_index + ahead
        echo = self._last_user_message(row, ahead) if not options.text or options.poison or options.bad else []
        failing = index >= options.fail_at
        if options.poison and failing and echo[: len(options.poison)] == list(options.poison.encode()):
            raise RuntimeError("the fake model was told to fail this step")
        if options.bad and failing and echo[: len(options.bad)] == list(options.bad.encode()):
            return RowFailure("row_failed", "the fake model was told to fail this row")
        if row.grammar is not None:
            return _guided(row, row.grammar, ahead)
        if options.sampled:
            return _drawn(row.seed, index, self._context(row, ahead))
        answer = self._answer or echo
        if index < len(answer):
            return answer[index]
        return answer[index % len(answer)] if row.sampling.ignore_eos and answer else END_OF_TURN

    def _context(self, row: Row, ahead: int) -> list[int]:
        """Return every token before the one that is due."""
        length = row.start + row.count - row.drafts + ahead
        context: list[int] = []
        for block in row.blocks[: math.ceil(length / self._size)]:
            context += self._blocks[block]
        del context[length:]
        if UNWRITTEN in context:
            raise ValueError(f"{row.request_id}: position {context.index(UNWRITTEN)} was never computed")
        return context

    def _last_user_message(self, row: Row, ahead: int) -> list[int]:
        context = self._context(row, ahead)
        prompt_end = len(context) - row.output_index - ahead - len(b"assistant\n") - 1
        starts = [place for place in range(prompt_end) if context[place] == START_OF_TURN]
        for start in reversed(starts):
            end = context.index(END_OF_TURN, start)
            turn = context[start + 1 : end]
            if turn[:5] == list(b"user\n"):
                return turn[5:]
        return []

    def _encode(self, row: EncodeRow) -> bytes | RowFailure:
        bad = self._options.bad
        if bad and list(row.ids[: len(bad)]) == list(bad.encode()):
            return RowFailure("row_failed", "the fake model was told to fail this input")
        digest = hashlib.blake2b(repr(row.ids).encode(), digest_size=self._options.vector_width).digest()
        values = [byte / 255 + 0.01 for byte in digest]
        norm = math.sqrt(sum(value * value for value in values))
        return struct.pack(f"<{len(values)}f", *(value / norm for value in values))


def _drawn(seed: int, index: int, context: list[int]) -> int:
    """Return a small letter that any other seed, number or token before it would most likely have made another."""
    digest = hashlib.blake2b(repr((seed, index, context)).encode(), digest_size=4).digest()
    return ord("a") + int.from_bytes(digest, "little") % 26


_SIMPLEST = (END_OF_TURN, *b'"}],:', *range(0x21, 0x7F), *range(VOCABULARY))


def _guided(row: Row, grammar: Grammar, ahead: int) -> int | RowFailure:
    """Return the simplest token that `grammar` permits behind the row's known output and its first `ahead` drafts."""
    known = row.start + row.count - row.drafts
    drafts = row.ids[len(row.ids) - row.drafts :][:ahead]
    matcher = grammar.begin()
    try:
        for token in (*row.history[known - row.output_index : known], *drafts):
            matcher.accept(token)
        mask = matcher.mask()
    except GrammarError as error:
        param = "tools" if row.sampling.guidance is None else row.sampling.guidance.param
        return RowFailure("guidance_failed", str(error), param)
    return next((token for token in _SIMPLEST if mask[token // 8] >> token % 8 & 1), END_OF_TURN)


def load_fake_model(config: EngineConfig) -> LoadedModel:
    """Return the fake model of `config`; raise `ModelRefusedError` for an unknown option.

    It has no tokenizer folder: its tokens are those of `inference.text.byte_tokenizer`.
    """
    unknown = set(config.options) - {option.name for option in fields(FakeModelOptions)}
    if unknown:
        raise ModelRefusedError(f"engine {config.deployment}: unknown fake options {sorted(unknown)}")
    options = FakeModelOptions(**config.options)
    time.sleep(options.load_seconds)
    if options.refuse:
        raise ModelRefusedError(options.refuse)
    blocks = math.ceil((config.kv_tokens or KV_TOKENS) / config.block_size) + 1
    context = min(config.max_context or options.max_context, options.max_context)
    return LoadedModel(
        kinds=frozenset(Kind(kind) for kind in options.kinds),
        max_context=context,
        max_input=context,
        vocab_size=VOCABULARY,
        eos_ids=frozenset({END_OF_TURN}),
        kv_blocks=blocks,
        block_size=config.block_size,
        vector_width=options.vector_width,
        tokenizer_folder=Path(),
        runner=FakeRunner(options, blocks, config.block_size),
        details={"architecture": "fake"},
    )
