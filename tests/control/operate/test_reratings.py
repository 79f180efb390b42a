"""The operator's what-ifs: asked for, looked at, carried out once it is typed; refunds; and both by the API."""

from __future__ import annotations

from datetime import timedelta
from functools import partial

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.urls import reverse
from django.utils import timezone
from django_scopes import scopes_disabled

from base.units import MICRO
from billing.models import RateCardVersion, Rerating, Wallet
from billing.services import reratings
from tenancy.models import AuditEvent, User
from tests.billing.requests import last, publish, ran
from tests.billing.writer.world import make_wallet
from tests.control.operate.test_models import fake, operator, signed_in, text_of

__all__ = ["operator"]
pytestmark = pytest.mark.django_db
API = "/api/v1/operator/"


@pytest.fixture
def requests(operator):
    """Three requests of a model that costs the operator something, at a price that was wrong; and the right one."""
    publish("small")
    model = fake("small", card="small")
    model.cost_input, model.cost_output = MICRO, 2 * MICRO
    model.save()
    wallet, card = (
        make_wallet(credit=100_000),
        publish("small", 2, effective_from=timezone.now() + timedelta(seconds=1)),
    )
    made = [ran(wallet, {"input": 100, "output": 10}, card, model="small", ago=4000 + at) for at in range(3)]
    return wallet, made


def asked(**more):
    right = RateCardVersion.objects.filter(card__name="small").order_by("effective_from").first()
    return {"by": str(right.pk), "since": f"{timezone.now() - timedelta(days=2):%Y-%m-%dT%H:%M}", **more}


def test_a_what_if_is_asked_for_looked_at_and_carried_out(operator, requests):
    wallet, made = requests
    page = operator.post(reverse("operate-rerating-new"), asked(tenants=wallet.tenant.slug, models="small")).url
    assert 'hx-trigger="every 3s"' in text_of(operator.get(page))
    assert reratings.turn()
    told = text_of(operator.get(page))
    for text in ("What-if", "0.00252", "<strong>0.00126</strong>", "-50.0%", "86 %", "71 %", "Output", "By tenant"):
        assert text in told, text
    assert [last(one).revision for one in made] == [0, 0, 0]
    commit = f"{page}commit/"
    assert operator.post(commit, {"reason": "wrong list", "typed": "4"}).status_code == 400
    real = operator.post(commit, {"reason": "wrong list", "typed": "3"}).url
    assert reratings.turn()
    told = text_of(operator.get(real))
    assert "What it came to" in told
    assert "The what-if said" in told
    assert [last(one).charge for one in made] == [420] * 3
    ledger = text_of(operator.get(reverse("operate-request", args=[made[0]])))
    assert "Request, re-rated" in ledger
    assert "from usage to wallet: wrong list" in ledger
    listed = text_of(operator.get(reverse("operate-reratings")))
    assert listed.index("Re-rating</a>") < listed.index("What-if</a>")
    assert "Charge them anew" not in told
    with scopes_disabled():
        assert AuditEvent.objects.filter(action="rerating.created").count() == 2


def test_what_cant_be_asked_is_refused_at_its_field(operator, requests):
    for changes, field in (
        ({"by": "own"}, "by"),
        ({"tenants": "nobody"}, "tenants"),
        ({"multiplier_was": "1"}, "multiplier_bp"),
        ({"until": f"{timezone.now() + timedelta(days=2):%Y-%m-%dT%H:%M}"}, "until"),
        ({"since": ""}, "since"),
    ):
        answer = operator.post(reverse("operate-rerating-new"), asked(**changes))
        assert (answer.status_code, set(answer.context["form"].errors)) == (400, {field}), changes
    assert not Rerating.objects.exists()
    viewer = signed_in("v@example.com", "viewer")
    assert viewer.post(reverse("operate-rerating-new"), asked()).status_code == 403


def test_a_run_is_stopped(operator, requests):
    page = operator.post(reverse("operate-rerating-new"), asked()).url
    assert operator.post(f"{page}stop/").url == page
    assert not reratings.turn()
    assert "stopped" in text_of(operator.get(page))
    assert operator.get(f"{page}commit/").url == page


