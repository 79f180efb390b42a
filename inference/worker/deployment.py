"""A deployment inside its worker: the loaded model, its tokenizer and its scheduler."""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from inference.config import SAMPLING_FIELDS, EngineConfig
from inference.core.config import SchedulerConfig
from inference.core.encoder_scheduler import EncodeScheduler, EncodeTask
from inference.core.output import Output, Stats
from inference.core.prefix import PrefixKeys
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence as Generation
from inference.core.step import StepPlan, StepResult
from inference.errors import InvalidRequestError
from inference.execution.backend import LoadedModel
from inference.text.tokenizer import Tokenizer
from inference.types import EngineFault, EngineInfo, FinishReason, GenerationRequest, Health, Kind, SamplingParams


class Scheduling(Protocol):
    """What the step loop needs of a scheduler, generating or encoding."""

    def extend(self, request_id: str, allowance: int, last: bool) -> None: ...

    def cancel(
        self,
        request_id: str,
        reason: FinishReason = FinishReason.CANCELLED,
        *,
        stop: str | None = None,
        error: EngineFault | None = None,
    ) -> None: ...

    def cancel_all(self, reason: FinishReason = FinishReason.CANCELLED, error: EngineFault | None = None) -> None: ...

    def drain(self) -> None: ...

    def plan(self) -> StepPlan | None: ...

    def commit(self, plan: StepPlan, result: StepResult) -> list[Output]: ...

    def abandon(self, plan: StepPlan, error: BaseException) -> list[Output]: ...

    def take_outputs(self) -> list[Output]: ...

    def next_deadline(self) -> float | None: ...

    @property
    def unfinished(self) -> int: ...

    def stats(self) -> Stats: ...


MOST_STOPS = 64
LONGEST_STOP = 1000  # characters
CHARACTERS_PER_TOKEN = 128  # the longest tokens of common vocabularies: so much white space


@dataclass(frozen=True, slots=True)
class Prompt:
    """What `prepare` keeps of a request until it is submitted: a chat's ids and cache keys, or the inputs' ids."""

    request: GenerationRequest
    max_output: int
    ids: tuple[int, ...] = ()
    inputs: tuple[tuple[int, ...], ...] = ()
    keys: list[bytes] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return len(self.ids) + sum(len(item) for item in self.inputs)


