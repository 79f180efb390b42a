"""Replicas of deployments that are there already: added, weighted, removed; workers on this machine are told."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command

from base.errors import ServiceError
from fleet.nodes import add_node
from fleet.replicas import add_replica, remove_replica
from fleet.worker_specs import spec_file
from routing import catalogue
from routing.models import Replica
from routing.services.catalogue import add_model
from tenancy.models import AuditEvent

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def home(settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    settings.SLUICE_GATEWAY_KEY = ""
    return tmp_path


@pytest.fixture
def model():
    add_node("far", "tcp://10.0.0.7:7411")
    return add_model(name="m", kinds=["chat"], context_length=64, rate_card="c", source="/m")


def told(*arguments):
    out = StringIO()
    call_command("replicas", *arguments, stdout=out)
    return out.getvalue()


def places():
    [entry] = catalogue.load().deployments["m"]
    return {replica.place: replica.weight for replica in entry.replicas}


def test_a_deployment_gets_one_more_node_and_loses_it_again(model):
    assert "served on far" in told("add", "m", "far", "--weight", "3")
    assert places() == {"local": 1, "far": 3}
    told("add", "m", "far")
    assert places() == {"local": 1, "far": 1}, "one that is there gets the weight"
    assert Replica.objects.count() == 2
    assert told("list") == "m  far (weight 1), local (weight 1)\n"
    assert "taken off local" in told("remove", "m", "local")
    assert places() == {"far": 1}
    assert "no replica left" in told("remove", "m", "far")
    assert places() == {}
    assert told("list") == "m  nowhere\n"


def test_the_worker_of_this_machine_is_told(model, home):
    def served():
        return [engine["deployment"] for engine in json.loads(spec_file("local").read_text())["engines"]]

    told("remove", "m", "local")
    assert served() == []
    told("add", "m", "local")
    assert served() == [str(model.id)]


def test_who_added_and_removed_it_is_in_the_trail(model):
    told("add", "m", "far")
    told("remove", "m", "far")
    trail = (
        AuditEvent.objects.unscoped()
        .filter(action__startswith="replica.")
        .order_by("id")
        .values_list("action", flat=True)
    )
    assert [*trail][-2:] == ["replica.created", "replica.deleted"]


@pytest.mark.parametrize(
    ("arguments", "wrong"),
    [
        (("add", "other", "far"), "deployment: there is no deployment 'other'"),
        (("add", "m", "nowhere"), "node: there is no node 'nowhere'"),
        (("add", "m", "far", "--weight", "0"), "weight: "),
        (("add", "elsewhere", "far"), "deployment: elsewhere isn't served by workers"),
        (("remove", "m", "far"), "node: m has no replica on 'far', but on local"),
        (("remove", "elsewhere", "far"), "deployment: elsewhere isn't served by workers"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_changes_nothing(model, arguments, wrong):
    add_model(name="elsewhere", kinds=["chat"], context_length=64, rate_card="c", source="http://x", backend="openai")
    with pytest.raises(CommandError, match=wrong):
        told(*arguments)
    assert places() == {"local": 1}


def test_services_refuse_as_the_command_does(model):
    with pytest.raises(ServiceError):
        add_replica("m", "nowhere")
    with pytest.raises(ServiceError):
        remove_replica("m", "nowhere")
