"""Buying credit at Stripe: a Checkout Session is begun, and the web-hook's events say what became of the payment.

Credit comes by a verified event alone, never by the page to which the payer returns. Without SLUICE_STRIPE_SECRET_KEY
nothing of this has an address. Why there is no library: docs/decisions/0022-stripe-without-its-library.md.
"""

from __future__ import annotations

import hmac
import json
import logging
import time
from http import HTTPStatus
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import Request
from uuid import UUID

from django.conf import settings
from django.contrib import messages
from django.db import transaction
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase
from django.shortcuts import redirect, render
from django.urls import path, reverse
from django.views.decorators.csrf import csrf_exempt
from django.views.decorators.http import require_POST

from base.errors import ServiceError
from base.http import open_directly
from base.units import format_credits
from billing.models import PaymentClaim, Purchase
from billing.services import purchases
from control.console.tenancy import Place, tenant_page
from control.throttles import check_purchases
from tenancy.audit import origin

logger = logging.getLogger("sluice.payments")

API = "https://api.stripe.com/v1/"
VERSION = "2025-03-31.basil"
"""The version of Stripe's API that these calls are written for. Events come in the version of their endpoint; what is
read of them is the same in all since 2022.
"""

SECONDS = 15.0
MOST_BYTES = 256 * 1024
TOLERANCE_SECONDS = 300

_DISPUTES = {
    "needs_response": PaymentClaim.State.OPEN,
    "under_review": PaymentClaim.State.OPEN,
    "lost": PaymentClaim.State.BACK,
    "won": PaymentClaim.State.STAYS,
    "prevented": PaymentClaim.State.STAYS,
    "warning_closed": PaymentClaim.State.STAYS,
    "charge_refunded": PaymentClaim.State.STAYS,  # the refund takes it
}
"""What a dispute's status means for the money; a mere warning means nothing yet."""

_REFUNDS = {
    "pending": PaymentClaim.State.OPEN,
    "requires_action": PaymentClaim.State.OPEN,
    "succeeded": PaymentClaim.State.BACK,
    "failed": PaymentClaim.State.STAYS,
    "canceled": PaymentClaim.State.STAYS,
}
_SESSIONS = {
    "checkout.session.completed": Purchase.State.PENDING,  # unless it is paid by now
    "checkout.session.async_payment_succeeded": Purchase.State.PAID,
    "checkout.session.async_payment_failed": Purchase.State.FAILED,
    "checkout.session.expired": Purchase.State.FAILED,
}


class NotVerifiedError(Exception):
    """A call of the web-hook isn't Stripe's, or not of now; the message says why."""


def begin_checkout(purchase: Purchase, *, back: str, email: str) -> str:
    """Begin a Checkout Session for the purchase, and return the address of its page; `back` is where it returns to.

    Raises ServiceError where Stripe can't be asked or refuses. Asking again for the same purchase begins none anew.
    """
    named = {"metadata[purchase]": str(purchase.pk), "payment_intent_data[metadata][purchase]": str(purchase.pk)}
    item = {
        "line_items[0][quantity]": "1",
        "line_items[0][price_data][currency]": purchase.currency.lower(),
        "line_items[0][price_data][unit_amount]": str(purchase.price),
        "line_items[0][price_data][product_data][name]": f"{format_credits(purchase.amount, separator=',')} credits",
    }
    join = "&" if "?" in back else "?"
    where = {"success_url": f"{back}{join}bought=1", "cancel_url": back}
    body = {"mode": "payment", "client_reference_id": str(purchase.pk), **where, **named, **item}
    if email:
        body["customer_email"] = email
    session, address = _made("checkout/sessions", body, key=str(purchase.pk))
    purchases.note_session(purchase, session)
    return address


def _made(resource: str, body: dict[str, str], *, key: str) -> tuple[str, str]:
    """Return the id and address of what Stripe makes of `body`, once for a `key`."""
    headers = {
        "authorization": f"Bearer {settings.SLUICE_STRIPE_SECRET_KEY}",
        "content-type": "application/x-www-form-urlencoded",
        "stripe-version": VERSION,
        "idempotency-key": key,
    }
    request = Request(API + resource, urlencode(body).encode(), headers)  # noqa: S310 - a constant's scheme
    try:
        with open_directly(request, timeout=SECONDS) as answer:
            made = json.loads(answer.read(MOST_BYTES))
            return str(made["id"]), str(made["url"])
    except HTTPError as error:
        with error:
            said = error.read(2000).decode(errors="replace")
        logger.warning("Stripe refused", extra={"status": error.code, "said": said})
        raise ServiceError("", "The payment provider refused: your operator finds why in the log.") from error
    except (OSError, ValueError, KeyError, TypeError, HTTPException) as error:
        logger.warning("Stripe was not reached", extra={"error": str(error)})
        raise ServiceError("", "The payment provider doesn't answer: nothing was paid, try again soon.") from error


