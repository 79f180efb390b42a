"""The whole application over a runtime in memory: real generations on fake engines, paid from a wallet in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import TypeVar
from uuid import UUID

from django.db import connections

from billing.rating import CardPrices
from billing.writer.entry import WriterError
from billing.writer.operations import Release, Reserve, Settle
from gateway.errors.refusal import Refusal
from gateway.runtime.principals import Principal
from inference.types import FinishReason
from routing.catalogue import ModelEntry
from tests.gateway.doubles import make_stand

T = TypeVar("T")

KEY = "sk-sluice-good"
MODELS = (
    ModelEntry("small", frozenset({"chat"}), 2048, "small", "A small model.", 1_700_000_000),
    ModelEntry("org/big", frozenset({"chat"}), 8192, "small", "A big model.", 1_700_000_001),
    ModelEntry("embedder", frozenset({"embedding"}), 256, "small", "Vectors.", 1_700_000_002),
    ModelEntry("ranker", frozenset({"score"}), 256, "small", "Scores.", 1_700_000_003),
    ModelEntry("sorter", frozenset({"classification"}), 256, "small", "Labels.", 1_700_000_004),
)
PRICES = CardPrices.build(UUID(int=8), 7, [(0, "input", 1_000_000), (0, "output", 2_000_000)])
ANSWER = "Hello there"  # two tokens of a fake engine, to the five of the prompt "Hi", of which two come from its cache
CREDIT = 1_000_000
PROMPT_COST = 7 + 5  # µcr: the fee of a request, and "Hi"
COST = PROMPT_COST + 2 * 2


@dataclass
class MemoryPrincipals:
    """Knows keys and memberships; counts how often it is asked."""

    keys: dict[str, Principal | Refusal]
    members: dict[tuple[UUID, UUID], Principal] = field(default_factory=dict)
    asked: int = 0

    async def by_key(self, secret: str, network: str = "") -> Principal:
        self.asked += 1
        found = self.keys.get(secret, Refusal(401, "invalid_api_key", "This API key is not valid."))
        if isinstance(found, Refusal):
            raise found
        return found

    async def confirm(self, principal: Principal) -> None:
        """Nothing changes here while a request waits."""

    async def by_session(self, user: UUID, project: UUID) -> Principal:
        self.asked += 1
        found = self.members.get((user, project))
        if found is None:
            raise Refusal(403, "not_a_member", "You have no access to this project.")
        return found


class World:
    """The gateway under test, what it has begun, and what stands in its way."""

    def __init__(self, stand) -> None:
        self.stand = stand
        self.runtime = stand.runtime
        self.engine = stand.engine
        self.generation = stand.generation
        self.begun = asyncio.Event()  # a hold is asked for
        self.starting: asyncio.Event | None = None  # waited for before a hold is there
        self.settling: asyncio.Event | None = None  # waited for before a charge is booked
        self.error: Exception | None = None  # raised instead of holding
        self.is_ledger_away = False  # from the first settle on
        stand.writer.before = self._before

    @property
    def generations(self):
        """Every generation that has begun."""
        return self.runtime.requests.generations

    @property
    def intent(self):
        """What the last one was to do."""
        return self.generations[-1].intent

    def set_options(self, **options) -> None:
        """Change how the model `small` answers."""
        self.engine.options = replace(self.engine.options, **options)

    def let_see(self, model: str, images: str) -> None:
        """Change which images the deployment of `model` takes."""
        [deployment] = self.runtime.catalogue.snapshot.catalogue.deployments[model]
        deployment.options["images"] = images
        engine = self.stand.engine_of(model)
        engine.options = replace(engine.options, images=images)

    def set_credit(self, amount: int) -> None:
        """Leave `amount` µcr in the wallet."""
        self.stand.writer.wallet.posted = amount

    def set_principal(self, key: str = KEY, **terms) -> None:
        """Change who `key` belongs to."""
        self.runtime.principals.keys[key] = self.principal(**terms)

    def principal(self, **terms) -> Principal:
        """The tenant's principal, with other `terms`."""
        return replace(self.stand.principal, **terms)

    async def reason_of(self, generation) -> FinishReason:
        """How its engine says that it ended."""
        await self.settled()
        engine = self.runtime.engines.get(generation.route.replica)
        return engine.record.entries[generation.id.hex].reason

    async def settled(self) -> None:
        """Return when all work has ended; raise what it raised. Nothing is held then but what the ledger's absence
        left so.
        """
        for ended in await asyncio.gather(*self.runtime.requests.supervised, return_exceptions=True):
            if isinstance(ended, Exception):
                raise ended
        assert self.is_ledger_away or not self.stand.writer.wallet.held
        assert not self.stand.places()

    async def _before(self, operation) -> None:
        if isinstance(operation, Reserve):
            self.begun.set()
            if self.starting is not None:
                await self.starting.wait()
            if self.error is not None:
                raise self.error
        elif isinstance(operation, Settle | Release):
            if self.is_ledger_away:
                raise WriterError("the database is away")
            if self.settling is not None:
                await self.settling.wait()

    def application(self):
        from gateway.asgi import application

        async def with_state(scope, receive, send):
            state = {"runtime": self.runtime, "metrics": self.runtime.metrics}
            await application({**scope, "state": state}, receive, send)

        return with_state


async def on_a_thread(function: Callable[[], T], *, owner: UUID | None = None) -> T:
    """Return `function()`, whose thread keeps no connection, as with `DatabaseThreads`."""

    def closing() -> T:
        try:
            return function()
        finally:
            connections.close_all()

    return await asyncio.to_thread(closing)


async def make_world() -> World:
    """A gateway of one tenant and four models, without database and worker."""
    ids = {name: UUID(int=number) for number, name in enumerate(("tenant", "project", "wallet", "api_key"), 1)}
    principals = MemoryPrincipals({})
    stand = await make_stand(
        credit=CREDIT,
        terms={**ids, "concurrency": 64},
        card=PRICES,
        models=MODELS,
        principals=principals,
        threads=SimpleNamespace(run=on_a_thread),
        text=ANSWER,
        cached=0.4,
        vector_width=2,
    )
    principals.keys[KEY] = stand.principal
    return World(stand)
