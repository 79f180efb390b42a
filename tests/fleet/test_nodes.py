"""Nodes: their keys, what their workers are told, and what becomes of them."""

from __future__ import annotations

import json
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.db import IntegrityError, transaction

from base.errors import ServiceError
from fleet.nodes import add_node, gateway_key, key_file, remove_node, renew_keys
from fleet.worker_specs import worker_spec
from inference.curve import WorkerKeys, public_key_of
from routing.models import Node
from routing.services.catalogue import add_model

pytestmark = pytest.mark.django_db
ADDRESS = "tcp://10.0.0.7:7411"


@pytest.fixture(autouse=True)
def home(settings, tmp_path):
    settings.SLUICE_HOME = tmp_path
    settings.SLUICE_GATEWAY_KEY = ""
    return tmp_path


def model(**fields):
    return add_model(name="m", kinds=["chat"], context_length=64, rate_card="c", source="/m", **fields)


def told(*arguments):
    out = StringIO()
    call_command("nodes", *arguments, stdout=out)
    return out.getvalue()


def test_a_nodes_secret_is_in_its_key_file_alone(caplog):
    said = told("add", "far", "--address", ADDRESS)
    node, path = Node.objects.get(), key_file("far")
    keys = WorkerKeys.load(path)
    assert (keys.public_key, keys.gateways) == (node.public_key, (public_key_of(gateway_key()),))
    assert str(path) in said
    for secret in (keys.secret_key, gateway_key()):
        assert secret not in said
        assert secret not in caplog.text
        assert secret not in json.dumps(list(Node.objects.values()), default=str)
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("name", "address", "wrong"),
    [
        ("far", "tcp://10.0.0.7", "address such as"),
        ("far", "http://10.0.0.7:80", "address such as"),
        ("far", "tcp://*:80", "address such as"),
        ("a b", ADDRESS, "slug"),
        ("local", ADDRESS, "this machine"),
    ],
)
def test_what_cannot_be_a_node_is_refused_and_leaves_no_key(home, name, address, wrong):
    with pytest.raises(ServiceError, match=wrong):
        add_node(name, address)
    with pytest.raises(CommandError, match=wrong):
        told("add", name, "--address", address)
    assert not list(home.glob("node-*"))


def test_names_and_addresses_are_taken_once():
    add_node("far", ADDRESS)
    for name, address in (("far", "tcp://10.0.0.8:1"), ("other", ADDRESS)):
        with pytest.raises(ServiceError):
            add_node(name, address)
    assert WorkerKeys.load(key_file("far")).public_key == Node.objects.get().public_key


def test_an_address_without_a_key_is_refused_by_the_database():
    for fields in ({"address": ADDRESS}, {"public_key": "x" * 40}):
        with pytest.raises(IntegrityError), transaction.atomic():
            Node.objects.create(name="far", **fields)


def test_new_keys_replace_the_old_ones():
    before = add_node("far", ADDRESS).public_key
    after = renew_keys("far").public_key
    assert before != after == Node.objects.get().public_key == WorkerKeys.load(key_file("far")).public_key
    with pytest.raises(ServiceError, match="no node"):
        renew_keys("local")


def test_each_worker_is_told_its_own_replicas_and_where_to_listen():
    add_node("far", ADDRESS)
    row = model(nodes=["local", "far"])
    here, there = worker_spec("local"), worker_spec("far")
    assert [[engine.deployment for engine in spec.engines] for spec in (here, there)] == [[str(row.id)]] * 2
    assert (here.endpoint[:6], here.keys) == ("ipc://", "")
    assert (there.endpoint, there.keys) == ("tcp://*:7411", str(key_file("far")))
    chosen = worker_spec("far", listen="tcp://10.0.0.7:7411", keys="/etc/keys")
    assert (chosen.endpoint, chosen.keys) == ("tcp://10.0.0.7:7411", "/etc/keys")
    assert here.record != there.record
    Node.objects.filter(name="far").update(is_active=False)
    assert worker_spec("far").engines == ()
    assert worker_spec("unknown").engines == ()


def test_removing_a_node_takes_its_replicas_along():
    add_node("far", ADDRESS)
    row = model(nodes=["local", "far"])
    remove_node("far")
    assert [replica.node.name for replica in row.replicas.all()] == ["local"]
    with pytest.raises(ServiceError, match="no node"):
        remove_node("local")


def test_nodes_are_listed_with_what_they_serve():
    add_node("far", ADDRESS)
    model(nodes=["far"])
    assert told("list") == f"far  {ADDRESS}  not seen yet  m\n"
