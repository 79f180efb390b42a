"""Adapters that are made and withdrawn at the same moment, in threads with connections of their own."""

from __future__ import annotations

import threading

import pytest
from django.db import transaction

from base.errors import ServiceError
from base.storage import storage
from billing.services import cards, plans
from fleet.adapters import add_adapter_folder, remove_adapter
from routing.models import Adapter
from routing.services.catalogue import add_model
from tests.billing.services.test_races import at_once
from tests.fleet.adapters.files import save

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def base(settings, tmp_path, terms):
    settings.SLUICE_HOME = tmp_path
    files = {"BACKEND": settings.STORAGES["files"]["BACKEND"], "OPTIONS": {"location": str(tmp_path / "files")}}
    settings.STORAGES = {**settings.STORAGES, "files": files}
    cards.ensure_card("base", "chat")
    return add_model(name="base", kinds=["chat"], context_length=512, rate_card="base", source="/m")


def assert_stored(number):
    """Nothing is stored of those that were refused."""
    assert Adapter.objects.count() == number
    assert len(storage().listdir("adapters")[1]) == number


def test_adapters_made_at_once_are_never_more_than_the_plan_has(tmp_path, acme):
    subscription = acme.tenant.subscriptions.get()
    subscription.version = plans.publish_version(subscription.version.plan, allowed_models=[], adapters=2)
    subscription.save()

    def add(number):
        folder = save(tmp_path / str(number))
        return lambda: add_adapter_folder(folder, base="base", name=f"own{number}", tenant=acme.tenant)

    answers = at_once(*[add(number) for number in range(5)])
    refused = [answer for answer in answers if isinstance(answer, ServiceError)]
    assert [error.message for error in refused] == [
        "You have 2 adapters, as many as your plan includes: delete one first."
    ] * 3
    assert sum(isinstance(answer, Adapter) for answer in answers) == 2
    assert_stored(2)


def test_one_that_is_being_made_is_waited_for(tmp_path, acme):
    """The last place of a plan is taken in a transaction that hasn't ended when another asks for it."""
    subscription = acme.tenant.subscriptions.get()
    subscription.version = plans.publish_version(subscription.version.plan, allowed_models=[], adapters=1)
    subscription.save()
    folders = [save(tmp_path / name) for name in "ab"]
    answers = []

    def add(folder):
        answers.extend(at_once(lambda: add_adapter_folder(folder, base="base", name="own2", tenant=acme.tenant)))

    other = threading.Thread(target=add, args=folders[1:])
    with transaction.atomic():
        add_adapter_folder(folders[0], base="base", name="own1", tenant=acme.tenant)
        other.start()
        other.join(0.5)  # one that didn't wait would have ended
    other.join()
    assert [str(answer) for answer in answers] == [
        "You have 1 adapters, as many as your plan includes: delete one first."
    ]
    assert_stored(1)


def test_a_name_taken_at_once_is_one_adapters(tmp_path):
    folder = save(tmp_path / "law")
    answers = at_once(*[lambda: add_adapter_folder(folder, base="base", name="law")] * 3)
    assert sum(isinstance(answer, Adapter) for answer in answers) == 1
    refused = [answer for answer in answers if not isinstance(answer, Adapter)]
    assert [str(error) for error in refused] == ["There is a model 'law' already."] * 2, answers
    assert_stored(1)


def test_one_withdrawn_at_once_leaves_nothing(tmp_path):
    add_adapter_folder(save(tmp_path / "law"), base="base", name="law")
    answers = at_once(*[lambda: remove_adapter("law")] * 3)
    assert set(answers) <= {True, False}
    assert True in answers
    assert_stored(0)
