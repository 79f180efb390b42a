"""A deployment inside its worker: an engine whose prompts are prepared in two threads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from inference.config import EngineConfig
from inference.execution.backend import LoadedModel
from inference.local import LocalEngine
from inference.text.prepare import Prompt
from inference.text.tokenizer import Tokenizer
from inference.types import GenerationRequest, Health


class Deployment:
    """One deployment, ready to serve.

    `prepare` belongs to the reader thread (with `apart`: to the thread of long prompts), `engine` to the step thread.
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
        self._tokenizer_apart = tokenizer.copy()

    def prepare(self, request: GenerationRequest, *, apart: bool = False) -> Prompt:
        """Return the request in tokens; raise `InvalidRequestError` for what this deployment can't serve.

        `apart` uses a second tokenizer, made at load, since one encodes for one thread only.
        """
        return self.engine.prepare(request, self._tokenizer_apart if apart else None)

    def health(self) -> Health:
        """The state now, and the settings that it was loaded with."""
        return replace(self.engine.health(), revision=self.info.revision)

    @property
    def draining(self) -> bool:
        """Whether it takes no new requests any more."""
        return self.engine.draining
