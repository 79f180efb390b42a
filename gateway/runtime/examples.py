"""How near the text of a request comes to the examples of routing rules, by an embedding model of the catalogue.

The examples' own vectors are read beside requests (`read`); a request costs one embedding of its text, and nothing
where its tenant sent that text lately. The operator pays: no tenant is charged, but a tenant's comparisons count for
its share of the embedding engine. Whatever is missing or late, the comparison abstains and says why.
"""

from __future__ import annotations

import asyncio
import json
import math
import struct
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import aclosing
from functools import lru_cache
from hashlib import blake2b
from typing import NamedTuple, cast
from uuid import UUID

import structlog

from billing.ids import uuid7
from gateway.runtime.engines import Engines
from gateway.runtime.principal import LOWEST_BAND
from gateway.runtime.tenant_cache import TenantCache
from inference.errors import EngineError, InvalidRequestError, UnreachableError
from inference.types import Event, Finished, GenerationRequest, Kind, Vector
from routing.catalogue import Catalogue, DeploymentEntry, RuleEntry
from routing.types import Comparison, Similarity

OWN_BACKENDS = ("worker", "fake")  # prompts go to a foreign server only where the operator names its model
MOST_REMEMBERED = 4096
MOST_OF_A_TENANT = 8  # comparisons at the same time
LATE_SECONDS = 2.0  # a tenant whose comparison was late waits for no other so soon
CHUNK = 16  # examples that are read at once
READ_SECONDS = 30.0
UNREAD_SECONDS = 10.0  # until an engine that failed to read them is asked again
QUEUE = "routing"  # whose share of the engine reading examples counts for
ON_LOOP = 64  # pairs of vectors; more are compared in a thread

Numbers = tuple[float, ...]

log = structlog.get_logger(__name__)


class _Source(NamedTuple):
    """What vectors are of: those of different sources can't be compared."""

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


