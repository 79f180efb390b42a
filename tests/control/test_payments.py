"""Credit bought at Stripe: what events do, in any order, once each; what isn't Stripe's does nothing."""

from __future__ import annotations

import hmac
import itertools
import json
import threading
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from django.test import Client
from django.urls import NoReverseMatch, reverse

from base.units import MICRO
from billing.models import CreditGrant, PaymentEvent, Purchase, Wallet
from billing.services import credits, purchases
from control import payments
from control.urls import urlpatterns as without
from tenancy.models import AuditEvent
from tests.billing.books import assert_books_balance
from tests.billing.conftest import open_hold, roll
from tests.billing.services.test_races import at_once

pytestmark = [pytest.mark.django_db, pytest.mark.urls(__name__)]
urlpatterns = [*without, *payments.urlpatterns]

OBJECTS = (Path(__file__).parent / "stripe_events.json").read_text()
SECRET, OLD_SECRET = "whsec_test_now", "whsec_test_before"
AMOUNT, PRICE, PAYMENT = 5000 * MICRO, 4990, "pi_3SYk2bK8Zr1"
_numbers = itertools.count()


@pytest.fixture(autouse=True)
def _stripe(settings):
    settings.SLUICE_STRIPE_SECRET_KEY = "sk_test_4eC39HqLyjWD"
    settings.SLUICE_STRIPE_WEBHOOK_SECRET = [SECRET, OLD_SECRET]
    settings.SLUICE_CREDIT_PACKS = [(AMOUNT, PRICE, "EUR"), (100 * MICRO, 500, "JPY")]


@pytest.fixture
def bought(acme):
    """A purchase whose checkout was begun, of a tenant whose wallet is empty."""
    return begun(acme)


def begun(party):
    made = purchases.begin(tenant_id=party.tenant.pk, amount=AMOUNT, price=PRICE, currency="EUR", made_by="")
    purchases.note_session(made, "cs_test_a1Qm7VbXo2Tn")
    return made


def event(kind, of, *, purchase=None, account=None, livemode=False, **changed):
    """An event as Stripe sends it: `of` names its object, some fields of which are changed."""
    told = json.loads(OBJECTS.replace("PURCHASE", str(purchase.pk) if purchase else "none"))[of] | changed
    request = {"id": None, "idempotency_key": None}
    whole = {
        "id": f"evt_1SYk2c{next(_numbers):08}", "object": "event", "api_version": "2025-03-31.basil",
        "created": 1764290461, "data": {"object": told}, "livemode": livemode, "pending_webhooks": 1,
        "request": request, "type": kind,
    }  # fmt: skip
    return whole | ({"account": account} if account else {})


def completed(purchase, **changed):
    return event("checkout.session.completed", "session", purchase=purchase, **changed)


def refund(**changed):
    return event("refund.created", "refund", **changed)


def dispute(kind, status, **changed):
    return event(f"charge.dispute.{kind}", "dispute", status=status, **changed)


def signed(body, *, at=None, secret=SECRET, more=""):
    at = int(time.time()) if at is None else at
    mac = hmac.new(secret.encode(), f"{at}.".encode() + body, "sha256").hexdigest()
    return {"stripe-signature": f"t={at},{more}v1={mac},v0=abc"}


def send(told, **options):
    body = told if isinstance(told, bytes) else json.dumps(told).encode()
    headers = options.pop("headers", None) or signed(body, **options)
    client = Client(enforce_csrf_checks=True)
    return client.post("/payments/stripe/", body, content_type="application/json", headers=headers)


def told(*events):
    for one in events:
        assert send(one).status_code == 200


def standing(purchase):
    """State, what came in less what went out again, what is lost, and whether the wallet is open."""
    purchase.refresh_from_db()
    wallet = Wallet.objects.get(tenant=purchase.tenant_id)
    left = sum(CreditGrant.objects.filter(source=f"purchase:{purchase.pk}").values_list("remaining", flat=True))
    assert_books_balance(wallet)
    return purchase.state, left, purchase.taken, purchase.lost, wallet.state


