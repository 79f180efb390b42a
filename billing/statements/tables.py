"""A statement as tables, made row by row: its requests, its ledger, and its usage by the hour as FOCUS has it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from base.units import format_credits
from billing.rating import CLASSES, context_of, shares
from billing.seals.keys import text_of
from billing.seals.leaves import RECORD, RECORD_FIELDS, TRANSFER_FIELDS, Books, Leaf
from billing.statements.months import Month
from billing.statements.sums import CORRECTION

Rows = Iterator[list[Any]]
_HOUR = timedelta(hours=1)
_AT = {name: place for place, name in enumerate(RECORD_FIELDS)}
FOCUS = (
    *("BillingAccountId", "BillingAccountName", "BillingAccountType", "BillingCurrency", "BillingPeriodStart"),
    "BillingPeriodEnd",
    *("ChargePeriodStart", "ChargePeriodEnd", "ChargeCategory", "ChargeClass", "ChargeDescription", "ChargeFrequency"),
    *("BilledCost", "EffectiveCost", "ListCost", "ContractedCost", "ConsumedQuantity", "ConsumedUnit"),
    *("PricingCategory", "PricingQuantity", "PricingUnit", "PricingCurrency", "ListUnitPrice", "ContractedUnitPrice"),
    *("PricingCurrencyListUnitPrice", "PricingCurrencyContractedUnitPrice", "PricingCurrencyEffectiveCost"),
    *("InvoiceId", "InvoiceIssuerName", "ProviderName", "PublisherName", "ServiceCategory", "ServiceSubcategory"),
    *("ServiceName", "ResourceId", "ResourceName", "ResourceType", "RegionId", "RegionName", "SkuId", "SkuMeter"),
    *("SkuPriceId", "SubAccountId", "SubAccountName", "SubAccountType", "Tags"),
    *("x_TokenClass", "x_ApiKeyId", "x_Requests"),
)
"""The columns of FOCUS 1.2 that Sluice has something to say in, and its own."""
NO_CURRENCY = "XXX"
"""ISO 4217 for "no currency": what a credit costs in money is not Sluice's business, so costs are credits."""


def requests(month: Month) -> Rows:
    """Yield the records of the month in the order of their booking, under a row of names."""
    yield [
        *("booked_at", "request", "revision", "model", "project", "api_key", *(f"{name}_tokens" for name in CLASSES)),
        *("card", "multiplier_bp", "is_exact", "is_waived", "credits", "credits_before"),
    ]
    for leaf in _leaves(month):
        if leaf.kind == RECORD:
            one = dict(zip(RECORD_FIELDS, leaf.fields, strict=True))
            yield [
                *(one["booked_at"], one["request"], one["revision"], leaf.said[0], one["project"], one["api_key"]),
                *(one[name] for name in CLASSES),
                *(leaf.card, one["multiplier_bp"], one["exact"], one["waived"]),
                *(format_credits(one["charge"]), format_credits(one["was"])),
            ]


def ledger(month: Month) -> Rows:
    """Yield the transfers of the month with the balance after each, under a row of names; first the opening balance."""
    yield ["booked_at", "what", "credits", "balance", "account", "request", "grant", "actor", "reason"]
    balance = month.opening
    yield [text_of(month.begins_at), "opening", "0", format_credits(balance), "", "", "", "", ""]
    for leaf in _leaves(month):
        if leaf.kind != RECORD:
            one = dict(zip(TRANSFER_FIELDS, leaf.fields, strict=True))
            balance += leaf.moved
            account = one["debit"] if leaf.moved > 0 else one["credit"]
            yield [
                *(one["booked_at"], one["code"], format_credits(leaf.moved), format_credits(balance), account),
                *(one["request"], one["grant"], *leaf.said),
            ]


def focus(month: Month, name: str, issuer: str) -> Rows:
    """Yield what was used, a row for each hour, model, class, project and key, under the names of FOCUS's columns.

    The costs of all rows together are what the month's records cost: `issuer` is who makes the statement.
    """
    yield list(FOCUS)
    books = Books(month.tenant)
    hour = datetime.min.replace(tzinfo=UTC)
    sums: dict[tuple[Any, ...], Counter[str]] = {}
    shared = _shared(month, name, issuer)
    for leaf in books.leaves(month.begins_at, month.ends_at):
        if leaf.kind != RECORD:
            continue
        begun = leaf.place[0].astimezone(UTC).replace(minute=0, second=0, microsecond=0)
        if begun != hour:
            yield from _hour(hour, sums, shared)
            hour, sums = begun, {}
        _add(sums, leaf, books)
    yield from _hour(hour, sums, shared)