class Examples:
    """See the module. `model` is the public model that embeds, "" for the first embedding model of an own engine;
    `seconds` is how long a request waits.
    """

    def __init__(self, engines: Engines, *, seconds: float, model: str = "") -> None:
        self._engines = engines
        self._seconds = seconds
        self._model = model
        self._vectors: dict[tuple[_Source, str], Numbers | None] = {}  # None: the model has none of that text
        self._remembered: TenantCache[tuple[_Source, bytes, bytes], Comparison] = TenantCache(MOST_REMEMBERED)
        self._of_tenants: dict[UUID, int] = {}
        self._late_until: dict[UUID, float] = {}  # by tenant: it may be late only for the one that floods it
        self._unread_until = 0.0

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
        if obstacle := self._obstacle(source, rules, asker.tenant):
            return Comparison(abstained=obstacle)
        compared = await self._compared(deployment, source, rules, texts, asker)
        if not compared.abstained:
            self._remembered.keep(asker.tenant, key, compared)
        return compared

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
        except (EngineError, TimeoutError) as error:
            self._unread_until = now + UNREAD_SECONDS
            log.warning("examples_not_read", error=str(error) or "no answer", deployment=deployment.name)
            return
        if missing:
            log.info("examples_read", examples=len(missing), deployment=deployment.name)
        if len(self._vectors) > len(wanted):
            sources = {_Source.of(one) for one in catalogue.all_deployments()}
            kept = {key: vector for key, vector in self._vectors.items() if key[0] in sources and key[1] in wanted}
            self._vectors = kept

    async def _read(self, deployment: DeploymentEntry, texts: Sequence[str]) -> list[Numbers | None]:
        """Return the examples' vectors; one that the model refuses has none, and leaves the others theirs."""
        try:
            return await self._embedded(deployment, texts, queue=QUEUE, band=LOWEST_BAND, seconds=READ_SECONDS)
        except InvalidRequestError as error:
            if len(texts) > 1:
                return [vector for text in texts for vector in await self._read(deployment, (text,))]
            log.warning("example_refused", error=error.message, deployment=deployment.name, example=texts[0])
            return [None]

    def _obstacle(self, source: _Source, rules: Sequence[RuleEntry], tenant: UUID) -> str:
        """Return why nothing can be compared now; "" when it can."""
        if any((source, example) not in self._vectors for rule in rules for example in rule.examples):
            return "the rules' examples are not read yet"
        if asyncio.get_running_loop().time() < self._late_until.get(tenant, 0.0):
            return "the embedding model was late a moment ago"
        if self._of_tenants.get(tenant, 0) >= MOST_OF_A_TENANT:
            return f"{MOST_OF_A_TENANT} of the tenant's requests are being compared already"
        return ""

    async def _compared(
        self,
        deployment: DeploymentEntry,
        source: _Source,
        rules: Sequence[RuleEntry],
        texts: Sequence[str],
        asker: Asker,
    ) -> Comparison:
        tenant = asker.tenant
        self._of_tenants[tenant] = self._of_tenants.get(tenant, 0) + 1
        try:
            given = await self._embedded(
                deployment,
                texts,
                queue=asker.queue,
                band=asker.band,
                weight=asker.weight,
                seconds=self._seconds,
            )
        except TimeoutError:
            now = asyncio.get_running_loop().time()
            self._late_until = {one: until for one, until in self._late_until.items() if until > now}
            self._late_until[tenant] = now + LATE_SECONDS
            return Comparison(abstained=f"the embedding model took longer than {self._seconds:g} s")
        except EngineError as error:
            log.warning("examples_not_compared", error=error.message, deployment=deployment.name)
            return Comparison(abstained="the embedding model could not compare it")
        finally:
            self._of_tenants[tenant] -= 1
            if not self._of_tenants[tenant]:
                del self._of_tenants[tenant]
        vectors = [vector for vector in given if vector is not None]
        if not vectors:
            return Comparison(abstained="the embedding model could not compare it")
        known = [(rule.name, [(text, self._vectors.get((source, text))) for text in rule.examples]) for rule in rules]
        if len(vectors) * sum(len(examples) for _, examples in known) > ON_LOOP:
            return await asyncio.to_thread(_nearest, vectors, known)
        return _nearest(vectors, known)

    async def _embedded(
        self,
        deployment: DeploymentEntry,
        texts: Sequence[str],
        *,
        queue: str,
        band: int,
        seconds: float,
        weight: int = 1,
    ) -> list[Numbers | None]:
        """Return the vector of each text, of length one, None where it has no direction; raise TimeoutError after
        `seconds`, or an EngineError.
        """
        replica = min(
            (one.id for one in deployment.replicas if not self._engines.usable(one.id)),
            key=self._engines.load,
            default=None,
        )
        flight = None if replica is None else self._engines.enter(replica, sum(map(len, texts)) // 4)
        if flight is None:
            raise UnreachableError("no replica of the embedding model is ready")
        request = GenerationRequest(
            id=uuid7().hex,
            tenant=queue,
            domain=queue,
            kind=Kind.EMBEDDING,
            weight=weight,
            inputs=tuple(texts),
            truncate=True,
            band=band,
            queue_seconds=seconds,
        )
        found: dict[int, Numbers | None] = {}
        try:
            async with asyncio.timeout(seconds):
                prepared = await flight.engine.prepare(request)
                stream = flight.engine.generate(prepared, 0, True)
                async with aclosing(cast("AsyncGenerator[Event, None]", stream)) as events:
                    async for event in events:
                        if isinstance(event, Vector):
                            found[event.index] = _unit(event.data)
                        elif isinstance(event, Finished) and event.error is not None:
                            raise EngineError(event.error.message)
        except UnreachableError:
            flight.failed()
            raise
        finally:
            flight.close()
        if len(found) != len(texts):
            raise EngineError("the embedding model gave fewer vectors than texts")
        flight.succeeded()
        return [found[index] for index in range(len(texts))]

    def _deployment(self, catalogue: Catalogue) -> DeploymentEntry | None:
        """Return the deployment that embeds, of those that take work now."""
        names = [self._model] if self._model else sorted(self._shared(catalogue))
        for name in names:
            model = catalogue.models.get(name)
            if model is None or Kind.EMBEDDING not in model.kinds:
                continue
            for deployment in catalogue.deployments.get(name, ()):
                if deployment.adapter or (not self._model and deployment.backend not in OWN_BACKENDS):
                    continue
                if any(not self._engines.usable(replica.id) for replica in deployment.replicas):
                    return deployment
        return None

    def _shared(self, catalogue: Catalogue) -> list[str]:
        """Return the models that are no tenant's own."""
        return [name for name, model in catalogue.models.items() if model.tenant is None]


def _nearest(
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


def _unit(data: bytes) -> Numbers | None:
    """Return the vector with length one; None where it has no direction, since something in it is no number or all of
    it is zero: nothing is near to that.
    """
    numbers = struct.unpack(f"<{len(data) // 4}f", data)
    length = math.hypot(*numbers)
    return tuple(number / length for number in numbers) if 0 < length < math.inf else None


@lru_cache(maxsize=16)
def _digest_of_rules(examples: tuple[tuple[str, tuple[str, ...]], ...]) -> bytes:
    """Return what stands for them in keys, of which many would else hold on to the texts of rules that are gone."""
    return blake2b(json.dumps(examples).encode(), digest_size=16).digest()


def _digest(texts: Sequence[str]) -> bytes:
    return blake2b("\0".join(texts).encode(errors="surrogatepass"), digest_size=16).digest()
