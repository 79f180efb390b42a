"""Measuring a deployment through its engine, outside of the gateway: a designed mix of requests, and how long the
device was busy with each window of them. Nobody is charged.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from random import Random
from uuid import uuid4

from base.errors import ServiceError
from billing.costs import TERMS, Window, terms_of
from fleet.remote_engines import open_deployment
from inference.engine import Engine, EngineSpec
from inference.errors import EngineError, InvalidRequestError
from inference.messages import Message
from inference.types import EngineInfo, Finished, GenerationRequest, Kind, Prepared, SamplingParams, Usage, Work

READY_SECONDS = 60.0  # a worker may be loading it
LOOK_SECONDS = 0.25  # two renewals of a session and a half
SETTLED_SECONDS = 5.0  # for the worker to tell the work of requests that have ended
WORD_TRIES = 4  # at most so many prompts are counted to find the words of a length
_VOCABULARY = (
    "time year people way day man thing woman life child world school state family student group country problem hand "
    "part place case week company system program question work government number night point home water room mother "
    "area money story fact month lot right study book eye job word business issue side kind head house service friend "
    "father power hour game line end member law car city community name president team minute idea kid body "
    "information back parent face others level office door health person art war history party result change morning "
    "reason research girl guy moment air teacher force education"
)
WORDS = tuple(_VOCABULARY.split())


@dataclass(frozen=True, slots=True)
class Shape:
    """A request in tokens, about: its prompt, how much of that is to be cached, and its answer."""

    prompt: int
    cached: int
    output: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured at `concurrency` requests at a time: windows to fit by, and windows that are held out; `alone`
    is a mix that runs one request at a time.
    """

    concurrency: int
    fitted: tuple[tuple[Shape, ...], ...]
    held_out: tuple[tuple[Shape, ...], ...]
    alone: tuple[Shape, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """The windows of a plan with the engine's announcement; `reach` is the context up to which they say something,
    twice the longest prompt. `wall` are the seconds of all windows on the clock, in
    `busy` of which the device worked; `method` says who measured those.
    """

    info: EngineInfo
    fitted: tuple[Window, ...]
    held_out: tuple[Window, ...]
    usages: tuple[Usage, ...]  # of the held-out requests
    alone: Window
    wall: float
    busy: float
    method: str
    reach: int
    disturbed: int = 0  # windows that were measured again, since the engine also worked for others

    @property
    def device(self) -> str:
        """The device in words, as far as the engine says."""
        told = [f"{name} {text}" for name, text in self.info.details.items() if name in {"device", "dtype"}]
        return ", ".join(told) or self.info.model

    @property
    def tells_cached(self) -> bool:
        """Whether any request had cached tokens, so that their cost is known."""
        return any(one.terms[TERMS.index("cached")] for one in self.fitted)


def plan_of(
    max_context: int, *, concurrency: int, longest: int, answer: int, repeats: int = 1, generates: bool = True
) -> Plan:
    """Return a design: windows of equal requests at the corners (short and long prompts, short and long answers, with
    and without a cached prefix) and mixed windows, each so many times, and three mixed windows that are held out.
    """
    longest = max(min(longest, max_context * 3 // 4 - (answer if generates else 0)), 16)
    prompts = sorted({max(longest // 32, 16), max(longest // 4, 16), longest})
    answers = sorted({1, max(answer // 4, 1), answer}) if generates else [0]
    shapes = [Shape(prompt, 0, output) for prompt in prompts for output in answers]
    if generates:
        shapes += [Shape(prompt, prompt * 3 // 4, output) for prompt in prompts[1:] for output in (1, answer)]
    draw = Random(0)  # the same design each time

    def mixed(requests: int) -> tuple[Shape, ...]:
        return tuple(_drawn(draw, longest, answer if generates else 0) for _ in range(requests))

    corners = [(shape,) * concurrency for shape in shapes]
    fitted = [*corners, *(mixed(3 * concurrency) for _ in range(4))] * repeats
    held_out = tuple(mixed(4 * concurrency) for _ in range(3))
    return Plan(concurrency, tuple(draw.sample(fitted, len(fitted))), held_out, mixed(6))


def _drawn(draw: Random, longest: int, answer: int) -> Shape:
    """Return a request of a mix: lengths evenly by their logarithm, a third with a cached prefix."""
    prompt = round(16 * (longest / 16) ** draw.random())
    output = round(answer ** draw.random()) if answer else 0
    is_cached = bool(answer) and prompt >= 64 and draw.random() < 1 / 3
    return Shape(prompt, round(prompt * draw.uniform(0.3, 0.9)) if is_cached else 0, output)


def measure(
    spec: EngineSpec, *, concurrency: int, longest: int, answer: int, tell: Callable[[str], None], repeats: int = 1
) -> Measured:
    """Run the `plan_of` so many requests at a time, with prompts and answers of up to so many tokens, at the engine of
    `spec` (its credential sealed), and tell each window.

    Raise ServiceError with the reason, for operators. Not for a thread that runs an event loop.
    """
    plan_for = partial(plan_of, concurrency=concurrency, longest=longest, answer=answer, repeats=repeats)
    return asyncio.run(_measure(spec, plan_for, tell))


async def _measure(spec: EngineSpec, plan_for: Callable[..., Plan], tell: Callable[[str], None]) -> Measured:
    if spec.backend == "worker":
        spec = replace(spec, options={**spec.options, "renew_seconds": 0.1})  # each renewal tells the engine's work
    try:
        engine = open_deployment(spec)
    except ValueError as error:
        raise ServiceError("deployment", str(error)) from error
    try:
        info = await _announced(engine)
        context = min(info.max_context, info.max_input or info.max_context)
        plan = plan_for(context, generates=Kind.CHAT in info.kinds)
        bench = _Bench(engine, min(info.kinds, key=_ORDER.index), tell)
        await bench.warm_up(plan, is_ours=spec.backend == "worker")
        fitted = [await bench.window(shapes, plan.concurrency) for shapes in plan.fitted]
        held_out = [await bench.window(shapes, plan.concurrency) for shapes in plan.held_out]
        usages = tuple(usage for one in bench.usages[-len(plan.held_out) :] for usage in one)
        wall, busy = bench.wall, bench.busy
        alone = await bench.window(plan.alone, 1)
        method = "the worker's steps" if bench.has_work else "requests in flight, on our clock"
        longest = max(shape.prompt for shapes in plan.fitted for shape in shapes)
        return Measured(
            info,
            tuple(fitted),
            tuple(held_out),
            usages,
            alone,
            wall,
            busy,
            method,
            min(2 * longest, info.max_context),
            disturbed=bench.disturbed,
        )
    except EngineError as error:
        raise ServiceError("deployment", f"{error.message} ({error.code})") from error
    finally:
        await engine.close()


_ORDER = (Kind.CHAT, Kind.EMBEDDING, Kind.SCORE, Kind.CLASSIFICATION)


async def _announced(engine: Engine) -> EngineInfo:
    until = time.monotonic() + READY_SECONDS
    while True:
        health = await engine.health()
        if health.ready and engine.info is not None:
            return engine.info
        if time.monotonic() >= until:
            why = ": ".join(filter(None, (health.reason, health.detail)))
            raise ServiceError("deployment", f"its engine takes no requests: {why}: is it served?")
        await asyncio.sleep(0.05)


class _Bench:
    """Windows of requests at one engine, one after the other."""

    MOST_TRIES = 3

    def __init__(self, engine: Engine, kind: Kind, tell: Callable[[str], None]) -> None:
        self.wall = self.busy = 0.0
        self.disturbed = 0
        self.has_work = False
        self.usages: list[list[Usage]] = []  # of each window
        self._engine = engine
        self._kind = kind
        self._tell = tell
        self._draw = Random(uuid4().int)  # no prompt may begin as one before it
        self._domain = uuid4().hex
        self._per_word = 1.3
        self._ignores_end = True
        self._number = 0

    async def warm_up(self, plan: Plan, *, is_ours: bool) -> None:
        """Find out how many tokens a word has, which wishes the engine takes and whether it tells its work; compute
        something once.
        """
        lengths = [shape.prompt for shapes in plan.fitted for shape in shapes]
        for _ in range(WORD_TRIES):
            text = self._text(max(lengths) // 2)
            prepared = await self._prepared(text, 1)
            self._per_word = max((prepared.prompt_tokens - 16) / len(text.split()), 0.8)
            await self._engine.cancel(prepared.request.id)
        for length in (min(lengths), max(lengths)):
            await self._run(await self._prepared(self._text(length), 4))
        until = time.monotonic() + (SETTLED_SECONDS if is_ours else 0)
        while not self.has_work:
            self.has_work = (await self._engine.health()).work is not None
            if time.monotonic() >= until:
                break
            await asyncio.sleep(LOOK_SECONDS)

    async def window(self, shapes: Sequence[Shape], concurrency: int) -> Window:
        """Measure a window; once more when the engine worked for others meanwhile."""
        self._number += 1
        for _ in range(self.MOST_TRIES):
            texts = [await self._text_of(shape) for shape in shapes]
            before, began = await self._settled_work(), time.monotonic()
            usages = await self._all(list(zip(texts, shapes, strict=True)), concurrency)
            wall = time.monotonic() - began
            after = await self._settled_work(usages, before)
            busy = wall if before is None or after is None else after.seconds - before.seconds
            if before is not None and after is not None and self._is_others(usages, before, after):
                self.disturbed += 1
                self._tell(f"window {self._number}: the engine also worked for others, measured again")
                continue
            self.wall, self.busy = self.wall + wall, self.busy + busy
            self.usages.append(usages)
            sums = tuple(sum(each) for each in zip(*(terms_of(one.classes()) for one in usages), strict=True))
            read, _, written, _, cached, requests = sums
            self._tell(
                f"window {self._number}: {requests} requests, {read} tokens read, {cached} cached, {written} written: "
                f"{busy:.3f} s busy of {wall:.3f} s"
            )
            return Window(sums, busy)
        raise ServiceError(
            "deployment", "it works for others all the time: calibrate it where nobody else uses it, or at night."
        )

    async def _all(self, wanted: Sequence[tuple[str, Shape]], concurrency: int) -> list[Usage]:
        queue, usages = iter(wanted), list[Usage]()

        async def stream(rest: Iterator[tuple[str, Shape]]) -> None:
            for text, shape in rest:
                usages.append(await self._run(await self._prepared(text, shape.output)))

        async with asyncio.TaskGroup() as group:
            for _ in range(concurrency):
                group.create_task(stream(queue))
        return usages

    async def _run(self, prepared: Prepared) -> Usage:
        async for event in self._engine.generate(prepared, prepared.max_output, True):
            if isinstance(event, Finished):
                if event.error is not None:
                    raise EngineError(event.error.message, code=event.error.code)
                return event.usage
        raise EngineError("The engine's stream ended without its end.")

    async def _prepared(self, text: str, output: int) -> Prepared:
        try:
            return await self._engine.prepare(self._request(text, output))
        except InvalidRequestError:
            if not self._ignores_end or self._kind is not Kind.CHAT:
                raise
            self._ignores_end = False  # a foreign server's answers end where it likes: they are counted
            return await self._engine.prepare(self._request(text, output))

    def _request(self, text: str, output: int) -> GenerationRequest:
        is_chat = self._kind is Kind.CHAT
        sampling = SamplingParams(
            max_tokens=max(output, 1),
            temperature=0.0,
            ignore_eos=self._ignores_end and is_chat,
            unset=("top_p", "top_k", "min_p"),
        )
        return GenerationRequest(
            id=uuid4().hex,
            tenant="calibration",
            domain=self._domain,
            kind=self._kind,
            messages=(Message("user", (text,)),) if is_chat else (),
            inputs=() if is_chat else (text,),
            queries=("What is this about?",) if self._kind is Kind.SCORE else (),
            labels=("one", "other") if self._kind is Kind.CLASSIFICATION else (),
            sampling=sampling,
        )

    def _text(self, tokens: int) -> str:
        """Return words that have about so many tokens, such as no prompt before had."""
        count = max(round((tokens - 16) / self._per_word), 2)
        return " ".join(self._draw.choices(WORDS, k=count))

    async def _text_of(self, shape: Shape) -> str:
        """Return a prompt of that shape; the part that is to be cached is computed first, outside of the window."""
        if not shape.cached:
            return self._text(shape.prompt)
        prefix = self._text(shape.cached)
        await self._run(await self._prepared(prefix, 1))
        return f"{prefix} {self._text(shape.prompt - shape.cached + 16)}"

    async def _settled_work(self, usages: Sequence[Usage] = (), since: Work | None = None) -> Work | None:
        """Return the engine's work once it tells that of the requests with those `usages`, and nothing moves."""
        if not self.has_work:
            return None
        written = sum(one.completion for one in usages)
        until, last = time.monotonic() + SETTLED_SECONDS, None
        while True:
            health = await self._engine.health()
            work = health.work
            has_all = since is None or work is None or work.output_tokens - since.output_tokens >= written
            if (work is not None and work == last and has_all and not health.running) or time.monotonic() > until:
                return work
            last = work
            await asyncio.sleep(LOOK_SECONDS)

    def _is_others(self, usages: Sequence[Usage], before: Work, after: Work) -> bool:
        """Whether the engine computed more than the requests with those usages."""
        mine = (sum(one.prompt for one in usages), sum(one.completion for one in usages))
        done = (
            after.prompt_tokens + after.cached_tokens - before.prompt_tokens - before.cached_tokens,
            after.output_tokens - before.output_tokens,
        )
        return done[0] > mine[0] or done[1] > mine[1]
