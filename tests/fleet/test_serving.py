"""A deployment or node is taken out of service only by who was told what stands on it."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from base.errors import ServiceError
from fleet import serving
from fleet.serving import alone_on, is_needed, needs_of, set_in_service, set_node_in_service
from routing.models import Deployment, Node, Replica, RouteRule, RouteTarget
from routing.services.catalogue import add_model, set_alias
from tests.tenancy.race import apart, is_waiting

pytestmark = pytest.mark.django_db


def add(name, backend="fake", **more):
    return add_model(name=name, kinds=["chat"], context_length=9, rate_card="x", source="/m", backend=backend, **more)


def rule(name, *rows):
    made = RouteRule.objects.create(name=name)
    for row in rows:
        RouteTarget.objects.create(rule=made, model=row.model)


def test_what_nothing_needs_goes_silently_and_a_spare_one_too(terms):
    row = add("river")
    assert needs_of(row) == ["It is the only active deployment of river."]
    assert not is_needed(row)
    rule("chat", row)
    assert is_needed(row)
    spare = Deployment.objects.create(name="spare", model=row.model, backend="fake")
    assert needs_of(row) == []
    set_in_service(row, False)
    assert not Deployment.objects.get(pk=row.pk).is_active
    assert is_needed(spare), "now it is the only one"
    assert needs_of(Deployment.objects.get(pk=row.pk)) == [], "one that is out of service takes nothing with it"


def test_rules_with_others_do_without_it_and_names_lead_nowhere(terms):
    row, other = add("river"), add("lake")
    rule("both", row, other)
    assert "Rules of auto that have other models, and go on with those: both." in needs_of(row)
    assert not is_needed(row)
    set_alias("gpt-4o", "river")
    with pytest.raises(ServiceError, match="Other names that lead to it: gpt-4o") as refused:
        set_in_service(row, False)
    assert refused.value.field == "is_active"
    assert Deployment.objects.get(pk=row.pk).is_active
    set_in_service(row, False, accepts=True)
    assert not Deployment.objects.get(pk=row.pk).is_active


def test_a_node_is_kept_for_what_runs_there_alone(terms):
    row = add("river", "worker")
    local = Node.objects.get(name="local")
    far = Node.objects.create(name="far", address="tcp://10.0.0.5:7411", public_key="0" * 40)
    assert [one.name for one in alone_on(local)] == [row.name]
    with pytest.raises(ServiceError, match="run on local alone: river"):
        set_node_in_service(local, False)
    Replica.objects.create(deployment=row, node=far)
    assert alone_on(local) == []
    set_node_in_service(local, False)
    assert [one.name for one in alone_on(far)] == [row.name], "a node out of service counts for nothing"
    set_node_in_service(local, True)
    assert Node.objects.get(name="local").is_active


@pytest.mark.postgresql
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("of", ["deployments", "nodes"])
def test_of_two_operators_who_take_the_last_two_out_at_once_one_is_told(terms, monkeypatch, of):
    """Each looks at what the other leaves: without a lock in common both would pass."""
    row = add("river", "worker" if of == "nodes" else "fake")
    rule("chat", row)
    if of == "deployments":
        check, take = "is_needed", set_in_service
        pair = [row, Deployment.objects.create(name="spare", model=row.model, backend="fake")]
    else:
        check, take = "alone_on", set_node_in_service
        Replica.objects.filter(deployment=row).delete()
        pair = [
            Node.objects.create(name=name, address=f"tcp://10.0.0.5:{port}", public_key="0" * 40)
            for name, port in (("b", 1), ("a", 2))
        ]
        for node in pair:
            Replica.objects.create(deployment=row, node=node)
    refused: list[str] = []

    def out(one):
        try:
            take(one, False)
        except ServiceError as error:
            refused.append(error.field)

    other = threading.Thread(target=lambda: apart(partial(out, pair[1])))
    real = getattr(serving, check)

    def slow(one):
        """Let the other come as far as it can once this one has looked: to its end, or to a lock."""
        found = real(one)
        monkeypatch.setattr(serving, check, real)
        other.start()
        while other.is_alive() and not apart(is_waiting):  # bounded by the test's timeout
            pass
        return found

    monkeypatch.setattr(serving, check, slow)
    out(pair[0])
    other.join(120)
    assert refused == ["is_active"]
    assert [type(one).objects.get(pk=one.pk).is_active for one in pair] == [False, True]