def spend(purchase, micro):
    """Take credit out of the grant, as a request would."""
    wallet = Wallet.objects.get(tenant=purchase.tenant_id)
    for one in CreditGrant.objects.filter(wallet=wallet, remaining__gt=0).exclude(source__startswith="purchase:"):
        credits.void(grant_id=one.pk, key=f"gone:{one.pk}", actor="a", reason="r")
    credits.adjust(wallet_id=wallet.pk, amount=-micro, key=f"spent:{purchase.pk}", actor="a", reason="r")


def test_a_paid_session_gives_its_credit_once(bought):
    one = completed(bought)
    told(one, one, completed(bought), one)
    assert standing(bought) == ("paid", AMOUNT, 0, 0, "open")
    grant = CreditGrant.objects.get(source=f"purchase:{bought.pk}")
    assert (grant.kind, grant.paid_amount, grant.currency, grant.paid_reference) == ("paid", PRICE, "EUR", PAYMENT)
    assert PaymentEvent.objects.count() == 2
    trail = AuditEvent.objects.unscoped().filter(action="purchase.changed", tenant=bought.tenant_id)
    assert {one.actor for one in trail} == {"stripe"}


@pytest.mark.parametrize(
    "spoilt",
    [
        {"secret": "whsec_another"}, {"at": 1764290461}, {"at": int(time.time()) + 3600},
        {"headers": {"stripe-signature": "t=1,v1="}}, {"headers": {"stripe-signature": ""}},
        {"headers": {"stripe-signature": "v1=abc"}}, {"headers": {"stripe-signature": "t=x,v1=abc"}},
    ],
)  # fmt: skip
def test_what_stripe_did_not_sign_now_is_refused(bought, spoilt):
    assert send(completed(bought), **spoilt).status_code == 400
    assert standing(bought)[:2] == ("open", 0)


def test_a_body_that_was_changed_is_refused_and_the_secret_before_still_holds(bought):
    body = json.dumps(completed(bought)).encode()
    assert send(body.replace(b"4990", b"4991"), headers=signed(body)).status_code == 400
    assert send(b"[]").status_code == send(b"{").status_code == send(b'{"id": 1}').status_code == 400
    assert send(b" " * (payments.MOST_BYTES + 1)).status_code == 400
    assert send(body, secret=OLD_SECRET, more=f"v1={'0' * 64},").status_code == 200
    assert standing(bought)[:2] == ("paid", AMOUNT)


@pytest.mark.parametrize(
    ("changed", "state"),
    [
        ({"amount_total": 4989}, "refused"),
        ({"currency": "usd"}, "refused"),
        ({"id": "cs_test_of_another"}, "refused"),
        ({"payment_status": "unpaid", "payment_intent": None}, "pending"),
        ({"account": "acct_another"}, "open"),
        ({"livemode": True}, "open"),
        ({"client_reference_id": "0192f0c1-2d3e-7000-8000-000000000000"}, "open"),
        ({"client_reference_id": None}, "open"),
    ],
)
def test_what_differs_from_the_purchase_gives_nothing(bought, changed, state):
    told(completed(bought, **changed))
    assert standing(bought)[1] == 0
    assert bought.state == state


def test_a_payment_that_takes_days_gives_its_credit_when_it_succeeds(bought, other):
    told(completed(bought, payment_status="unpaid"))
    assert standing(bought)[:2] == ("pending", 0)
    told(event("checkout.session.async_payment_succeeded", "session", purchase=bought))
    told(completed(bought, payment_status="unpaid"))  # late
    assert standing(bought)[:2] == ("paid", AMOUNT)
    failing = purchases.begin(tenant_id=other.tenant.pk, amount=AMOUNT, price=PRICE, currency="EUR", made_by="")
    gone = {"purchase": failing, "id": "cs_2", "payment_intent": "pi_2", "payment_status": "unpaid"}
    told(event("checkout.session.async_payment_failed", "session", **gone), completed(**gone))
    assert standing(failing)[:2] == ("failed", 0)


