"""The similarity of a request's text to the examples of routing rules, by an embedding model of the catalogue.

The examples' own vectors are read beside requests (`read`), for the first time before the gateway is ready (`unread`);
a request costs one embedding of its text, and nothing where its tenant sent that text lately. It waits for its turn
among its tenant's comparisons, and for examples that are being read, within the time that it has for all of it. The
operator pays: no tenant is charged, but a tenant's comparisons count for its share of the embedding engine. Whatever is
missing or late, the comparison abstains and says why.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
import time
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, cast
from uuid import UUID

import structlog

from base.ids import uuid7
from gateway.runtime.engines import Engines
from gateway.runtime.principals import LOWEST_BAND
from gateway.runtime.tenant_cache import TenantCache
from inference.errors import EngineError, InvalidRequestError, UnreachableError
from inference.types import Event, Finished, GenerationRequest, Kind, Vector
from routing.catalogue import Catalogue, DeploymentEntry, RuleEntry
from routing.types import Comparison, Similarity

Numbers = tuple[float, ...]


def nearest(
    vectors: Iterable[Numbers], known: Sequence[tuple[str, Sequence[tuple[str, Numbers | None]]]]
) -> Comparison:
    """Return for each of `vectors` the nearest example of each rule; an example without a vector is left out."""
    groups = []
    for vector in vectors:
        found = []
        for rule, examples in known:
            # Vectors have length one: by their distance, which is computed at once and not element by element.
            pairs = [(1 - math.dist(vector, other) ** 2 / 2, text) for text, other in examples if other is not None]
            if pairs:
                similarity, text = max(pairs)
                found.append(Similarity(rule, similarity, text))
        groups.append(tuple(sorted(found, key=lambda one: -one.similarity)))
    return Comparison(tuple(groups))


def unit(data: bytes) -> Numbers | None:
    """Return the vector with length one; None where it has no direction, since something in it is no number or all of
    it is zero: nothing is near to that.
    """
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    length = math.hypot(*numbers)
    return tuple(number / length for number in numbers) if 0 < length < math.inf else None


OWN_BACKENDS = ("worker", "fake")  # prompts go to a foreign server only where the operator names its model
MOST_REMEMBERED = 4096
MOST_OF_A_TENANT = 8  # comparisons at the same time
MOST_WAITING = 64  # of a tenant's, for one of those to end
LATE_SECONDS = 2.0  # a tenant whose comparison was late waits for no other so soon
CHUNK = 16  # examples that are read at once
READ_SECONDS = 30.0
UNREAD_SECONDS = 10.0  # until an engine that failed to read them is asked again
FIRST_SECONDS = 15.0  # that a new gateway waits for the first reading
ON_LOOP = 64  # pairs of vectors; more are compared in a thread

log = structlog.get_logger(__name__)


class _Source(NamedTuple):
    """The source of vectors; those of different sources can't be compared."""

    deployment: UUID
    source: str
    options: str  # as JSON

    @classmethod
    def of(cls, deployment: DeploymentEntry) -> _Source:
        """Return that of a deployment's vectors."""
        options = json.dumps(dict(deployment.options), sort_keys=True, default=str)
        return cls(deployment.id, deployment.source, options)


class Asker(NamedTuple):
    """For whom something is compared: a tenant, its queue at the engine, and its plan's band and weight there."""

    tenant: UUID
    queue: str
    band: int
    weight: int


_ITSELF = Asker(UUID(int=0), "routing", LOWEST_BAND, 1)  # for which the gateway reads the rules' examples


class _Turns:
    """A tenant's comparisons: so many run, `count` of them run or wait."""

    def __init__(self) -> None:
        self.running = asyncio.Semaphore(MOST_OF_A_TENANT)
        self.count = 0


