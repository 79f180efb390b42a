"""The engine in process: requests in, one step at a time, text out. Workers, tests and benchmarks drive it.

From Python, without gateway and worker:

    from inference.local.engine import LocalEngine
    from inference.messages import Message
    from inference.types import GenerationRequest, SamplingParams

    engine = LocalEngine.load("HuggingFaceTB/SmolLM2-135M-Instruct")  # a hub id, a folder or a GGUF file
    for name, question in (("a", "What is a ledger?"), ("b", "Name three rivers.")):
        request = GenerationRequest(
            name,
            tenant="me",
            domain="me",
            messages=(Message("user", (question,)),),
            sampling=SamplingParams(temperature=0.0, max_tokens=64),
        )
        engine.submit(engine.prepare(request))
    answers = {"a": "", "b": ""}
    while engine.unfinished:
        for output in engine.step():
            answers[output.request_id] += output.text
    print(answers)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

from inference.config import EngineConfig
from inference.core.base import BaseScheduler
from inference.core.encoder_scheduler import EncodeScheduler, EncodeTask
from inference.core.fairness import Prices
from inference.core.grammar import Grammar
from inference.core.output import Output
from inference.core.prefix import PrefixKeys
from inference.core.scheduler import Scheduler
from inference.core.sequence import Sequence
from inference.errors import InvalidRequestError
from inference.execution.adapter_room import Bounds
from inference.execution.backend import LoadedModel
from inference.guidance.grammars import Grammars
from inference.local import schedulers
from inference.local.held_adapters import HeldAdapters
from inference.local.siblings import Siblings
from inference.local.stepping import Stepper
from inference.local.texts import Texts
from inference.text.chats import Chats
from inference.text.prepare import Preparer, Prompt, recommended_sampling
from inference.text.tokenizer import Tokenizer
from inference.types import (
    EngineInfo,
    Feature,
    GenerationRequest,
    Guidance,
    Health,
    Kind,
    SamplingParams,
    Tokens,
    seed_of,
)


class LocalEngine:
    """One loaded model with its tokenizer and schedulers. All but `prepare` belongs to one thread.

    Without a tokenizer it takes prompts in ids, and its outputs carry no text. `secret` keys the prefix cache's digests
    (default: random); `pause_seconds` is how long a request waits at its allowance; `clock` gives seconds from any
    fixed point.
    """

    def __init__(
        self,
        config: EngineConfig,
        model: LoadedModel,
        tokenizer: Tokenizer | None = None,
        *,
        secret: bytes = b"",
        pause_seconds: float = 2.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.draining = False
        self._texts = Texts(tokenizer, config.deployment)
        self._open: set[str] = set()  # the requests whose last output was not returned
        self._siblings: Siblings | None = None
        self._generating: Scheduler | None = None
        self._encoding: EncodeScheduler | None = None
        context = max_input = model.max_input
        keys: PrefixKeys | None = None
        details = dict(model.details)
        # Checkpoints tuned for chat often name their new end of turn only in the tokenizer, which may know more ids.
        named = model.eos_ids | (tokenizer.end_ids if tokenizer is not None else frozenset())
        ends = frozenset(token for token in named if token < model.vocab_size)
        if Kind.CHAT in model.kinds:
            keys = schedulers.prefix_keys(config, model, secret or secrets.token_bytes(32))
            self._generating = schedulers.generating(config, model, keys, clock, ends=ends, pause_seconds=pause_seconds)
            if config.speculation and not schedulers.may_draft(config, model):
                details["speculation"] = "off, steps overlap"
            self._siblings = Siblings(self._generating, self._submit_sequence, clock, pause_seconds)
            context = self._generating.config.context
            max_input = min(max_input, context - 1)
        if model.kinds - {Kind.CHAT}:
            self._encoding = schedulers.encoding(config, model, clock)
        self.schedulers: tuple[BaseScheduler[Any], ...] = tuple(
            scheduler for scheduler in (self._generating, self._encoding) if scheduler is not None
        )
        self.grammars: Grammars | None = None
        if self._generating is not None and tokenizer is not None:
            self.grammars = Grammars(tokenizer.serialized, vocabulary=model.vocab_size, ends=ends)
        self._steppers = [Stepper(scheduler, model.runner, config.deployment) for scheduler in self.schedulers]
        self._chats = Chats.of(tokenizer.template if tokenizer is not None else "", config.options, tokenizer)
        self._preparer = Preparer(
            kinds=model.kinds,
            vocab_size=model.vocab_size,
            context=context,
            max_input=max_input,
            keys=keys if config.prefix_cache else None,
            recommended={**recommended_sampling(model.tokenizer_folder), **config.sampling},
            ends=ends,
            grammars=self.grammars,
            chats=self._chats,
            labels=model.labels,
            load_adapter=None if model.adapters is None else model.adapters.load,
        )
        self._adapters = HeldAdapters(model.adapters)
        self.info = EngineInfo(
            deployment=config.deployment,
            model=config.model or config.source,
            kinds=model.kinds,
            max_context=context,
            max_input=max_input,
            block_size=model.block_size,
            kv_blocks=model.kv_blocks,
            vector_width=model.vector_width,
            nests_vectors=model.nests_vectors,
            revision=config.revision,
            details=details,
            features=self._features(),
        )

    def _features(self) -> frozenset[Feature]:
        if self._generating is None or self.tokenizer is None or not self.tokenizer.template:
            return frozenset()
        found = {
            Feature.TOOLS: self._chats.calls is not None,
            Feature.REASONING: self._chats.markers is not None,
            Feature.STRUCTURED_OUTPUTS: self.grammars is not None,
        }
        return frozenset(feature for feature, has in found.items() if has)

    @classmethod
    def load(cls, source: str, **settings: Any) -> Self:
        """Load `source` with `settings` (fields of `EngineConfig`); raise `ModelRefusedError` with the reason."""
        # Here and not above: they import torch and transformers.
        from inference.architectures.load import load_model
        from inference.text.tokenizer import FolderTokenizer

        config = EngineConfig("local", source, **settings)
        model = load_model(config)
        return cls(config, model, FolderTokenizer(model.tokenizer_folder))

    def offer(self, adapters: Mapping[str, Path], bounds: Bounds | None = None) -> None:
        """Let requests name these adapters, each in its folder, and no others; `bounds` is what is in memory of them.

        For any thread. Raise InvalidRequestError where the model takes none.
        """
        if self.model.adapters is None:
            raise InvalidRequestError("this model takes no adapters", code="unknown_adapter", param="model")
        self.model.adapters.offer(adapters, bounds)

    def guidance_of(self, request: GenerationRequest) -> Guidance | None:
        """Return what the request's answer is held to, by its client or for its tools; for any thread."""
        return self._chats.guidance(request)

    def prepare(
        self,
        request: GenerationRequest,
        tokenizer: Tokenizer | None = None,
        grammar: Grammar | None = None,
        adapter: str = "",
    ) -> Prompt:
        """Return the request in tokens; raise `InvalidRequestError` for what this model can't serve.

        `tokenizer` replaces the engine's own in another thread, since a tokenizer encodes for one thread only;
        `grammar` is that of its guidance, else `grammars` compiles it here; `adapter` is the key of its adapter, which
        else is read here unless it is in memory.
        """
        return self._preparer.prepare(request, self._tokenizer(tokenizer), grammar, adapter)

    def tokenize(
        self,
        request: GenerationRequest,
        tokenizer: Tokenizer | None = None,
        *,
        special: bool = True,
        with_texts: bool = False,
    ) -> Tokens:
        """Return the tokens of the request's prompt, `special` ones before a raw one, and with `with_texts` as the
        vocabulary writes them; raise and replace like `prepare`.
        """
        return self._preparer.tokens(request, self._tokenizer(tokenizer), special=special, with_texts=with_texts)

    def detokenize(self, request: GenerationRequest, tokenizer: Tokenizer | None = None) -> str:
        """Return the text of the ids in the request's prompt, control tokens included; raise like `prepare`."""
        return self._preparer.text(request, self._tokenizer(tokenizer))

    def _tokenizer(self, instead: Tokenizer | None) -> Tokenizer:
        tokenizer = instead or self.tokenizer
        if tokenizer is None:
            raise InvalidRequestError("this engine has no tokenizer: it takes prompts in ids")
        return tokenizer

    def submit(self, prompt: Prompt, allowance: int | None = None, is_final: bool = True) -> None:
        """Queue a prepared request; raise what `BaseScheduler.submit` raises.

        After `allowance` output tokens (None: all it may generate) it pauses until `extend` permits more, or ends
        when `is_final`.
        """
        with self._adapters.holding(prompt):
            self._submit(prompt, allowance, is_final=is_final)
        self._open.add(prompt.request.id)

    def _submit(self, prompt: Prompt, allowance: int | None, *, is_final: bool) -> None:
        """Queue a request whose adapter is held."""
        request = prompt.request
        if request.kind is not Kind.CHAT and self._encoding is not None:
            task = EncodeTask(
                request.id,
                request.tenant,
                prompt.inputs,
                request.weight,
                request.band,
                request.priority,
                request.queue_seconds,
            )
            task.seconds, task.labels = prompt.seconds, prompt.labels
            self._encoding.submit(task)
            return
        if self._siblings is None:
            raise InvalidRequestError(f"this model takes no {request.kind} requests", code="unsupported_task")
        seed = request.sampling.seed if request.resumed is None else request.resumed.seed
        seed = secrets.randbits(64) if seed is None else seed
        allowance = prompt.max_output * request.sampling.answers if allowance is None else allowance
        if request.sampling.answers == 1:
            self._submit_sequence(prompt, request.id, request.sampling, seed, allowance, is_final=is_final)
            return
        if request.resumed is not None:
            raise InvalidRequestError("a request of several answers can't be resumed", param="n")
        self._siblings.submit(prompt, seed, allowance, is_final=is_final)

    def _submit_sequence(
        self,
        prompt: Prompt,
        name: str,
        sampling: SamplingParams,
        seed: int,
        allowance: int,
        *,
        is_final: bool,
        index: int | None = None,
    ) -> None:
        """Queue one sequence; `index` is the number of a request's answer, of which the first alone may be refused."""
        assert self._generating is not None
        request = prompt.request
        resumed = request.resumed
        sequence = Sequence(
            request_id=name,
            tenant=request.tenant,
            domain=request.domain,
            prompt=prompt.ids,
            max_output=prompt.max_output,
            allowance=allowance,
            is_final=is_final,
            weight=request.weight,
            band=request.band,
            priority=request.priority,
            sampling=sampling,
            seed=seed_of(seed, index or 0),
            resumed=resumed,
            # A deadline is for a request of which nothing has run: later answers wait for rows as long as it takes.
            queue_seconds=0.0 if resumed is not None or index else request.queue_seconds,
            keys=list(prompt.keys),
            adapter=prompt.adapter,
            grammar=prompt.grammar,
            pause_expires=index is None,
        )
        stream = self._texts.stream(name, prompt.ids, sampling, resumed, prompt.parsing)
        self._generating.submit(sequence, bounded=not index)
        self._texts.begin(name, stream)

    def extend(self, request_id: str, allowance: int, is_final: bool) -> None:
        """Permit `allowance` output tokens in all, with `is_final` for the last time. Unknown requests: no effect."""
        if self._siblings is not None and self._siblings.extend(request_id, allowance, is_final=is_final):
            return
        for scheduler in self.schedulers:
            scheduler.extend(request_id, allowance, is_final)

    def cancel(self, request_id: str) -> None:
        """End a request; its last output comes with the next step. Ended and unknown requests: no effect."""
        if self._siblings is not None and self._siblings.cancel(request_id):
            return
        for scheduler in self.schedulers:
            scheduler.cancel(request_id)

    def cancel_all(self) -> None:
        """End every request."""
        if self._siblings is not None:
            self._siblings.cancel_all()
        for scheduler in self.schedulers:
            scheduler.cancel_all()

    def drain(self) -> None:
        """Take no new requests; submitted ones go on."""
        self.draining = True
        for scheduler in self.schedulers:
            scheduler.drain()

    def reprice(self, rates: Mapping[str, int]) -> None:
        """Use these rates of token classes for the fairness between tenants from now on; only their ratios count."""
        for scheduler in self.schedulers:
            scheduler.reprice(Prices.of(rates))

    def bound_prompts(self, seconds: float) -> None:
        """Let prompts take at most so long of each step from now on, since others wait for it to end."""
        for scheduler in self.schedulers:
            scheduler.bounds.seconds = seconds

    def step(self, begin: Callable[[tuple[str, ...]], None] | None = None) -> list[Output]:
        """Run one step of each scheduler that has work, and return the requests' outputs, text included.

        Where the runner overlaps, the next step is launched, and the outputs are those of the one before.
        `begin` is called with the ids of requests whose first forward pass comes next, before it runs. A step that
        raises is abandoned: its rows run again, each alone (after running out of memory: in smaller steps), and one
        that fails alone as well ends with an error while the others go on. DeviceLostError is raised: no step can run
        any more.
        """
        outputs = self._sibling_outputs()
        for stepper in self._steppers:
            outputs += self._with_text(stepper.scheduler, stepper.advance(partial(self._begin, begin)))
        return self._released(outputs)

    @property
    def steps(self) -> int:
        """How many steps were launched."""
        return sum(stepper.steps for stepper in self._steppers)

    def take_outputs(self) -> list[Output]:
        """Return the outputs of requests that ended outside a step, without running one."""
        outputs = self._sibling_outputs() + [
            output for scheduler in self.schedulers for output in self._with_text(scheduler, scheduler.take_outputs())
        ]
        return self._released(outputs)

    def next_deadline(self) -> float | None:
        """The clock's time at which `step` has to be called even if nothing is submitted; None: never."""
        deadlines = [scheduler.next_deadline() for scheduler in self.schedulers]
        if self._siblings is not None:
            deadlines.append(self._siblings.next_deadline())
        return min((due for due in deadlines if due is not None), default=None)

    @property
    def unfinished(self) -> int:
        """Of how many submitted requests the last output was not returned yet."""
        return len(self._open)

    def health(self) -> Health:
        """Return the state now."""
        stats = [scheduler.stats() for scheduler in self.schedulers]
        return Health(
            ready=not self.draining,
            reason="draining" if self.draining else "",
            running=sum(part.running for part in stats),
            waiting=sum(part.waiting for part in stats),
            kv_used=max((part.kv_used for part in stats), default=0.0),
            kv_cached=max((part.kv_cached for part in stats), default=0.0),
            work=sum((part.work for part in stats[1:]), stats[0].work),
            steps=self.steps,
            draining=self.draining,
        )

    def _sibling_outputs(self) -> list[Output]:
        """Return what requests with several answers have to say before the next step."""
        if self._siblings is None:
            return []
        self._siblings.expire()
        return self._siblings.take_outputs()

    def _released(self, outputs: list[Output]) -> list[Output]:
        """Return `outputs`; the requests that end with them hold their adapters until the steps in flight are over."""
        self._open.difference_update(output.request_id for output in outputs if output.finished is not None)
        settled = sum(stepper.settled for stepper in self._steppers)
        self._adapters.release(outputs, self.steps, settled)
        return outputs

    def _begin(self, begin: Callable[[tuple[str, ...]], None] | None, names: tuple[str, ...]) -> None:
        """Call `begin` with the requests among the sequences `names`."""
        if begin is None:
            return
        siblings = self._siblings
        requests = tuple(name for name in names if siblings is None or not siblings.hides(name))
        if requests:
            begin(requests)

    def _with_text(self, scheduler: BaseScheduler[Any], outputs: list[Output]) -> list[Output]:
        """Fill in the outputs' text; requests that a stop string ends get their last output in the same step."""
        all_outputs: list[Output] = []
        while outputs:
            for output in outputs:
                self._texts.fill(scheduler, output)
                all_outputs += self._siblings.tell(output) if self._siblings else (output,)
            outputs = scheduler.take_outputs()
        return all_outputs
