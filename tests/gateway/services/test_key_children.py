"""What is taken from a key is taken from the keys that it made, and from those that these made, in the same moment."""

from __future__ import annotations

from datetime import timedelta

import pytest
from django.utils import timezone

from billing.services.budgets import SpendLimits, limits_of
from gateway.models import APIKey, AuditEvent, TenantEpoch
from gateway.runtime.principals import load_by_key
from gateway.services import keys
from gateway.services.networks import parsed_networks, shared_networks
from gateway.services.restrictions import Restrictions
from gateway.services.scopes import INFERENCE, narrowed
from routing.models import PublicModel

pytestmark = [pytest.mark.money, pytest.mark.django_db(transaction=True)]
SCOPES = ["inference", "management"]


@pytest.fixture
def family(acme):
    """A key, one that it made, and one that this made, of which each may do all."""
    made, parent = [], None
    for name in ("parent", "child", "grandchild"):
        parent, secret = keys.create_key(
            tenant=acme.tenant, project=acme.project, name=name, scopes=SCOPES, parent=parent
        )
        made.append((parent, secret))
    return made


def change(acme, key, **terms):
    now = {"name": key.name, "scopes": key.scopes, "expires_at": key.expires_at, "restrictions": Restrictions.of(key)}
    return keys.change_key(tenant=acme.tenant, key=key, **{**now, **terms})


def read(key):
    return APIKey.objects.unscoped().select_related("budget").get(id=key.id)


def test_a_narrower_key_narrows_all_below_it_for_every_process_and_on_the_trail(acme, family):
    (parent, _), *below = family
    end = timezone.now() + timedelta(hours=1)
    bound = Restrictions(networks=("192.0.2.0/24",))
    epoch = TenantEpoch.objects.get(tenant=acme.tenant.id).sequence
    change(acme, parent, scopes=["chat", "management"], expires_at=end, restrictions=bound)
    assert TenantEpoch.objects.get(tenant=acme.tenant.id).sequence > epoch
    for key, secret in below:
        now = read(key)
        assert (now.scopes, now.expires_at, Restrictions.of(now)) == (["chat", "management"], end, bound)
        principal = load_by_key(secret)
        assert (principal.scopes, principal.expires_at) == ({"chat", "management"}, end)
        assert principal.networks == parsed_networks(bound.networks)
        [event] = AuditEvent.objects.of(acme.tenant).filter(action="key.changed", target_id=str(key.id))
        assert event.before["scopes"] == SCOPES
        assert event.after["networks"] == ["192.0.2.0/24"]


def test_models_are_taken_from_all_below(acme, family):
    (parent, _), (child, _), (grandchild, _) = family
    for name in ("one", "two", "three"):
        PublicModel.objects.create(name=name, context_length=100)
    change(acme, child, restrictions=Restrictions(allowed_models=("two", "three")))
    change(acme, parent, restrictions=Restrictions(allowed_models=("one", "two")))
    assert [read(key).allowed_models for key in (parent, child, grandchild)] == [["one", "two"], ["two"], ["two"]]


def test_what_is_narrower_already_stays_as_it_is(acme, family):
    (parent, _), (child, _), (grandchild, _) = family
    end = timezone.now() + timedelta(hours=1)
    change(acme, child, scopes=["chat", "management"], expires_at=end)
    change(acme, parent, name="renamed", expires_at=end + timedelta(hours=1))
    for key in (child, grandchild):
        assert (read(key).scopes, read(key).expires_at) == (["chat", "management"], end)
        assert AuditEvent.objects.of(acme.tenant).filter(action="key.changed", target_id=str(key.id)).count() == 1


def test_what_a_key_is_given_again_its_children_are_not(acme, family):
    (parent, _), (child, _), _ = family
    change(acme, change(acme, parent, scopes=["management"]), scopes=SCOPES)
    assert read(child).scopes == ["management"]


@pytest.mark.parametrize(
    ("taken", "own"),
    [
        ({"scopes": ["embeddings"]}, {"scopes": ["chat"]}),
        (
            {"restrictions": Restrictions(networks=("192.0.2.0/24",))},
            {"restrictions": Restrictions(networks=("198.51.100.0/24",))},
        ),
        (
            {"restrictions": Restrictions(allowed_models=("one",))},
            {"restrictions": Restrictions(allowed_models=("two",))},
        ),
    ],
)
def test_a_key_with_nothing_left_is_revoked_and_all_below_it(acme, family, taken, own):
    (parent, _), (child, _), (grandchild, secret) = family
    for name in ("one", "two"):
        PublicModel.objects.create(name=name, context_length=100)
    change(acme, child, **own)
    change(acme, parent, **taken)
    assert read(parent).revoked_at is None
    for key in (child, grandchild):
        assert read(key).revoked_at is not None
        assert AuditEvent.objects.of(acme.tenant).filter(action="key.revoked", target_id=str(key.id)).count() == 1
    assert load_by_key(secret).code == "api_key_revoked"


def test_limits_are_given_to_each_below_it(acme, family):
    (parent, _), (child, _), (grandchild, _) = family
    change(acme, child, restrictions=Restrictions(request_limit=5))
    change(acme, parent, restrictions=Restrictions(request_limit=10, spend=SpendLimits(day_limit=0)))
    for key in (child, grandchild):
        now = read(key)
        assert (now.request_limit, limits_of(now.budget)) == (5, SpendLimits(day_limit=0))


def test_a_key_that_was_given_limits_meanwhile_makes_none(acme):
    parent, _ = keys.create_key(tenant=acme.tenant, project=acme.project, name="parent", scopes=SCOPES)
    change(acme, read(parent), restrictions=Restrictions(request_limit=10))
    with pytest.raises(keys.ServiceError, match="request_limit"):
        keys.create_key(tenant=acme.tenant, project=acme.project, name="child", scopes=["chat"], parent=parent)


@pytest.mark.parametrize(
    ("scopes", "by", "left"),
    [
        (["inference"], ["inference", "management"], ["inference"]),
        (["inference"], ["chat", "inference.read"], ["chat", "inference.read"]),
        (["inference"], list(INFERENCE), sorted(INFERENCE)),
        (["inference.read", "management"], ["files.read"], ["files.read"]),
        (["chat", "management"], ["inference"], ["chat"]),
        (["chat"], ["management"], []),
    ],
)
def test_of_a_scope_that_stands_for_several_those_are_left_that_both_have(scopes, by, left):
    assert narrowed(scopes, by) == left


@pytest.mark.parametrize(
    ("some", "others", "shared"),
    [
        (["192.0.2.0/24"], ["192.0.2.128/25", "2001:db8::/32"], ["192.0.2.128/25"]),
        (["192.0.2.7/32", "2001:db8::1/128"], ["192.0.2.0/24", "2001:db8::/32"], ["192.0.2.7/32", "2001:db8::1/128"]),
        (["192.0.2.0/24"], ["198.51.100.0/24", "::/0"], []),
    ],
)
def test_networks_are_narrowed_to_what_lies_in_both(some, others, shared):
    assert [str(one) for one in shared_networks(parsed_networks(some), parsed_networks(others))] == shared