def _add(sums: dict[tuple[Any, ...], Counter[str]], leaf: Leaf, books: Books) -> None:
    fields = leaf.fields
    owner = (leaf.said[0], str(fields[_AT["project"]]), str(fields[_AT["api_key"]]), leaf.card)
    multiplier_bp = fields[_AT["multiplier_bp"]]
    if fields[_AT["revision"]]:
        sums.setdefault((*owner, CORRECTION, None, 0), Counter())["charge"] += (
            fields[_AT["charge"]] - fields[_AT["was"]]
        )
        return
    tokens = dict(zip(CLASSES, fields[_AT["input"] : _AT["input"] + len(CLASSES)], strict=True))
    card = books.cards.of(leaf.card) if leaf.card is not None else None
    if card is None or not any(tokens.values()):
        return
    rates = card.rates_for(context_of(tokens))
    for name, part in shares({one: count for one, count in tokens.items() if count}, card, multiplier_bp).items():
        rate = card.request_fee if name == "request" else rates[name]
        found = sums.setdefault((*owner, name, rate, multiplier_bp), Counter())
        found["charge"] += part
        found["tokens"] += tokens.get(name, 1)
        found["requests"] += 1


def _shared(month: Month, name: str, issuer: str) -> dict[str, Any]:
    statement = month.statement
    return {
        "BillingAccountId": month.tenant,
        "BillingAccountName": name,
        "BillingAccountType": "Tenant",
        "BillingCurrency": NO_CURRENCY,
        "BillingPeriodStart": _focus_time(month.begins_at),
        "BillingPeriodEnd": _focus_time(month.ends_at),
        "ChargeFrequency": "Usage-Based",
        "PricingCategory": "Standard",
        "PricingCurrency": "Credits",
        "InvoiceId": "" if statement is None else statement.number,
        "InvoiceIssuerName": issuer,
        "ProviderName": issuer,
        "PublisherName": issuer,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "ServiceName": "Inference",
        "ResourceType": "Model",
        "SubAccountType": "Project",
        "Tags": "{}",
    }


def _hour(hour: datetime, sums: dict[tuple[Any, ...], Counter[str]], shared: dict[str, Any]) -> Iterator[list[Any]]:
    for (model, project, key, version, name, rate, multiplier_bp), found in sums.items():
        cost = format_credits(found["charge"])
        row = {
            **shared,
            "ChargePeriodStart": _focus_time(hour),
            "ChargePeriodEnd": _focus_time(hour + _HOUR),
            "ChargeCategory": "Usage",
            "ChargeClass": "Correction" if name == CORRECTION else "",
            "ChargeDescription": f"{model}: {name}",
            **dict.fromkeys(("BilledCost", "EffectiveCost", "PricingCurrencyEffectiveCost", "ContractedCost"), cost),
            "ListCost": cost,
            "ResourceId": model,
            "ResourceName": model,
            "SkuId": f"{model}/{name}",
            "SkuMeter": name,
            "SkuPriceId": f"{version}/{name}",
            "SubAccountId": project,
            "SubAccountName": project,
            "x_TokenClass": name,
            "x_ApiKeyId": key,
            "x_Requests": found["requests"],
        }
        if name != CORRECTION:
            unit = "Requests" if name == "request" else "Tokens"
            paid = rate if name == "request" else rate * multiplier_bp // 10_000
            listed = rate / 10**6 if name == "request" else rate / 10**12
            row |= {"ConsumedQuantity": found["tokens"], "ConsumedUnit": unit, "PricingQuantity": found["tokens"]}
            row |= {"PricingUnit": unit, "ListCost": f"{listed * found['tokens']:.12f}".rstrip("0").rstrip(".")}
            price = f"{paid / (10**6 if name == 'request' else 10**12):.12f}"
            row |= dict.fromkeys(("ContractedUnitPrice", "PricingCurrencyContractedUnitPrice"), price)
            row |= dict.fromkeys(("ListUnitPrice", "PricingCurrencyListUnitPrice"), f"{listed:.12f}")
        yield [row.get(column, "") for column in FOCUS]


def _focus_time(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _leaves(month: Month) -> Iterator[Leaf]:
    return Books(month.tenant).leaves(month.begins_at, month.ends_at)