def test_a_request_is_refunded_with_its_reason_for_both_to_see(operator, requests):
    _, made = requests
    page = reverse("operate-request", args=[made[0]])
    refund = reverse("operate-request-refund", args=[made[0]])
    assert refund in text_of(operator.get(page))
    assert refund not in text_of(operator.get(page, {"view": "tenant"}))
    form = {"amount": "0.0003", "reason": "it stammered", "key": "k1"}
    for _ in range(2):
        assert operator.post(refund, form).url == page
    assert (last(made[0]).charge, last(made[0]).refunded) == (540, 300)
    for told in (text_of(operator.get(page)), text_of(operator.get(page, {"view": "tenant"}))):
        assert "Request, refunded" in told
        assert "it stammered" in told
        assert "-0.0003" in told
    too_much = operator.post(refund, {**form, "amount": "1", "key": "k2"})
    assert (too_much.status_code, set(too_much.context["form"].errors)) == (400, {"amount"})
    with scopes_disabled():
        assert AuditEvent.objects.get(action="request.refunded").after["credits_micro"] == 300
    assert signed_in("v@example.com", "viewer").post(refund, form).status_code == 403


def test_the_same_by_the_api(operator, requests):
    _, made = requests
    right = str(RateCardVersion.objects.filter(card__name="small").order_by("effective_from").first().pk)
    body = {"since": (timezone.now() - timedelta(days=2)).isoformat(), "version": right}
    begun = operator.post(f"{API}reratings/", body, content_type="application/json")
    assert begun.status_code == 201
    run = f"{API}reratings/{begun.json()['id']}/"
    early = operator.post(f"{run}commit/", {"reason": "r"}, content_type="application/json")
    assert (early.status_code, early.json()["error"]["param"]) == (400, "what_if")
    reratings.turn()
    found = operator.get(run).json()
    assert found["difference"]["credits_micro"] == -1_260
    assert [one["name"] for one in found["by_model"]] == ["small"]
    assert {one["name"] for one in found["by_class"]} == {"input", "output"}
    assert operator.post(f"{run}commit/", {"reason": "r"}, content_type="application/json").status_code == 201
    reratings.turn()
    assert len(operator.get(f"{API}reratings/").json()) == 2
    refund = f"{API}requests/{made[0]}/refund/"
    said = {"reason": "r", "amount_micro": 20}
    assert operator.post(refund, said, content_type="application/json").json()["error"]["param"] == "Idempotency-Key"
    for _ in range(2):
        done = operator.post(refund, said, content_type="application/json", headers={"Idempotency-Key": "k"})
        assert (done.status_code, done.json()["charge"]["credits_micro"]) == (200, 400)
    other = operator.post(
        refund, said | {"amount_micro": 1}, content_type="application/json", headers={"Idempotency-Key": "k"}
    )
    assert other.json()["error"]["code"] == "idempotency_key_reused"
    more = operator.post(
        refund, said | {"amount_micro": 999}, content_type="application/json", headers={"Idempotency-Key": "l"}
    )
    assert (more.status_code, more.json()["error"]["param"]) == (400, "amount_micro")
    stopped = operator.post(f"{run}stop/", content_type="application/json")
    assert stopped.json()["is_stopped"] is False  # it had ended
    viewer = signed_in("v@example.com", "viewer")
    assert viewer.get(run).status_code == 200
    assert viewer.post(refund, said, content_type="application/json").status_code == 403
    member = Client()
    member.force_login(User.objects.create_user("m@example.com"), backend="django.contrib.auth.backends.ModelBackend")
    for client in (member, Client()):
        assert client.get(run).status_code in {401, 403}
        assert client.post(refund, said, content_type="application/json").status_code in {401, 403}
    assert Wallet.objects.get(pk=requests[0].pk).posted == 100_000 - 400 - 420 - 420


def test_the_same_by_the_commands(requests, capsys):
    wallet, made = requests
    right = str(RateCardVersion.objects.filter(card__name="small").order_by("effective_from").first().pk)
    since = (timezone.now() - timedelta(days=2)).isoformat()
    rerate = partial(call_command, "rerate", f"--since={since}", f"--card-version={right}")
    rerate("--tenant", wallet.tenant.slug, "--model", "small")
    assert "3 requests, 3 at another price, 0 estimates left: 0.00252 → 0.00126 credits" in capsys.readouterr().out
    assert last(made[0]).revision == 0
    with pytest.raises(CommandError, match=r"^reason: "):
        rerate("--commit")
    with pytest.raises(CommandError, match=r"no tenant 'nobody'"):
        rerate("--tenant", "nobody")
    rerate("--commit", "--reason", "wrong list")
    assert "model small: 0.00252 → 0.00126" in capsys.readouterr().out
    assert [last(one).charge for one in made] == [420] * 3
    refund = partial(call_command, "refund", f"chatcmpl-{made[0].hex}", "--reason", "r")
    for _ in range(2):
        refund("--amount", "0.0001")
    assert last(made[0]).charge == 320
    with pytest.raises(CommandError, match="was used before"):
        refund("--amount", "0.0002")
    with pytest.raises(CommandError, match=r"^request: "):
        call_command("refund", "nonsense", "--reason", "r")
