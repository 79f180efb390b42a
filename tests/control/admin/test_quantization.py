"""A worker's deployment on its page: its options are checked, and its quantisation is chosen among them."""

from __future__ import annotations

import json

import pytest
from django.test import Client
from django.urls import reverse

from control.admin.remote import QUANTIZATIONS
from fleet.worker_specs import engine_config
from inference import config
from routing.models import Deployment, PublicModel
from tenancy.models import User


@pytest.fixture
def page(db):
    client = Client()
    client.force_login(
        User.objects.create_superuser("root@example.com"), backend="django.contrib.auth.backends.ModelBackend"
    )
    model = PublicModel.objects.create(name="small", context_length=100, rate_card="x")
    row = Deployment.objects.create(
        name="d", model=model, backend="worker", source="/models/small", options={"dtype": "bfloat16"}
    )

    def post(**changes):
        row.refresh_from_db()
        form = {"name": row.name, "model": row.model.pk, "backend": "worker", "source": row.source, "weight": 1}
        form |= {"replicas-TOTAL_FORMS": 0, "replicas-INITIAL_FORMS": 0, "is_active": "on", "api_key": ""}
        form |= {"options": json.dumps(row.options), "quantization": row.options.get("quantization", "")} | changes
        answer = client.post(reverse("admin:routing_deployment_change", args=[row.pk]), form)
        row.refresh_from_db()
        return answer, row

    return post


def test_it_is_chosen_and_taken_back(page):
    answer, row = page(quantization="w8a8")
    assert answer.status_code == 302
    assert row.options == {"dtype": "bfloat16", "quantization": "w8a8"}
    assert engine_config(row).quantization == "w8a8"
    assert page()[1].options == {"dtype": "bfloat16", "quantization": "w8a8"}
    assert page(quantization="")[1].options == {"dtype": "bfloat16"}


def test_it_may_be_written_into_the_options(page):
    options = json.dumps({"quantization": "int4"})
    assert page(options=options)[1].options == {"quantization": "int4"}
    answer, row = page(options=json.dumps({"quantization": "w8a8"}), quantization="")
    assert "The options say" in answer.content.decode()
    assert row.options == {"quantization": "int4"}


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ('{"teir": "c"}', "there is no option &#x27;teir&#x27;"),
        ('{"options": {"tier": "d"}}', "options.tier is one of auto, c, torch, reference"),
        ('{"max_rows": "32"}', "max_rows is a whole number from 0 to 4096"),
        ('{"speculation": 1000000000}', "speculation is a whole number from 0 to 64"),
        ('{"prefill_seconds": NaN}', "prefill_seconds is a number from 0 to 60, not nan"),
        ('{"dtype": "int3"}', "dtype is one of"),
        ("[1]", "options are one object"),
        ('"c"', "options are one object"),
        ("5", "options are one object"),
        ("{", "Enter a valid JSON"),
    ],
)
def test_options_that_cannot_be_meant_are_refused_by_their_name(page, options, said):
    answer, row = page(options=options)
    assert answer.status_code == 200
    assert said in answer.content.decode()
    assert row.options == {"dtype": "bfloat16"}


def test_without_a_source_there_is_nothing_to_load(page):
    answer, row = page(source="")
    assert "Say where the weights are" in answer.content.decode()
    assert row.source == "/models/small"


def test_a_folder_in_the_home_is_named_relative_to_it(page, settings):
    _, row = page(source=f"{settings.SLUICE_HOME}/models/own")
    assert row.source == "home:models/own"


def test_the_choices_are_the_engines():
    assert tuple(name for name, _ in QUANTIZATIONS) == config.QUANTIZATIONS
