"""Tenants to try things on."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import cached_property, partial
from types import SimpleNamespace

import pytest
import uvicorn.server
from django.core.cache import cache
from django.test import Client
from django.utils import timezone

from billing.services import cards, plans
from gateway.batches import intake
from gateway.durable.room import ROOM
from gateway.runtime import epoch
from tenancy.models import APIKey, Membership, Project, Tenant, User
from tenancy.services import admin_keys, keys, members, tenants
from tests.rows import again

PASSWORD = "kvb3!xq9-plum"


@dataclass(frozen=True)
class Party:
    """A tenant with its owner, and a key for everything."""

    tenant: Tenant
    project: Project
    owner: User
    membership: Membership
    key: APIKey
    secret: str

    @property
    def bearer(self) -> dict[str, str]:
        return {"authorization": f"Bearer {self.secret}"}

    @cached_property
    def admin_bearer(self) -> dict[str, str]:
        """An admin key, which makes other keys."""
        _, secret = admin_keys.create_admin_key(tenant=self.tenant, name="administers", created_by=self.owner)
        return {"authorization": f"Bearer {secret}"}

    def client(self) -> Client:
        """A browser in which the owner is signed in."""
        client = Client()
        client.force_login(self.owner, backend="django.contrib.auth.backends.ModelBackend")
        return client


@pytest.fixture(autouse=True, scope="session")
def _patience():
    """Let no gateway take a busy machine for a database that is away; the tests of that have bounds of their own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(epoch, "STALE_AFTER", 100.0)
        patch.setattr(epoch, "SILENT_AFTER", 100.0)
        yield


@pytest.fixture(autouse=True, scope="session")
def _looks_often():
    """Let uvicorn look every 5 ms, not every 100, whether it is to end and whether it has."""
    often = SimpleNamespace(**{**vars(asyncio), "sleep": lambda seconds: asyncio.sleep(seconds / 20)})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(uvicorn.server, "asyncio", often)
        yield


@pytest.fixture(autouse=True)
def _nothing_counted():
    """Let no test be limited by the calls of those before it: tenants have the same ids in many."""
    cache.clear()
    ROOM._counts.clear()
    intake._turns.clear()


@pytest.fixture
def terms(db) -> str:
    """The plans and rate cards that Sluice ships; the day that they were made on."""
    today = timezone.now().date().isoformat()  # whoever subscribes has paid for the month of that day
    again(("terms", today), _make_terms)
    return today


def _make_terms() -> None:
    cards.ensure_default_cards()
    plans.ensure_default_plans()


def make_party(slug: str) -> Party:
    made = tenants.create_tenant(name=slug.title(), slug=slug, owner_email=f"owner@{slug}.example", plan="free")
    membership = members.accept_invitation(
        token=made.invitation_address.rstrip("/").rpartition("/")[2], password=PASSWORD
    )
    key, secret = keys.create_key(
        tenant=made.tenant,
        project=made.project,
        name="all",
        scopes=["inference", "management"],
        created_by=membership.user,
    )
    return Party(made.tenant, made.project, membership.user, membership, key, secret)


@pytest.fixture
def acme(terms) -> Party:
    return again(("acme", terms), partial(make_party, "acme"))


@pytest.fixture
def other(terms) -> Party:
    return again(("other", terms), partial(make_party, "other"))
