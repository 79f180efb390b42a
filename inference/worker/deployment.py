"""A deployment inside its worker: an engine whose prompts are prepared in two threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inference.config import EngineConfig
from inference.core.grammar import Grammar
from inference.execution.backend import LoadedModel
from inference.guidance.grammars import Grammars
from inference.local.engine import LocalEngine
from inference.text.prepare import Prompt
from inference.text.tokenizer import Tokenizer
from inference.types import GenerationRequest, Guidance, Health, Tokens


class Deployment:
    """One deployment, ready to serve.

    `prepare` belongs to the reader thread, with `second_tokenizer` to the thread of long prompts; `engine` belongs to
    the step thread.
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
        self._second_tokenizer = tokenizer.copy()

    def prepare(
        self, request: GenerationRequest, *, second_tokenizer: bool = False, grammar: Grammar | None = None
    ) -> Prompt:
        """Return the request in tokens; raise `InvalidRequestError` for what this deployment can't serve.

        `second_tokenizer` is for the thread of long prompts, since a tokenizer encodes for one thread only; `grammar`
        is that of the request's guidance.
        """
        return self.engine.prepare(request, self._second_tokenizer if second_tokenizer else None, grammar)

    def tokenize(
        self, request: GenerationRequest, *, special: bool, with_texts: bool, second_tokenizer: bool = False
    ) -> Tokens:
        """Return the tokens of the request's prompt; raise `InvalidRequestError` like `prepare`."""
        tokenizer = self._second_tokenizer if second_tokenizer else None
        return self.engine.tokenize(request, tokenizer, special=special, with_texts=with_texts)

    def detokenize(self, request: GenerationRequest, *, second_tokenizer: bool = False) -> str:
        """Return the text of the ids in the request's prompt; raise `InvalidRequestError` for ids that there aren't."""
        return self.engine.detokenize(request, self._second_tokenizer if second_tokenizer else None)

    def guidance_of(self, request: GenerationRequest) -> Guidance | None:
        """Return what the request's answer is held to. For any thread."""
        return self.engine.guidance_of(request)

    @property
    def grammars(self) -> Grammars | None:
        """The grammars of its guided requests, None where answers can't be guided. For any thread."""
        return self.engine.grammars

    def health(self) -> Health:
        """Return the state now, with the revision of the settings that the deployment was loaded with."""
        return replace(self.engine.health(), revision=self.info.revision)

    @property
    def draining(self) -> bool:
        """Whether it takes no new requests any more."""
        return self.engine.draining
