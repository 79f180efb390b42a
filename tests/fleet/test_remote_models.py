"""Remote engines are added after a test prompt, beside what is served already, their API keys sealed."""

from __future__ import annotations

from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django_scopes import scopes_disabled

from base.errors import ServiceError
from base.sealing import unseal
from billing.services import cards
from fleet.remote_engines import open_deployment
from fleet.remote_models import add_remote_model, reseal_credentials, try_again
from gateway.runtime.engines import spec_of
from inference.types import Usage
from routing import catalogue
from routing.models import Deployment, PublicModel, RouteRule
from routing.services.catalogue import add_model
from tenancy.models import AuditEvent
from tests.upstream import MODEL, Upstream, serving_in_thread

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _loopback(settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]


@pytest.fixture
def upstream():
    with serving_in_thread(Upstream("vllm")) as server:
        yield server


def add(upstream, **changes):
    given = {"address": f"{upstream.address}/v1/", "dialect": upstream.dialect, "model": MODEL, "name": "big"}
    return add_remote_model(**(given | changes))


def test_a_model_is_added_after_a_test_prompt_whose_cost_is_told(upstream):
    added = add(upstream)
    row = added.deployment
    assert (row.backend, row.source, row.name) == ("openai", upstream.address, "big-vllm")
    assert row.options == {"model": MODEL, "dialect": "vllm", "kinds": ["chat"]}
    assert (row.model.context_length, row.model.kinds, row.model.rate_card) == (8192, ["chat"], "big")
    [trial] = added.tried.trials
    assert trial.usage == Usage(input=10, output=6)
    assert "Say hello in one short sentence." in added.lines[0]
    assert "0.00034 credits" in added.lines[0]  # 10 at 10 and 6 at 40 per million
    assert RouteRule.objects.filter(targets__model=row.model).exists()


def test_it_stands_beside_a_model_of_our_own_and_leaves_it_as_it_is(upstream):
    cards.ensure_card("mine", "chat")
    own = add_model(name="big", kinds=["chat"], context_length=2048, rate_card="mine", source="/models/big")
    added = add(upstream)
    assert added.deployment.pk != own.pk
    model = PublicModel.objects.get(name="big")
    assert (model.context_length, model.rate_card) == (2048, "mine")
    assert set(model.deployments.values_list("backend", flat=True)) == {"worker", "openai"}


def test_the_same_address_again_changes_the_deployment_and_another_adds_one(upstream):
    first = add(upstream).deployment
    assert add(upstream, options={"concurrency": 3}).deployment.pk == first.pk
    with serving_in_thread(Upstream("vllm")) as other:
        assert add(other).deployment.name == "big-vllm-2"


def test_an_embedding_model_learns_its_width(upstream):
    added = add(upstream, kinds=["embedding"])
    assert added.deployment.options["vector_width"] == 8
    assert "8 dimensions" in added.lines[0]


@pytest.mark.parametrize(
    ("changes", "field", "part"),
    [
        ({"address": "ftp://x"}, "address", "http://"),
        ({"address": "http://user:pw@127.0.0.1:1"}, "address", "API key"),
        ({"address": "http://127.0.0.1:1"}, "address", "nothing listens at its address"),
        ({"dialect": "ollama"}, "dialect", "vllm"),
        ({"dialect": "tgi"}, "shared_prefixes", "prefix cache"),
        ({"model": "other"}, "address", "doesn't list"),
        ({"options": {"speed": 3}}, "speed", "no such option"),
        ({"options": {"max_output": 0}}, "max_output", "from 1 on"),
        ({"api_key": ""}, "address", "401"),
    ],
)
def test_what_cannot_be_served_is_refused_and_nothing_stored(upstream, changes, field, part):
    upstream.key = "sk-right"
    with pytest.raises(ServiceError, match=part) as caught:
        add(upstream, **({"api_key": "sk-right"} | changes))
    assert caught.value.field == field
    assert not Deployment.objects.exists()
    assert not PublicModel.objects.exists()


def test_an_address_in_no_allowed_network_is_refused(upstream, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["10.0.0.0/8"]
    with pytest.raises(ServiceError, match="SLUICE_REMOTE_NETWORKS"):
        add(upstream)
    assert not upstream.seen


def test_the_key_is_sealed_everywhere_and_sent(upstream):
    upstream.key = "sk-upstream-secret"
    row = add(upstream, api_key=upstream.key).deployment
    assert upstream.key not in row.credential
    assert unseal(row.credential) == upstream.key
    [entry] = catalogue.load().all_deployments()
    assert upstream.key not in repr(entry) + repr(spec_of(entry, *entry.replicas))
    assert entry.credential not in repr(entry) + repr(spec_of(entry, *entry.replicas))
    with scopes_disabled():
        [event] = AuditEvent.objects.filter(action="deployment.created")
    assert row.credential not in str((event.before, event.after))
    assert try_again(row).tried.trials[0].usage.output == 6


def test_a_key_under_a_lost_secret_is_told_and_the_others_are_sealed_anew(upstream, settings):
    row = add(upstream, api_key="sk").deployment
    other = add(upstream, name="two", api_key="sk").deployment
    Deployment.objects.filter(pk=other.pk).update(credential="gAAAAABnonsense")
    before, settings.SLUICE_CREDENTIAL_SECRET = settings.SLUICE_CREDENTIAL_SECRET, "new" * 16
    settings.SLUICE_CREDENTIAL_FALLBACKS = [before]
    assert reseal_credentials() == [other.name]
    settings.SLUICE_CREDENTIAL_FALLBACKS = []
    row.refresh_from_db()
    assert unseal(row.credential) == "sk"
    other.refresh_from_db()
    entry = next(entry for entry in catalogue.load().all_deployments() if entry.id == other.id)
    with pytest.raises(ValueError, match="enter it again"):
        open_deployment(spec_of(entry, *entry.replicas))


def test_the_command_ends_in_a_test_prompt_with_its_cost(upstream, tmp_path):
    upstream.key = "sk-file"
    (tmp_path / "key").write_text("sk-file\n")
    said = StringIO()
    call_command(
        "models", "add-remote", upstream.address, "--dialect=vllm", f"--model={MODEL}", "--name=big",
        f"--api-key-file={tmp_path / 'key'}", "--max-output=100", stdout=said,
    )  # fmt: skip
    lines = said.getvalue()
    assert "prefix caches: each tenant's own (cache_salt)" in lines
    assert "0.00034 credits" in lines
    assert "served: big by big-vllm" in lines
    assert "sk-file" not in lines
    assert Deployment.objects.get().options["max_output"] == 100
    call_command("models", "list", stdout=said)
    assert upstream.address in said.getvalue()


def test_the_command_says_what_is_wrong(upstream):
    with pytest.raises(CommandError, match=r"shared_prefixes: .*tgi"):
        call_command("models", "add-remote", upstream.address, "--dialect=tgi", f"--model={MODEL}")
    with pytest.raises(CommandError, match="--api-key-file"):
        call_command("models", "add-remote", upstream.address, f"--model={MODEL}", "--api-key-file=/no/such")