class Deployment:
    """One deployment, ready to serve.

    `prepare` belongs to the reader thread (with `apart`: to the thread of long prompts), all else to the step thread.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        tokenizer: Tokenizer,
        *,
        secret: bytes,
        pause_seconds: float,
        clock: Callable[[], float],
    ) -> None:
        self.id = config.deployment
        self.model = model
        self.tokenizer = tokenizer
        self._tokenizer_apart = tokenizer.copy()
        self.steps = 0
        self.draining = False
        self.context = self.max_input = model.max_input
        self._keys: PrefixKeys | None = None
        self._generating: Scheduler | None = None
        self._encoding: EncodeScheduler | None = None
        if Kind.CHAT in model.kinds:
            bounds = SchedulerConfig.of(
                config,
                blocks=model.kv_blocks,
                max_context=model.max_context,
                vocab_size=model.vocab_size,
                # Checkpoints tuned for chat often name their new end of turn only in the tokenizer.
                eos_ids=model.eos_ids | tokenizer.end_ids,
                pause_seconds=pause_seconds,
            )
            dtype = str(model.details.get("dtype", config.dtype))
            self._keys = PrefixKeys(secret, model=config.source, dtype=dtype, block_size=config.block_size)
            self._generating = Scheduler(bounds, self._keys, clock)
            self.context = bounds.context
            self.max_input = min(model.max_input, bounds.context - 1)
        if Kind.EMBEDDING in model.kinds:
            self._encoding = EncodeScheduler(
                max_rows=config.max_rows,
                max_step_tokens=config.max_step_tokens,
                max_waiting=config.max_waiting,
                max_waiting_per_tenant=config.max_waiting_per_tenant,
                clock=clock,
            )
        self.schedulers: tuple[Scheduling, ...] = tuple(
            scheduler for scheduler in (self._generating, self._encoding) if scheduler is not None
        )
        self._caches_prefixes = config.prefix_cache
        self._recommended = {**recommended_sampling(model.tokenizer_folder), **config.sampling}
        self.info = EngineInfo(
            deployment=config.deployment,
            model=config.model or config.source,
            kinds=model.kinds,
            max_context=self.context,
            max_input=self.max_input,
            block_size=model.block_size,
            kv_blocks=model.kv_blocks,
            vector_width=model.vector_width,
            details=model.details,
        )

    def prepare(self, request: GenerationRequest, *, apart: bool = False) -> Prompt:
        """Return the request in tokens; raise `InvalidRequestError` for what this deployment can't serve.

        `apart` uses a second tokenizer, made at load, since one encodes for one thread only.
        """
        if request.kind not in self.model.kinds:
            raise InvalidRequestError(f"this model takes no {request.kind} requests", code="unsupported_task")
        if request.weight < 1:
            raise InvalidRequestError("a tenant's weight is at least 1 thousandth")
        tokenizer = self._tokenizer_apart if apart else self.tokenizer
        if request.kind is Kind.CHAT:
            return self._chat(request, tokenizer)
        return self._embedding(request, tokenizer)

    def submit(self, prompt: Prompt, allowance: int, is_final: bool) -> Scheduling:
        """Queue a prepared request and return the scheduler that has it; raise what its `submit` raises."""
        request = prompt.request
        if request.kind is Kind.EMBEDDING and self._encoding is not None:
            self._encoding.submit(EncodeTask(request.id, request.tenant, prompt.inputs, request.weight))
            return self._encoding
        if self._generating is None:
            raise InvalidRequestError(f"this model takes no {request.kind} requests", code="unsupported_task")
        seed = request.sampling.seed
        self._generating.submit(
            Generation(
                request_id=request.id,
                tenant=request.tenant,
                domain=request.domain,
                prompt=prompt.ids,
                max_output=prompt.max_output,
                allowance=allowance,
                last=is_final,
                weight=request.weight,
                sampling=request.sampling,
                seed=secrets.randbits(64) if seed is None else seed & (2**64 - 1),
                keys=prompt.keys,
            )
        )
        return self._generating

    def health(self) -> Health:
        """The state now."""
        stats = [scheduler.stats() for scheduler in self.schedulers]
        return Health(
            ready=not self.draining,
            reason="draining" if self.draining else "",
            running=sum(part.running for part in stats),
            waiting=sum(part.waiting for part in stats),
            kv_used=max((part.kv_used for part in stats), default=0.0),
            steps=self.steps,
            draining=self.draining,
        )

    def _chat(self, request: GenerationRequest, tokenizer: Tokenizer) -> Prompt:
        if not request.messages:
            raise InvalidRequestError("there are no messages", param="messages")
        request = replace(request, sampling=request.sampling.completed(self._recommended))
        _check_sampling(request.sampling)
        self._check_ids(request.sampling.stop_token_ids, "stop_token_ids")
        characters = sum(len(message.content) for message in request.messages)
        if characters > CHARACTERS_PER_TOKEN * self.max_input:  # not worth the seconds that it takes to be exact
            raise InvalidRequestError(
                f"the prompt has {characters} characters, more than fit into this model's {self.context} tokens",
                code="context_length_exceeded",
                param="messages",
            )
        ids = tuple(tokenizer.prompt(request.messages))
        self._check_ids(ids, "messages")  # a tokenizer may have got tokens that its model never did
        room = self.context - len(ids)
        if room < 1 or len(ids) > self.max_input:
            raise InvalidRequestError(
                f"the prompt has {len(ids)} tokens, this model's context {self.context} with the answer",
                code="context_length_exceeded",
                param="messages",
            )
        wanted = request.sampling.max_tokens
        keys = self._keys.keys(request.domain, ids) if self._keys is not None and self._caches_prefixes else []
        return Prompt(request, room if wanted is None else min(wanted, room), ids=ids, keys=keys)

    def _embedding(self, request: GenerationRequest, tokenizer: Tokenizer) -> Prompt:
        if not request.inputs:
            raise InvalidRequestError("there is no input", param="input")
        inputs: list[tuple[int, ...]] = []
        longest = CHARACTERS_PER_TOKEN * self.model.max_input
        for number, given in enumerate(request.inputs):
            item = given
            if isinstance(item, str):
                if len(item) > longest:
                    if not request.truncate:
                        raise InvalidRequestError(
                            f"input {number} has {len(item)} characters, too many for {self.model.max_input} tokens",
                            code="context_length_exceeded",
                            param="input",
                        )
                    item = item[:longest]
                ids = tuple(tokenizer.encode(item))
                self._check_ids(ids, "input")
            else:
                self._check_ids(item, "input")
                ids = tuple(item)
            if not ids:
                raise InvalidRequestError(f"input {number} is empty", param="input")
            if len(ids) > self.model.max_input:
                if not request.truncate:
                    raise InvalidRequestError(
                        f"input {number} has {len(ids)} tokens, this model takes {self.model.max_input}",
                        code="context_length_exceeded",
                        param="input",
                    )
                limit = self.model.max_input
                ids = tuple(tokenizer.encode(item, limit)) if isinstance(item, str) else ids[:limit]
            inputs.append(ids)
        return Prompt(request, 0, inputs=tuple(inputs))

    def _check_ids(self, ids: Sequence[int], param: str) -> None:
        if ids and not 0 <= min(ids) <= max(ids) < self.model.vocab_size:
            token = next(token for token in ids if not 0 <= token < self.model.vocab_size)
            raise InvalidRequestError(f"token id {token} is not in the model's vocabulary", param=param)


def recommended_sampling(folder: Path) -> dict[str, float]:
    """Return what the model's own generation_config.json says of sampling; empty without one."""
    path = folder / "generation_config.json"
    stated = json.loads(path.read_text()) if path.is_file() else {}
    return {name: stated[name] for name in SAMPLING_FIELDS if isinstance(stated.get(name), int | float)}


def _check_sampling(sampling: SamplingParams) -> None:
    """Raise `InvalidRequestError` for what a sampler can't use; comparisons are written so that NaN fails them."""
    for name, fits in (
        ("max_tokens", sampling.max_tokens is None or sampling.max_tokens >= 1),
        ("temperature", 0.0 <= sampling.temperature < math.inf),
        ("top_p", 0.0 < sampling.top_p <= 1.0),
        ("top_k", sampling.top_k >= 0),
        ("min_p", 0.0 <= sampling.min_p <= 1.0),
        # Each token's text is held against each of them, in the thread that all requests share.
        ("stop", len(sampling.stop) <= MOST_STOPS and all(len(stop) <= LONGEST_STOP for stop in sampling.stop)),
    ):
        if not fits:
            raise InvalidRequestError(f"{name} is out of range", param=name)
