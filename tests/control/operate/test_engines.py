"""Engines: each deployment as it is now, its trouble first and in words, and what taking it out of service hits."""

from __future__ import annotations

import re

import pytest
from django.contrib.auth.models import Group
from django.urls import reverse

from base.units import MICRO
from billing.models import Wallet
from billing.services import cards
from inference.types import Work
from routing.models import Deployment, Node, Replica, RouteRule, RouteTarget
from routing.services.catalogue import add_model
from tenancy.models import AuditEvent, User
from tenancy.services import roles
from tests.control.operate.test_now import client_of, fail, known, operator, page, record, state
from tests.upstream import Upstream, serving_in_thread

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
ENGINES = reverse("operate-engines")


def add(name="river", backend="fake", source="", **options):
    row = add_model(
        name=name, kinds=["chat"], context_length=9, rate_card="x", source=source, backend=backend, options=options
    )
    return Deployment.objects.select_related("model").get(pk=row.pk)


def page_of(row):
    return reverse("operate-engine", args=[row.pk])


def needed(row):
    """Let a rule of auto have no other model than this deployment's."""
    rule = RouteRule.objects.create(name="general chat")
    RouteTarget.objects.create(rule=rule, model=row.model)
    return rule


def test_the_list_tells_state_memory_and_what_an_hour_shows(operator, acme, monkeypatch):
    row, off = add(), add("lake")
    Deployment.objects.filter(pk=off.pk).update(is_active=False)
    work = Work(steps=3, rows=6, seconds=2.0, prompt_tokens=10, cached_tokens=30, output_tokens=8)
    known(monkeypatch, {row.pk: state(running=2, waiting=1, kv_used=0.5, kv_cached=0.2, work=work)})
    wallet = Wallet.objects.get(tenant=acme.tenant)
    record(
        wallet,
        deployment=row.pk,
        ttft_ms=250,
        duration_ms=2250,
        input_tokens=25,
        cache_read_tokens=75,
        output_tokens=80,
    )
    text = page(operator, ENGINES)
    [line] = re.findall(r"<tr>(?:(?!</tr>).)*river.*?</tr>", text)
    cells = re.findall(r'<td class="number"[^>]*>(.*?)</td>', line)
    assert cells == ["2", "1", "50%", "20%", "30%", "75.0 %", "40", "250 ms"]
    assert "ready" in line
    assert 'class="over"' in text, "one out of service is paler"
    assert "Where it runs" not in page(operator, page_of(row))
    assert "A step computes 2.0 requests on average" in page(operator, page_of(row))


def test_trouble_comes_first_with_its_cure(operator, monkeypatch):
    row = add("far", "openai", "http://127.0.0.1:8000")
    refused = "does not answer: 127.0.0.1 is in no network that SLUICE_REMOTE_NETWORKS allows"
    cure = ": set SLUICE_REMOTE_NETWORKS=10.0.0.0/8,127.0.0.1/32 in the environment of gateways, then start them again"
    known(monkeypatch, {row.pk: state(is_ready=False, reason=refused + cure)})
    for path in (ENGINES, page_of(row)):
        text = page(operator, path)
        assert refused in text
        assert 'data-copy-text="SLUICE_REMOTE_NETWORKS=10.0.0.0/8,127.0.0.1/32"' in text
        assert text.index(refused) < text.index("First token")
    known(monkeypatch, {row.pk: state(is_ready=False, reason="does not answer")})
    assert "see to the server at http://127.0.0.1:8000" in page(operator, page_of(row))
    fail("remote engines", "gone", "start it as `vllm serve`", row.name)
    assert 'data-copy-text="vllm serve"' in page(operator, page_of(row)), "a check knows more"
    known(monkeypatch, {row.pk: state(reason="circuit half-open")})
    assert "degraded" in page(operator, ENGINES)
    known(monkeypatch, {row.pk: state(is_ready=False, reason="loading")})
    assert "What to do" not in page(operator, page_of(row)), "one that is loading needs nobody"


def test_no_gateway_is_said_to_tell_nothing(operator):
    row = add()
    for path in (ENGINES, page_of(row)):
        assert "no gateway answers this page" in page(operator, path)