def verified(body: bytes, header: str) -> dict[str, Any]:
    """Return the event that Stripe signed within the last five minutes; raise NotVerifiedError for anything else."""
    parts = [one.strip().partition("=")[::2] for one in header.split(",")]
    at = next((value for name, value in parts if name == "t"), "")
    if not (at.isascii() and at.isdigit() and len(at) <= 12):
        raise NotVerifiedError("Stripe-Signature has no time.")
    expected = [
        hmac.digest(secret.encode(), at.encode() + b"." + body, "sha256").hex().encode()
        for secret in settings.SLUICE_STRIPE_WEBHOOK_SECRET
    ]
    given = [value.encode() for name, value in parts if name == "v1"]
    if not any([hmac.compare_digest(one, other) for one in given for other in expected]):  # noqa: C419 - all of them
        raise NotVerifiedError("The signature is not that of SLUICE_STRIPE_WEBHOOK_SECRET.")
    if abs(time.time() - int(at)) > TOLERANCE_SECONDS:
        raise NotVerifiedError("The signature is older than five minutes: compare this machine's clock.")
    try:
        event = json.loads(body)
        if (
            isinstance(event["id"], str)
            and isinstance(event["type"], str)
            and isinstance(event["data"]["object"], dict)
        ):
            return dict(event)
    except (ValueError, KeyError, TypeError, RecursionError):
        pass
    raise NotVerifiedError("The body is no event.")


@transaction.atomic
def apply(event: dict[str, Any]) -> None:
    """Take in what a verified event says, once however often it comes. Those of other accounts and modes, and of
    payments that were never begun here, change nothing.
    """
    is_live = "_live_" in settings.SLUICE_STRIPE_SECRET_KEY
    if event.get("account") or bool(event.get("livemode")) != is_live:
        logger.info("an event of another account or mode", extra={"event": event["id"]})
        return
    kind, told = event["type"], event["data"]["object"]
    if kind in _SESSIONS:
        if purchases.is_new(event["id"], kind):
            _apply_session(told, _SESSIONS[kind])
    elif (claim := _claim_of(kind, told)) is not None and purchases.is_new(event["id"], kind):
        purchases.told_of_claim(**claim)


def _apply_session(told: dict[str, Any], state: Purchase.State) -> None:
    if told.get("payment_status") == "paid":
        state = Purchase.State.PAID
    elif state == Purchase.State.PAID:
        state = Purchase.State.PENDING
    try:
        purchase = UUID(str(told.get("client_reference_id")))
    except ValueError:
        return
    purchases.told_of_session(
        purchase_id=purchase,
        session=str(told.get("id")),
        state=state,
        payment=_id_of(told.get("payment_intent")),
        price=told.get("amount_total"),
        currency=str(told.get("currency") or ""),
    )


def _claim_of(kind: str, told: dict[str, Any]) -> dict[str, Any] | None:
    """Return what the event says of money that goes back, None where it says nothing of it."""
    payment = _id_of(told.get("payment_intent"))
    if payment is None:
        return None
    state: PaymentClaim.State | None
    if kind == "charge.refunded":
        name, of, state = "amount_refunded", PaymentClaim.Kind.CHARGE, PaymentClaim.State.OPEN
    elif kind.startswith(("refund.", "charge.refund.")):
        name, of, state = "amount", PaymentClaim.Kind.REFUND, _REFUNDS.get(str(told.get("status")))
    elif kind.startswith("charge.dispute."):
        name, of, state = "amount", PaymentClaim.Kind.DISPUTE, _DISPUTES.get(str(told.get("status")))
    else:
        return None
    if state is None or not isinstance(told.get(name), int):
        return None
    return {"claim": str(told.get("id")), "payment": payment, "kind": of, "amount": told[name], "state": state}


def _id_of(value: Any) -> str | None:
    """Return the id of an object that an event has as its id, or whole."""
    found = value.get("id") if isinstance(value, dict) else value
    return found if isinstance(found, str) and found else None


@csrf_exempt  # it is signed
@require_POST
def stripe_events(request: HttpRequest) -> HttpResponse:
    """Answer Stripe's web-hook: 200 once the event is applied, or is nothing to us; 400 for what isn't Stripe's."""
    if len(request.body) > MOST_BYTES:  # the edge bounds what is read
        return HttpResponse("The body is too long.\n", status=HTTPStatus.BAD_REQUEST, content_type="text/plain")
    try:
        event = verified(request.body, request.headers.get("stripe-signature", ""))
    except NotVerifiedError as error:
        logger.warning("a call of the web-hook is not Stripe's", extra={"error": str(error)})
        return HttpResponse(f"{error}\n", status=HTTPStatus.BAD_REQUEST, content_type="text/plain")
    origin.current().service = purchases.ACTOR
    apply(event)
    return HttpResponse(status=HTTPStatus.OK)


@require_POST
@tenant_page
def buy(request: HttpRequest, place: Place) -> HttpResponseBase:
    """Begin the purchase of a pack, and lead to the page where it is paid."""
    if not place.access.may("pay"):
        raise Http404
    sold = {str(number): pack for number, pack in enumerate(settings.SLUICE_CREDIT_PACKS)}
    if (pack := sold.get(request.POST.get("pack", ""))) is None:
        raise Http404
    amount, price, currency = pack
    back = reverse("console-billing") + place.query
    person = place.access.user
    email = person.email if person is not None else ""
    try:
        check_purchases(place.access)
    except ServiceError as refused:
        messages.error(request, refused.message)
        return redirect(back)
    purchase = purchases.begin(tenant_id=place.tenant.pk, amount=amount, price=price, currency=currency, made_by=email)
    try:
        address = begin_checkout(purchase, back=settings.SLUICE_BASE_URL + back, email=email)
    except ServiceError as refused:
        messages.error(request, refused.message)
        return redirect(back)
    return render(request, "console/pay.html", place.context(page="billing", address=address, purchase=purchase))


urlpatterns = [
    path("payments/stripe/", stripe_events, name="payments-stripe"),
    path("billing/buy/", buy, name="console-buy"),
]
