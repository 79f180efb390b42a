"""People in every role of one tenant."""

from __future__ import annotations

import pytest
from django.test import Client

from base.ids import day_of, uuid7
from billing.models import UsageRecord, UsageRollup, Wallet
from billing.services.rollups import hour_of
from tenancy.models import Membership, User


@pytest.fixture
def people(acme):
    """Return a browser in which somebody with the named role in acme is signed in."""

    def client_of(role, *more_tenants):
        if role == "owner":
            return acme.client()
        user = User.objects.create_user(f"{role}@acme.example")
        for tenant in (acme.tenant, *more_tenants):
            Membership(tenant=tenant, user=user, role=role).save(force_insert=True)
        client = Client()
        client.force_login(user, backend="django.contrib.auth.backends.ModelBackend")
        return client

    return client_of


@pytest.fixture
def used():
    """Return a function that leaves a settled request of a party, with its rollup."""

    def use(party, *, model="smollm2-135m-instruct", charge=1_500, key=True, **fields):
        request = fields.pop("request", None) or uuid7()
        api_key = party.key.id if key else None
        fields.setdefault("card_version", uuid7())
        values = {"input_tokens": 10, "cache_read_tokens": 30, "output_tokens": 5}
        UsageRecord.objects.create(
            id=request,
            request=request,
            day=day_of(request),
            tenant=party.tenant.id,
            project=party.project.id,
            api_key=api_key,
            user=None if key else party.owner.id,
            wallet=Wallet.objects.get(tenant=party.tenant).id,
            model=model,
            deployment=uuid7(),
            charge=charge,
            held=charge,
            reserved_at=party.tenant.created_at,
            **values,
            **fields,
        )
        row, _ = UsageRollup.objects.get_or_create(
            hour=hour_of(request), tenant=party.tenant.id, project=party.project.id, api_key=api_key, model=model
        )
        row.requests += 1
        row.charge += charge
        for name, value in values.items():
            setattr(row, name, getattr(row, name) + value)
        row.save()
        return request

    return use