def test_what_something_needs_is_taken_out_only_by_who_was_told(operator):
    row = add()
    needed(row)
    service = reverse("operate-engine-service", args=[row.pk])
    text = page(operator, service)
    assert "It is the only active deployment of river." in text
    assert "Rules of auto that have no other model, and refuse: general chat." in text
    told = operator.post(service, {}, follow=True).content.decode()
    assert "stays in service" in told
    assert "general chat" in told
    assert Deployment.objects.get(pk=row.pk).is_active
    told = operator.post(service, {"accepts": "on"}, follow=True).content.decode()
    assert "takes no new request" in told
    assert not Deployment.objects.get(pk=row.pk).is_active
    event = AuditEvent.objects.unscoped().filter(action="deployment.changed").latest("at")
    assert (event.actor, event.after) == ("root@example.com", {"is_active": False})
    operator.post(service, {"is_active": "on"})
    assert Deployment.objects.get(pk=row.pk).is_active


def test_the_admins_form_refuses_it_too(operator):
    row = add()
    needed(row)
    form = {
        "name": row.name, "model": str(row.model.pk), "backend": "fake", "source": "", "quantization": "",
        "options": "{}", "weight": "1", "replicas-TOTAL_FORMS": "0", "replicas-INITIAL_FORMS": "0",
    }  # fmt: skip
    answer = operator.post(reverse("admin:routing_deployment_change", args=[row.pk]), form)
    assert answer.status_code == 200, "the form is shown again"
    assert "general chat" in answer.content.decode()
    assert Deployment.objects.get(pk=row.pk).is_active
    Deployment.objects.create(name="spare", model=row.model, backend="fake")
    answer = operator.post(reverse("admin:routing_deployment_change", args=[row.pk]), form)
    assert answer.status_code == 302, "another deployment serves the model"


def test_a_node_says_what_runs_there_alone(operator):
    row = add("river", "worker", "/m")
    [replica] = Replica.objects.filter(deployment=row)
    address = reverse("operate-node", args=[replica.node.pk])
    assert "These run nowhere else: river (river)." in page(operator, address)
    operator.post(address, {})
    assert Node.objects.get().is_active
    operator.post(address, {"accepts": "on"})
    assert not Node.objects.get().is_active
    assert "off" in page(operator, ENGINES)


def test_a_test_prompt_is_sent_and_told(operator, settings):
    settings.SLUICE_REMOTE_NETWORKS = ["127.0.0.0/8"]
    with serving_in_thread(Upstream("vllm")) as upstream:
        cards.publish("x", {0: {"input": 10 * MICRO, "output": 40 * MICRO}})
        row = add("far", "openai", upstream.address, **upstream.options())
        told = operator.post(reverse("operate-engine-test", args=[row.pk]), follow=True).content.decode()
        assert "test prompt (chat)" in told
        settings.SLUICE_REMOTE_NETWORKS = []
        told = operator.post(reverse("operate-engine-test", args=[row.pk]), follow=True).content.decode()
        assert "set SLUICE_REMOTE_NETWORKS=127.0.0.1/32" in told
    assert operator.post(reverse("operate-engine-test", args=[add().pk])).status_code == 404


def test_a_viewer_changes_nothing(operator):
    row = add()
    roles.ensure_roles()
    user = User.objects.create_user("viewer@example.com", is_staff=True)
    user.groups.set(Group.objects.filter(name="viewer"))
    viewer = client_of(user)
    assert "Take out of service" in page(operator, page_of(row))
    assert "Take out of service" not in page(viewer, page_of(row))
    assert viewer.post(reverse("operate-engine-service", args=[row.pk]), {"accepts": "on"}).status_code == 403
    assert Deployment.objects.get(pk=row.pk).is_active


def test_the_pages_take_a_fixed_number_of_queries(operator, acme, monkeypatch, django_assert_max_num_queries):
    rows = [add(f"m{number}", "worker", "/m") for number in range(6)]
    known(monkeypatch, {row.pk: state(is_ready=False, reason="gone") for row in rows})
    for path in (ENGINES, page_of(rows[0])):
        with django_assert_max_num_queries(15):
            page(operator, path)
