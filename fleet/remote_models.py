"""Remote engines: added to the catalogue once a test prompt has been answered, and tried again."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

from django.conf import settings
from django.db import transaction
from django.views.decorators.debug import sensitive_variables

from base import clock
from base.errors import ServiceError
from base.sealing import SealError, resealed, seal
from billing.rating import CardPrices
from billing.selectors.prices import prices_at
from billing.services import cards
from fleet.adapters import require_no_adapter
from fleet.remote_engines import REMOTE
from fleet.trials import Tried, try_remote
from inference.engine import EngineSpec
from inference.open import check_remote, list_remote
from routing.models import Deployment, PublicModel
from routing.services.catalogue import add_model, slug_of
from routing.services.defaults import ensure_default_routes


@dataclass(frozen=True, slots=True)
class Added:
    """A deployment that was added, or tried again: what its server announced, and a line for each test prompt."""

    deployment: Deployment
    tried: Tried
    lines: tuple[str, ...]


@sensitive_variables("api_key")
def add_remote_model(
    *,
    address: str,
    dialect: str,
    model: str,
    name: str = "",
    kinds: Sequence[str] = ("chat",),
    api_key: str = "",
    rate_card: str = "",
    options: Mapping[str, Any] | None = None,
    priced: bool = True,
) -> Added:
    """Serve the model that the server at `address` calls `model` under the public `name` (by default the same).

    A test prompt must be answered first. A public model that exists keeps what it is and gets one more deployment; the
    same address again changes that deployment. Without a rate card of that name one is published at the default rates;
    a new model that isn't `priced` has none, and serves nobody. Raise ServiceError naming the field.
    """
    given = {**(options or {}), "model": model, "dialect": dialect, "kinds": list(kinds)}
    base = checked(address, given)
    try:
        tried = try_remote(EngineSpec("trial", REMOTE, base, given, seal(api_key)))
    except ServiceError as error:
        raise _with_way_out(error) from error
    if not given.get("vector_width") and (width := max(trial.vector_width for trial in tried.trials)):
        given["vector_width"] = width
    card = rate_card if priced else None
    added = _publish(base, given, tried, name=name or model, credential=seal(api_key), card=card)
    return Added(added, tried, _lines(tried, _prices_of(added)))


@dataclass(frozen=True, slots=True)
class Listed:
    """A model that a server offers, with the context that it states; `dialect` is what the server seems to be."""

    name: str
    context: int | None
    dialect: str


_OWNERS = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llamacpp"}


@sensitive_variables("api_key")
def listed_models(*, address: str, api_key: str = "") -> list[Listed]:
    """Return the models that the server at `address` lists; raise ServiceError naming the field.

    Not for a thread that runs an event loop.
    """
    try:
        found = asyncio.run(list_remote(address, settings.SLUICE_REMOTE_NETWORKS, api_key))
    except ValueError as error:
        field, _, message = str(error).partition(": ")
        raise _with_way_out(ServiceError(field, message)) from error
    return [
        Listed(
            str(one["id"]),
            next((one[name] for name in ("max_model_len", "context_length") if isinstance(one.get(name), int)), None),
            _OWNERS.get(str(one.get("owned_by", "")).lower(), ""),
        )
        for one in found
    ]


NETWORKS = "SLUICE_REMOTE_NETWORKS"


def _with_way_out(error: ServiceError) -> ServiceError:
    """Return the error; of an address that no setting allows with what to set."""
    if NETWORKS not in error.message:
        return error
    words = (one.strip("(:,;)") for one in error.message.split())
    address = next((one for one in words if _is_address(one)), "")
    network = "127.0.0.0/8" if address.startswith("127.") else str(ipaddress.ip_network(address)) if address else ""
    value = ",".join([*map(str, settings.SLUICE_REMOTE_NETWORKS), *filter(None, [network])])
    way = f" Set {NETWORKS}={value} in the environment of each gateway and of the jobs, and start them again."
    return ServiceError(error.field, f"{error.message.removesuffix('.')}.{way}")


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def checked(address: str, options: Mapping[str, Any]) -> str:
    """Return a remote engine's address without what is superfluous; raise ServiceError naming the field."""
    try:
        return check_remote(address, options)
    except ValueError as error:
        field, _, message = str(error).partition(": ")
        raise ServiceError(field, message) from error


def try_again(deployment: Deployment) -> Added:
    """Send a remote deployment a test prompt; raise ServiceError with what is wrong."""
    spec = EngineSpec(
        str(deployment.id), REMOTE, deployment.source, deployment.options, credential=deployment.credential
    )
    tried = try_remote(spec)
    return Added(deployment, tried, _lines(tried, _prices_of(deployment)))


@transaction.atomic
def reseal_credentials() -> list[str]:
    """Encrypt with the secret of today every stored API key that isn't; return the deployments whose can't be read."""
    lost = []
    for row in Deployment.objects.select_for_update().exclude(credential=""):
        try:
            sealed = resealed(row.credential)
        except SealError:
            lost.append(row.name)
            continue
        if sealed != row.credential:
            row.credential = sealed
            row.save(update_fields=["credential"])
    return lost


@transaction.atomic
def _publish(
    address: str, options: Mapping[str, Any], tried: Tried, *, name: str, credential: str, card: str | None
) -> Deployment:
    """Put it into the catalogue; `card` None leaves a new model without a price and rules as they are."""
    require_no_adapter(name)
    known = PublicModel.objects.filter(name=name, is_active=True).first()
    if known is not None and not set(options["kinds"]) <= set(known.kinds):
        raise ServiceError("kinds", f"the public model {name} serves {' and '.join(known.kinds)}")
    priced_by = card or (known.rate_card if known else "" if card is None else name)
    if priced_by:
        cards.ensure_card(priced_by, options["kinds"][0])
    row = add_model(
        name=name,
        kinds=known.kinds if known else options["kinds"],
        context_length=known.context_length if known else tried.info.max_context,
        rate_card=priced_by,
        source=address,
        description=known.description if known else "",
        backend=Deployment.Backend.OPENAI,
        options=options,
        deployment=_name_of(name, address, str(options["dialect"])),
        credential=credential,
    )
    if card is not None:
        ensure_default_routes()
    return row


def _name_of(model: str, address: str, dialect: str) -> str:
    """Return the name of the model's deployment at `address`, or a new one."""
    same = Deployment.objects.filter(model__name=model, source=address, backend=Deployment.Backend.OPENAI).first()
    if same is not None:
        return same.name
    slug = slug_of(f"{model} {dialect}")[:76]
    taken = set(Deployment.objects.filter(name__startswith=slug).values_list("name", flat=True))
    return next(name for n in count(1) if (name := slug if n == 1 else f"{slug}-{n}") not in taken)


def _prices_of(deployment: Deployment) -> CardPrices | None:
    return prices_at(clock.now()).get(deployment.model.rate_card)


def _lines(tried: Tried, card: CardPrices | None) -> tuple[str, ...]:
    if card is None:
        return ("no price of its rate card is in force: it can't be served",)
    return tuple(trial.told(card) for trial in tried.trials)
