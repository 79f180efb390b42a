"""A test prompt at a remote engine, outside of the gateway: nobody is charged, and what it would cost is known."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from uuid import uuid4

from base.errors import ServiceError
from base.sealing import SealError
from base.units import format_credits
from billing import rating
from billing.rating import CardPrices
from fleet.remote_engines import open_deployment
from inference.engine import Engine, EngineSpec
from inference.errors import EngineError
from inference.messages import Message
from inference.types import (
    Delta,
    EngineInfo,
    Finished,
    GenerationRequest,
    Kind,
    SamplingParams,
    Usage,
    Vector,
)

READY_SECONDS = 15.0
TRIAL_SECONDS = 120.0
PROMPT = "Say hello in one short sentence."
MOST_OUTPUT = 24


@dataclass(frozen=True, slots=True)
class Trial:
    """How the test of one kind went: what was answered, what it used, and how long it took."""

    kind: Kind
    text: str
    usage: Usage
    is_estimate: bool
    milliseconds: int
    vector_width: int = 0
    findings: tuple[str, ...] = ()
    cached: str = ""  # what is known of whether the server tells cached tokens

    def told(self, card: CardPrices) -> str:
        """Return it as one line with its cost under `card`, at a plan's multiplier of 1."""
        cost = format_credits(rating.charge(self.usage.classes(), card, 10_000))
        found = f": {', '.join(self.findings)}" if self.findings else ""
        counted = f" (counted here{found})" if self.is_estimate else ""
        cached = f", cached tokens {self.cached}" if self.cached else ""
        tokens = f"{self.usage.prompt} tokens in, {self.usage.completion} out{counted}{cached}"
        match self.kind:
            case Kind.EMBEDDING:
                answer = f"{self.vector_width} dimensions"
            case Kind.SCORE:
                answer = "a score"
            case Kind.CLASSIFICATION:
                answer = f"{self.vector_width} probabilities"
            case _:
                answer = f"“{' '.join(self.text.split())}”"
        return f"test prompt ({self.kind}): {answer}; {tokens}, {self.milliseconds} ms, {cost} credits"


@dataclass(frozen=True, slots=True)
class Tried:
    """A remote engine's announcement, and the results of its test prompts."""

    info: EngineInfo
    trials: tuple[Trial, ...]


def try_remote(spec: EngineSpec) -> Tried:
    """Wait for the engine of `spec` (its credential sealed) and run one test prompt of each of its kinds.

    Raise ServiceError with the reason, for operators. Not for a thread that runs an event loop.
    """
    return asyncio.run(_try(spec))


@dataclass(frozen=True, slots=True)
class Seen:
    """A remote engine's announcement; `uncounted` is why it didn't count a prompt as its kind does, or nothing."""

    info: EngineInfo
    uncounted: str


async def look_at(spec: EngineSpec, seconds: float) -> Seen:
    """Wait for the engine of `spec` for so long, and have it count a prompt; nothing is generated.

    Raise ServiceError with what is wrong, SealError for a credential that can't be read.
    """
    engine = _opened(spec)
    try:
        async with asyncio.timeout(2 * seconds):
            info = await _announced(engine, seconds)
            await engine.prepare(_request(min(info.kinds)))
    except EngineError as error:
        raise ServiceError("address", f"{error.message} ({error.code})") from error
    except TimeoutError as error:
        raise ServiceError("address", f"it counted no prompt within {seconds:.0f} s") from error
    finally:
        info_after = engine.info
        await engine.close()
    said = (info_after or info).details.get("prompts", "")
    return Seen(info, said if said.startswith("estimated: ") else "")


def _opened(spec: EngineSpec) -> Engine:
    try:
        return open_deployment(spec)
    except SealError:
        raise
    except ValueError as error:
        field_name, _, message = str(error).partition(": ")
        raise ServiceError(field_name if message else "", message or str(error)) from error


async def _try(spec: EngineSpec) -> Tried:
    engine = _opened(spec)
    try:
        info = await _announced(engine, READY_SECONDS)
        async with asyncio.timeout(TRIAL_SECONDS):
            trials = tuple([await _trial(engine, kind) for kind in sorted(info.kinds)])
    except EngineError as error:
        raise ServiceError("address", f"the test prompt failed: {error.message} ({error.code})") from error
    except TimeoutError as error:
        raise ServiceError("address", f"no answer to the test prompt within {TRIAL_SECONDS:.0f} s") from error
    finally:
        await engine.close()
    return Tried(info, trials)


async def _announced(engine: Engine, seconds: float) -> EngineInfo:
    until = time.monotonic() + seconds
    while True:
        health = await engine.health()
        if health.ready and engine.info is not None:
            return engine.info
        if health.detail or time.monotonic() >= until:
            raise ServiceError("address", ": ".join(filter(None, (f"the engine {health.reason}", health.detail))))
        await asyncio.sleep(0.02)


def _request(kind: Kind) -> GenerationRequest:
    chat = kind is Kind.CHAT
    return GenerationRequest(
        id=uuid4().hex,
        tenant="trial",
        domain=uuid4().hex,
        kind=kind,
        messages=(Message("user", (PROMPT,)),) if chat else (),
        inputs=() if chat else (PROMPT,),
        queries=(PROMPT,) if kind is Kind.SCORE else (),
        sampling=SamplingParams(max_tokens=MOST_OUTPUT, temperature=0.0, unset=("top_p", "top_k", "min_p")),
    )


async def _trial(engine: Engine, kind: Kind) -> Trial:
    request, began = _request(kind), time.monotonic()
    prepared = await engine.prepare(request)
    text, width = "", 0
    async for event in engine.generate(prepared, prepared.max_output, True):
        match event:
            case Delta():
                text += event.text
            case Vector():
                width = len(event.data) // 4
            case Finished():
                if event.error is not None:
                    raise EngineError(event.error.message, code=event.error.code)
                took = round((time.monotonic() - began) * 1000)
                cached = "" if engine.info is None else engine.info.details.get("cached tokens", "")
                return Trial(kind, text, event.usage, event.is_estimate, took, width, event.findings, cached)
    raise EngineError("The engine's stream ended without its end.")