class Examples:
    """Compares requests with the rules' examples. `model` is the public model that embeds, "" for the first embedding
    model of an own engine; `seconds` is how long a request waits for everything.
    """

    def __init__(self, engines: Engines, *, seconds: float, model: str = "") -> None:
        self._engines = engines
        self._seconds = seconds
        self._model = model
        self._vectors: dict[tuple[_Source, str], Numbers | None] = {}  # None: the model has none of that text
        self._remembered: TenantCache[tuple[_Source, bytes, bytes], Comparison] = TenantCache(MOST_REMEMBERED)
        self._turns: dict[UUID, _Turns] = {}
        self._late_until: dict[UUID, float] = {}  # by tenant: it may be late only for the one that floods it
        self._unread_until = 0.0
        self._has_read = asyncio.Condition()
        self._is_awaited = True  # whether a gateway that isn't ready yet waits for the first reading
        self._awaited_until = 0.0

    async def compare(
        self, catalogue: Catalogue, rules: Sequence[RuleEntry], texts: Sequence[str], asker: Asker
    ) -> Comparison:
        """Return how near `texts` come to the examples of each of `rules`, or why that can't be told now."""
        deployment = self._deployment(catalogue)
        if not texts or deployment is None:
            why = "no embedding model is ready" if texts else "the request has no text to compare"
            return Comparison(abstained=why)
        source = _Source.of(deployment)
        key = (source, _digest_of_rules(tuple((rule.name, rule.examples) for rule in rules)), _digest(texts))
        if (known := self._remembered.get(asker.tenant, key)) is not None:
            return known
        began = asyncio.get_running_loop().time()
        if obstacle := await self._obstacle(source, rules, asker.tenant, began + self._seconds):
            return Comparison(abstained=obstacle)
        compared = await self._in_turn(deployment, rules, texts, asker, began + self._seconds)
        if not compared.abstained:
            self._remembered.keep(asker.tenant, key, compared)
        return compared

    def unread(self, catalogue: Catalogue, *, is_serving: bool) -> str:
        """Return why a gateway that has just begun serving (`is_serving`) had better get no requests yet: its first
        reading of the examples isn't over. "" from then on, and after `FIRST_SECONDS` of serving, whatever comes.
        """
        if not self._is_awaited or not is_serving:
            return ""
        now = time.monotonic()
        self._awaited_until = self._awaited_until or now + FIRST_SECONDS
        has_examples = any(rule.examples for rule in catalogue.rules)
        if not has_examples or next(self._embedding(catalogue), None) is None or now >= self._awaited_until:
            self._is_awaited = False
            return ""
        return "the rules' examples are not read yet"

    async def read(self, catalogue: Catalogue) -> None:
        """Have the vectors of all examples of the catalogue, as far as the embedding model gives them now."""
        wanted = dict.fromkeys(example for rule in catalogue.rules for example in rule.examples)
        deployment = self._deployment(catalogue) if wanted else None
        now = asyncio.get_running_loop().time()
        if deployment is None or now < self._unread_until:
            return
        source = _Source.of(deployment)
        missing = [example for example in wanted if (source, example) not in self._vectors]
        try:
            for start in range(0, len(missing), CHUNK):
                texts = missing[start : start + CHUNK]
                vectors = await self._read(deployment, texts)
                self._vectors |= {(source, text): vector for text, vector in zip(texts, vectors, strict=True)}
                async with self._has_read:
                    self._has_read.notify_all()
        except (EngineError, TimeoutError) as error:
            self._unread_until = now + UNREAD_SECONDS
            log.warning("examples_not_read", error=str(error) or "no answer", deployment=deployment.name)
            return
        self._is_awaited = False
        if missing:
            log.info("examples_read", examples=len(missing), deployment=deployment.name)
        if len(self._vectors) > len(wanted):
            sources = {_Source.of(one) for one in catalogue.all_deployments()}
            kept = {key: vector for key, vector in self._vectors.items() if key[0] in sources and key[1] in wanted}
            self._vectors = kept

    async def _read(self, deployment: DeploymentEntry, texts: Sequence[str]) -> list[Numbers | None]:
        """Return the examples' vectors; one that the model refuses has none, and leaves the others theirs."""
        try:
            return await self._embedded(deployment, texts, _ITSELF, READ_SECONDS)
        except InvalidRequestError as error:
            if len(texts) > 1:
                return [vector for text in texts for vector in await self._read(deployment, (text,))]
            log.warning("example_refused", error=error.message, deployment=deployment.name, example=texts[0])
            return [None]

    async def _obstacle(self, source: _Source, rules: Sequence[RuleEntry], tenant: UUID, until: float) -> str:
        """Return why nothing can be compared now; "" when it can, perhaps after waiting for the examples."""
        unread = "the rules' examples are not read yet"

        def is_read() -> bool:
            return all((source, example) in self._vectors for rule in rules for example in rule.examples)

        now = asyncio.get_running_loop().time()
        is_late = now < self._late_until.get(tenant, 0.0)
        if not is_read():
            if now < self._unread_until:
                return f"{unread}: the embedding model failed to"
            if is_late:
                return unread
            try:
                async with asyncio.timeout_at(until), self._has_read:
                    await self._has_read.wait_for(is_read)
            except TimeoutError:
                self._note_late(tenant)
                return f"{unread}, after {self._seconds:g} s"
        return "the embedding model was late a moment ago" if is_late else ""

    async def _in_turn(
        self,
        deployment: DeploymentEntry,
        rules: Sequence[RuleEntry],
        texts: Sequence[str],
        asker: Asker,
        until: float,
    ) -> Comparison:
        """Compare `texts` once fewer than `MOST_OF_A_TENANT` comparisons of the tenant run."""
        turns = self._turns.setdefault(asker.tenant, _Turns())
        if turns.count >= MOST_OF_A_TENANT + MOST_WAITING:
            said = f"{MOST_OF_A_TENANT} of the tenant's requests are being compared and {MOST_WAITING} wait already"
            return Comparison(abstained=said)
        turns.count += 1
        has_waited = turns.running.locked()
        try:
            async with asyncio.timeout_at(until), turns.running:
                return await self._compared(deployment, rules, texts, asker, until)
        except TimeoutError:
            if has_waited:  # for the tenant's own requests: the model may be as fast as ever
                said = f"the tenant's other comparisons and this one took longer than {self._seconds:g} s"
                return Comparison(abstained=said)
            self._note_late(asker.tenant)
            return Comparison(abstained=f"the embedding model took longer than {self._seconds:g} s")
        finally:
            turns.count -= 1
            if not turns.count:
                del self._turns[asker.tenant]

    def _note_late(self, tenant: UUID) -> None:
        now = asyncio.get_running_loop().time()
        self._late_until = {one: until for one, until in self._late_until.items() if until > now}
        self._late_until[tenant] = now + LATE_SECONDS

    async def _compared(
        self,
        deployment: DeploymentEntry,
        rules: Sequence[RuleEntry],
        texts: Sequence[str],
        asker: Asker,
        until: float,
    ) -> Comparison:
        """Compare `texts`; raise TimeoutError where that lasts `until` a moment of the loop's."""
        seconds = max(0.0, until - asyncio.get_running_loop().time())
        try:
            given = await self._embedded(deployment, texts, asker, seconds)
        except EngineError as error:
            log.warning("examples_not_compared", error=error.message, deployment=deployment.name)
            return Comparison(abstained="the embedding model could not compare it")
        vectors = [vector for vector in given if vector is not None]
        if not vectors:
            return Comparison(abstained="the embedding model could not compare it")
        source = _Source.of(deployment)
        known = [(rule.name, [(text, self._vectors.get((source, text))) for text in rule.examples]) for rule in rules]
        if len(vectors) * sum(len(examples) for _, examples in known) > ON_LOOP:
            return await asyncio.to_thread(nearest, vectors, known)
        return nearest(vectors, known)

    async def _embedded(
        self, deployment: DeploymentEntry, texts: Sequence[str], asker: Asker, seconds: float
    ) -> list[Numbers | None]:
        """Return the vector of each text, of length one, None where it has no direction; raise TimeoutError after
        `seconds`, or an EngineError.
        """
        replica = min(
            (one.id for one in deployment.replicas if not self._engines.usable(one.id)),
            key=self._engines.load,
            default=None,
        )
        flight = None if replica is None else self._engines.enter(replica, sum(map(len, texts)) // 4, asker.tenant)
        if flight is None:
            raise UnreachableError("no replica of the embedding model is ready")
        request = GenerationRequest(
            id=uuid7().hex,
            tenant=asker.queue,
            domain=str(asker.tenant),
            kind=Kind.EMBEDDING,
            weight=asker.weight,
            inputs=tuple(texts),
            truncate=True,
            band=asker.band,
            queue_seconds=seconds,
        )
        found: dict[int, Numbers | None] = {}
        fault = None
        try:
            async with asyncio.timeout(seconds):
                prepared = await flight.engine.prepare(request)
                stream = flight.engine.generate(prepared, 0, True)
                async with aclosing(cast("AsyncGenerator[Event, None]", stream)) as events:
                    async for event in events:
                        if isinstance(event, Vector):
                            found[event.index] = unit(event.data)
                        elif isinstance(event, Finished):
                            flight.ended(event)
                            fault = event.error
        except EngineError as error:
            flight.ended(error)
            raise
        finally:
            flight.close()
        if fault is not None:
            raise EngineError(fault.message)
        if len(found) != len(texts):
            raise EngineError("the embedding model gave fewer vectors than texts")
        return [found[index] for index in range(len(texts))]

    def _deployment(self, catalogue: Catalogue) -> DeploymentEntry | None:
        """Return the deployment that embeds, of those that take work now."""
        return next(
            (
                deployment
                for deployment in self._embedding(catalogue)
                if any(not self._engines.usable(replica.id) for replica in deployment.replicas)
            ),
            None,
        )

    def _embedding(self, catalogue: Catalogue) -> Iterator[DeploymentEntry]:
        """Yield the deployments that may embed, whether they take work or not, the first choice first."""
        for name in [self._model] if self._model else sorted(self._shared(catalogue)):
            model = catalogue.models.get(name)
            if model is None or Kind.EMBEDDING not in model.kinds:
                continue
            for deployment in catalogue.deployments.get(name, ()):
                if not deployment.adapter and (self._model or deployment.backend in OWN_BACKENDS):
                    yield deployment

    def _shared(self, catalogue: Catalogue) -> list[str]:
        """Return the models that are no tenant's own."""
        return [name for name, model in catalogue.models.items() if model.tenant is None]


@lru_cache(maxsize=16)
def _digest_of_rules(examples: tuple[tuple[str, tuple[str, ...]], ...]) -> bytes:
    """Return what stands for them in keys, of which many would else hold on to the texts of rules that are gone."""
    return blake2b(json.dumps(examples).encode(), digest_size=16).digest()


def _digest(texts: Sequence[str]) -> bytes:
    return blake2b("\0".join(texts).encode(errors="surrogatepass"), digest_size=16).digest()
