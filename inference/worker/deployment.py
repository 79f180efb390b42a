"""A deployment inside its worker: an engine whose prompts are prepared in several threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue

from inference.config import EngineConfig
from inference.core.grammar import Grammar
from inference.execution.adapter_room import Bounds
from inference.execution.backend import LoadedModel
from inference.guidance.grammars import Grammars
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.text.tokenizer import Tokenizer
from inference.types import GenerationRequest, Guidance, Health, Tokens
from inference.worker.apart import apart


class Deployment:
    """One deployment, ready to serve.

    A tokenizer encodes for one thread at a time: the engine's `own_tokenizer` belongs to the reader thread, and any
    other thread is lent one. `engine` belongs to the step thread.
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
        self.engine = LocalEngine(config, model, tokenizer, secret=secret, pause_seconds=pause_seconds, clock=clock)
        self.info = self.engine.info
        self.offer(config)
        self._tokenizer = tokenizer
        self._idle: SimpleQueue[Tokenizer] = SimpleQueue()
        self._idle.put(tokenizer.copy())  # the first long prompt waits for none

    def prepare(
        self,
        request: GenerationRequest,
        *,
        own_tokenizer: bool = True,
        grammar: Grammar | None = None,
        adapter: str = "",
    ) -> Prompt:
        """Return the request in tokens; raise `InvalidRequestError` for what this deployment can't serve.

        `grammar` is that of the request's guidance, `adapter` the key of its adapter.
        """
        with self._encoding(own_tokenizer) as tokenizer:
            return self.engine.prepare(request, tokenizer, grammar, adapter)

    def tokenize(
        self, request: GenerationRequest, *, special: bool, with_texts: bool, own_tokenizer: bool = True
    ) -> Tokens:
        """Return the tokens of the request's prompt; raise `InvalidRequestError` like `prepare`."""
        with self._encoding(own_tokenizer) as tokenizer:
            return self.engine.tokenize(request, tokenizer, special=special, with_texts=with_texts)

    def detokenize(self, request: GenerationRequest, *, own_tokenizer: bool = True) -> str:
        """Return the text of the ids in the request's prompt; raise `InvalidRequestError` for ids that there aren't."""
        with self._encoding(own_tokenizer) as tokenizer:
            return self.engine.detokenize(request, tokenizer)

    @contextmanager
    def _encoding(self, own_tokenizer: bool) -> Iterator[Tokenizer]:
        """Yield the engine's own tokenizer, or one that no other thread uses."""
        if own_tokenizer:
            yield self._tokenizer
            return
        try:
            tokenizer = self._idle.get_nowait()
        except Empty:
            tokenizer = self._tokenizer.copy()
        try:
            yield tokenizer
        finally:
            self._idle.put(tokenizer)

    def guidance_of(self, request: GenerationRequest) -> Guidance | None:
        """Return what the request's answer is held to. For any thread."""
        return self.engine.guidance_of(request)

    @property
    def grammars(self) -> Grammars | None:
        """The grammars of its guided requests, None where answers can't be guided. For any thread."""
        return self.engine.grammars

    def offer(self, config: EngineConfig) -> None:
        """Let requests name the adapters of `config` and no others. For any thread."""
        model = self.engine.model
        if model.adapters is None:
            states = dict.fromkeys(config.adapters, "this model takes no adapters")
        else:
            folders = {name: Path(folder) for name, folder in config.adapters.items()}
            per_tenant = config.adapters_per_tenant or max(1, config.most_adapters // 2)
            model.adapters.offer(folders, Bounds(config.most_adapters, model.adapter_bytes, per_tenant))
            states = model.adapters.states()
        self.info = replace(self.info, adapters=states)

    def check_adapter(self) -> bool:
        """Read one adapter that was offered and never read, for the loading thread; False where there is none."""
        adapters = self.engine.model.adapters
        name = None if adapters is None else adapters.unchecked()
        if adapters is not None and name is not None:
            apart(partial(adapters.check, name))
            self.info = replace(self.info, adapters=adapters.states())
        return name is not None

    def adapter_in_memory(self, request: GenerationRequest) -> str | None:
        """Return the key of the request's adapter, "" where it names none, None where it has to be loaded first."""
        adapters = self.engine.model.adapters
        if not request.adapter or adapters is None:
            return ""  # `prepare` refuses an adapter where there are none
        return adapters.used(request.adapter, request.domain)

    def load_adapter(self, request: GenerationRequest) -> str:
        """Load the request's adapter and return its key; raise what `Adapters.load` raises. For any thread."""
        assert self.engine.model.adapters is not None
        return apart(partial(self.engine.model.adapters.load, request.adapter, request.domain))

    def adapters_in_memory(self) -> tuple[str, ...]:
        """Return the adapters that requests needn't wait for. For any thread."""
        adapters = self.engine.model.adapters
        return () if adapters is None else adapters.in_memory()

    def health(self) -> Health:
        """Return the state now, with the revision of the settings that the deployment was loaded with."""
        return replace(self.engine.health(), revision=self.info.revision)

    @property
    def draining(self) -> bool:
        """Whether it takes no new requests any more."""
        return self.engine.draining
