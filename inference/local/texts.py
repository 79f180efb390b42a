"""The texts of an engine's running sequences: their tokens' texts, up to the first stop string, in each output."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from inference.core.base import BaseScheduler
from inference.core.output import Output
from inference.core.scheduler import Scheduler
from inference.errors import EngineError
from inference.logs import request_field
from inference.text.answer import AnswerParser, Parsing
from inference.text.stream import TextStream
from inference.text.tokenizer import Tokenizer
from inference.types import (
    EngineFault,
    FinishReason,
    PositionLogprobs,
    Resumed,
    SamplingParams,
    TokenLogprob,
    Usage,
)

Decode = Callable[[Sequence[int]], str]

log = logging.getLogger(__name__)

_CUT_SHORT = frozenset({FinishReason.LENGTH, FinishReason.ALLOWANCE, FinishReason.STOP})  # what a stop string precedes


class Texts:
    """The texts of running sequences. Without a tokenizer there are none. `deployment` is for the log."""

    def __init__(self, tokenizer: Tokenizer | None, deployment: str) -> None:
        self._tokenizer = tokenizer
        self._deployment = deployment
        self._streams: dict[str, TextStream] = {}

    def stream(
        self,
        name: str,
        prompt: Sequence[int],
        sampling: SamplingParams,
        resumed: Resumed | None,
        parsing: Parsing | None = None,
    ) -> TextStream | None:
        """Return the text of a new sequence; raise `EngineError` when what it stands on can't be decoded."""
        if self._tokenizer is None:
            return None
        parser = None
        decode: Decode = self._tokenizer.decode
        if parsing is not None:
            decode, parser = self._tokenizer.decoding(parsing.marks), AnswerParser(parsing, name)
        stream = TextStream(decode, prompt, sampling.stop, sampling.min_tokens, parser)
        try:
            if resumed is not None:
                stream.push(resumed.tokens)
                stream.spoken.clear()
                if parser is not None:
                    parser.take()
            elif sampling.echo:
                stream.prefix = self._tokenizer.decode(prompt)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # a library in Rust that panics raises no Exception
            raise EngineError(self._failed(name, error).message, code="text_failed") from error
        return stream

    def begin(self, name: str, stream: TextStream | None) -> None:
        """Let `stream` be the text of sequence `name` until its last output is filled in."""
        if stream is not None:
            self._streams[name] = stream

    def fill(self, scheduler: BaseScheduler[Any], output: Output) -> None:
        """Fill in the output's text. A stop string, or text that can't be decoded, ends the sequence on `scheduler`."""
        stream = self._streams.get(output.request_id)
        if stream is not None:
            self._fill(scheduler, stream, output)
        if output.finished is not None:
            self._streams.pop(output.request_id, None)

    def _fill(self, scheduler: BaseScheduler[Any], stream: TextStream, output: Output) -> None:
        was_over = stream.is_over
        try:
            is_over = self._put(scheduler, stream, output)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # noqa: BLE001 - whatever a tokenizer raises is this request's end, and is logged
            fault = self._failed(output.request_id, error)
            if output.finished is None:
                scheduler.cancel(output.request_id, FinishReason.ERROR, error=fault)
            else:
                output.finished = replace(output.finished, reason=FinishReason.ERROR, error=fault, stop=None)
            return
        if was_over or not is_over:
            return
        if output.finished is None:
            scheduler.cancel(output.request_id, FinishReason.STOP, stop=stream.matched)
        elif output.finished.reason in _CUT_SHORT:
            output.finished = replace(output.finished, reason=FinishReason.STOP, stop=stream.matched)

    def _put(self, scheduler: BaseScheduler[Any], stream: TextStream, output: Output) -> bool:
        """Put the output's text into it; return whether the stream is over. Raises whatever the tokenizer does."""
        was_over = stream.is_over
        if output.logprobs or output.prompt_logprobs:
            output.logprobs = self._named(output.logprobs)
            output.prompt_logprobs = self._named(output.prompt_logprobs)
        before = stream.tokens
        text = stream.push(output.tokens)
        output.text = text if output.started is None else stream.prefix + text
        is_over = stream.is_over
        if is_over and not was_over:
            _cut(scheduler, output, stream.tokens - before, stream.tokens)
        if output.finished is not None and not is_over:
            output.text += stream.finish(is_cut=output.finished.reason is not FinishReason.STOP)
            is_over = stream.is_over
        if stream.parser is not None:
            _tell_parsed(stream, stream.parser, output)
        return is_over

    def _failed(self, name: str, error: BaseException) -> EngineFault:
        """Log `error` with its traceback; return the fault that it is for the request."""
        log.error(
            "text of a request failed", exc_info=error, extra=request_field(name) | {"deployment": self._deployment}
        )
        return EngineFault("text_failed", f"the answer can't be decoded ({type(error).__name__})")

    def _named(self, positions: tuple[PositionLogprobs, ...]) -> tuple[PositionLogprobs, ...]:
        """Return `positions` with the texts of their tokens."""
        assert self._tokenizer is not None
        decode = self._tokenizer.decode

        def with_text(entry: TokenLogprob) -> TokenLogprob:
            return TokenLogprob(entry.token, entry.logprob, decode((entry.token,)))

        return tuple(
            each._replace(chosen=with_text(each.chosen), top=tuple(map(with_text, each.top))) for each in positions
        )


def _tell_parsed(stream: TextStream, parser: AnswerParser, output: Output) -> None:
    """Fill in what was read of an answer, and which of its tokens were reasoning."""
    output.told = parser.take()
    entries = list(zip(output.logprobs, stream.spoken, strict=False))
    output.logprobs = tuple(entry for entry, spoken in entries if spoken)
    output.unspoken = tuple(entry for entry, spoken in entries if not spoken)
    stream.spoken.clear()
    if stream.thought:
        output.usage = _with_reasoning(output.usage, stream.thought)
        if output.finished is not None:
            output.finished = replace(output.finished, usage=_with_reasoning(output.finished.usage, stream.thought))


def _with_reasoning(usage: Usage, count: int) -> Usage:
    return replace(usage, output=usage.completion - count, reasoning=count)


def _cut(scheduler: BaseScheduler[Any], output: Output, used: int, count: int) -> None:
    """Leave out of `output` what its step generated behind the token that completed a stop string.

    That one is the last of the first `used` tokens, and number `count` of the whole answer.
    """
    if output.usage.output <= count:
        return
    output.tokens, output.logprobs = output.tokens[:used], output.logprobs[:used]
    output.usage = replace(output.usage, output=count)
    if output.finished is not None:
        output.finished = replace(output.finished, usage=output.usage)
    elif isinstance(scheduler, Scheduler):
        scheduler.truncate(output.request_id, count)