STORIES = {
    "refunded": (
        lambda one: [completed(one), refund(), event("charge.refunded", "charge")],
        ("paid", 0, AMOUNT, 0, "open"),
    ),
    "refunded in part": (
        lambda one: [completed(one), refund(amount=499), event("charge.refunded", "charge", amount_refunded=499)],
        ("paid", AMOUNT * 9 // 10, AMOUNT // 10, 0, "open"),
    ),
    "a refund that failed": (
        lambda one: [completed(one), refund(status="pending"), event("refund.failed", "refund", status="failed")],
        ("paid", AMOUNT, 0, 0, "open"),
    ),
    "disputed": (
        lambda one: [completed(one), dispute("created", "needs_response"), dispute("funds_withdrawn", "under_review")],
        ("paid", AMOUNT, 0, 0, "frozen"),
    ),
    "won": (
        lambda one: [completed(one), dispute("created", "needs_response"), dispute("closed", "won")],
        ("paid", AMOUNT, 0, 0, "open"),
    ),
    "lost": (
        lambda one: [completed(one), dispute("created", "needs_response"), dispute("closed", "lost")],
        ("paid", 0, AMOUNT, 0, "frozen"),
    ),
    "a warning": (
        lambda one: [completed(one), dispute("created", "warning_needs_response"), dispute("closed", "warning_closed")],
        ("paid", AMOUNT, 0, 0, "open"),
    ),
}


def of_its_own(told, number):
    """The same event of another payment."""
    return json.loads(json.dumps(told).replace("K8Zr1", f"K8Zr1{number}").replace("Xo2Tn", f"Xo2Tn{number}"))


@pytest.mark.parametrize("story", STORIES)
def test_events_in_any_order_have_the_same_end(acme, story):
    make, end = STORIES[story]
    for number, order in enumerate(itertools.permutations(range(3))):
        Wallet.objects.filter(tenant=acme.tenant).update(state="open")
        one = purchases.begin(tenant_id=acme.tenant.pk, amount=AMOUNT, price=PRICE, currency="EUR", made_by="")
        events = [of_its_own(each, number) for each in make(one)]
        told(*[events[at] for at in order], *events)
        assert standing(one) == end, order


@pytest.mark.parametrize(("outcome", "end"), [("won", (AMOUNT, 0)), ("lost", (0, AMOUNT)), (None, (0, AMOUNT))])
@pytest.mark.parametrize("is_first", [True, False])
def test_a_dispute_may_freeze_the_grant_alone(bought, settings, outcome, end, is_first):
    settings.SLUICE_DISPUTE_FREEZES = "grant"
    events = [completed(bought), dispute("created", "needs_response")]
    events += [dispute("closed", outcome)] if outcome else []
    told(*(events if is_first else reversed(events)))
    assert standing(bought) == ("paid", *end, 0, "open")


def test_what_was_spent_before_a_refund_is_a_loss_and_never_a_debt(bought):
    told(completed(bought))
    spend(bought, 2000 * MICRO)
    told(refund())
    assert standing(bought) == ("paid", 0, 3000 * MICRO, 2000 * MICRO, "open")
    assert Wallet.objects.get(tenant=bought.tenant_id).posted == 0


def test_a_refund_in_part_takes_what_is_free_now_and_the_rest_with_a_later_event(bought):
    """The rest of the purchase was destroyed where a request held most of it."""
    told(completed(bought))
    wallet = Wallet.objects.get(tenant=bought.tenant_id)
    held = 4_800 * MICRO
    for made in CreditGrant.objects.filter(wallet=wallet).exclude(source__startswith="purchase:"):
        credits.void(grant_id=made.pk, key=f"gone:{made.pk}", actor="a", reason="r")
    running = open_hold(wallet, held)
    told(refund(amount=499))
    assert standing(bought) == ("paid", held, 200 * MICRO, 300 * MICRO, "open")
    told(refund(amount=499, metadata={"seen": "again"}))
    assert standing(bought) == ("paid", held, 200 * MICRO, 300 * MICRO, "open"), "lost once, and nothing ended"
    running.delete()
    Wallet.objects.filter(pk=wallet.pk).update(held=0)
    told(event("charge.refunded", "charge", amount_refunded=499))
    assert standing(bought) == ("paid", AMOUNT * 9 // 10, AMOUNT // 10, 0, "open")


def test_a_refund_in_whole_ends_what_is_held_of_it_too(bought):
    told(completed(bought))
    wallet = Wallet.objects.get(tenant=bought.tenant_id)
    running = open_hold(wallet, wallet.posted)
    told(refund())
    assert standing(bought) == ("paid", AMOUNT, 0, AMOUNT, "open")
    running.delete()
    Wallet.objects.filter(pk=wallet.pk).update(held=0)
    assert roll(wallet) == AMOUNT
    told(event("charge.refunded", "charge"))
    assert standing(bought) == ("paid", 0, 0, AMOUNT, "open")


def test_a_wallet_that_a_dispute_froze_is_opened_whatever_disputes_freeze_by_then(bought, settings):
    told(completed(bought), dispute("created", "needs_response"))
    settings.SLUICE_DISPUTE_FREEZES = "grant"
    told(dispute("closed", "won"))
    assert standing(bought) == ("paid", AMOUNT, 0, 0, "open")


def test_a_dispute_that_is_won_gives_back_what_it_took_and_no_more(bought, settings):
    settings.SLUICE_DISPUTE_FREEZES = "grant"
    told(completed(bought))
    spend(bought, 2000 * MICRO)
    told(dispute("created", "needs_response"))
    assert standing(bought) == ("paid", 0, 3000 * MICRO, 2000 * MICRO, "open")
    told(dispute("closed", "won"))
    assert standing(bought) == ("paid", 3000 * MICRO, 0, 0, "open")


def test_a_wallet_that_an_operator_froze_is_not_opened_and_one_dispute_opens_no_other(bought, acme):
    second = purchases.begin(tenant_id=acme.tenant.pk, amount=AMOUNT, price=PRICE, currency="EUR", made_by="")
    told(completed(bought), completed(second, id="cs_2", payment_intent="pi_2"))
    told(dispute("created", "needs_response"), dispute("created", "needs_response", id="du_2", payment_intent="pi_2"))
    told(dispute("closed", "won"))
    assert standing(bought)[-1] == "frozen", "the other's dispute is open"
    told(dispute("closed", "won", id="du_2", payment_intent="pi_2"))
    assert standing(second)[-1] == "open"
    Wallet.objects.filter(tenant=acme.tenant).update(state="frozen")
    told(dispute("created", "needs_response", id="du_3"), dispute("closed", "won", id="du_3"))
    assert standing(bought)[-1] == "frozen", "an operator froze it"


@pytest.mark.money
@pytest.mark.django_db(transaction=True)
def test_the_same_event_at_once_is_applied_once(bought):
    one = completed(bought)
    answers = at_once(*[lambda: send(one).status_code] * 8)
    assert answers == [200] * 8
    assert standing(bought)[:2] == ("paid", AMOUNT)


@pytest.mark.money
@pytest.mark.django_db(transaction=True)
def test_a_refund_beside_the_end_of_the_checkout_is_not_lost(acme, monkeypatch):
    """Without the lock of the payment both have read before either commits, and neither sees the other."""
    both_read = threading.Barrier(2)

    def before_commit(take_in):
        def taken_in(**given):
            take_in(**given)
            with suppress(threading.BrokenBarrierError):  # with the lock only one gets here
                both_read.wait(0.5)

        return taken_in

    for name in ("told_of_session", "told_of_claim"):
        monkeypatch.setattr(purchases, name, before_commit(getattr(purchases, name)))
    one = begun(acme)
    assert at_once(lambda: send(completed(one)).status_code, lambda: send(refund()).status_code) == [200, 200]
    assert standing(one)[:3] == ("paid", 0, AMOUNT)


class Stripe(BaseHTTPRequestHandler):
    """Stripe's API as far as it is asked: it notes the call and answers what the server is told to."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.calls.append(
            (self.path, {name.lower(): value for name, value in self.headers.items()}, parse_qs(body))
        )
        status, answer = self.server.answer
        sent = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(sent)))
        self.end_headers()
        self.wfile.write(sent)

    def log_message(self, *_):
        pass


@pytest.fixture
def stripe(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Stripe)
    server.calls, server.answer = [], (200, {"id": "cs_test_9", "url": "https://checkout.stripe.com/c/pay/cs_test_9#x"})
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setattr(payments, "API", f"http://127.0.0.1:{server.server_port}/v1/")
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_pack_is_bought_by_a_session_of_its_price(acme, stripe):
    client = acme.client()
    page = client.get(reverse("console-billing")).content.decode()
    assert "5,000 for 49.90 EUR" in page
    assert "100 for 500 JPY" in page
    answer = client.post(reverse("console-buy"), {"pack": "0"})
    assert 'content="0;url=https://checkout.stripe.com/c/pay/cs_test_9#x"' in answer.content.decode()
    one = Purchase.objects.get()
    assert (one.session, one.state, one.amount, one.price) == ("cs_test_9", "open", AMOUNT, PRICE)
    [(path, headers, body)] = stripe.calls
    assert path == "/v1/checkout/sessions"
    assert headers["authorization"] == "Bearer sk_test_4eC39HqLyjWD"
    assert (headers["stripe-version"], headers["idempotency-key"]) == (payments.VERSION, str(one.pk))
    assert {name: value for name, [value] in body.items()} == {
        "mode": "payment",
        "client_reference_id": str(one.pk),
        "metadata[purchase]": str(one.pk),
        "payment_intent_data[metadata][purchase]": str(one.pk),
        "line_items[0][quantity]": "1",
        "line_items[0][price_data][currency]": "eur",
        "line_items[0][price_data][unit_amount]": "4990",
        "line_items[0][price_data][product_data][name]": "5,000 credits",
        "customer_email": acme.owner.email,
        "cancel_url": "http://127.0.0.1:8000/billing/",
        "success_url": "http://127.0.0.1:8000/billing/?bought=1",
    }
    assert client.get("/billing/?bought=1").status_code == 200
    assert not CreditGrant.objects.filter(source__startswith="purchase:").exists(), "the page of return gives nothing"


@pytest.mark.parametrize(("answer", "said"), [((402, {"error": {}}), "refused"), ((200, []), "answer")])
def test_where_stripe_refuses_nothing_is_bought(acme, stripe, answer, said):
    stripe.answer = answer
    page = acme.client().post(reverse("console-buy"), {"pack": "1"}, follow=True).content.decode()
    assert said in page
    assert Purchase.objects.get().session is None


def test_only_who_may_pay_buys_and_only_what_is_sold(acme, stripe):
    for pack in ("2", "-1", "x", ""):
        assert acme.client().post(reverse("console-buy"), {"pack": pack}).status_code == 404
    acme.membership.role = "admin"
    acme.membership.save()
    assert acme.client().post(reverse("console-buy"), {"pack": "0"}).status_code == 404
    assert "Buy credit" not in acme.client().get(reverse("console-billing")).content.decode()
    assert stripe.calls == []


@pytest.mark.urls("control.urls")
def test_without_the_settings_there_is_no_address(acme, settings):
    settings.SLUICE_STRIPE_SECRET_KEY = ""
    with pytest.raises(NoReverseMatch):
        reverse("console-buy")
    assert Client().post("/payments/stripe/", b"{}", content_type="application/json").status_code == 404
    assert "Buy credit" not in acme.client().get(reverse("console-billing")).content.decode()
