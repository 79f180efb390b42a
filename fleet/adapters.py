"""Adapters as public models: checked, stored, put into the catalogue with a price, and withdrawn.

Tensors are stored before the model is shown and removed after it was withdrawn. Whether they fit their base is known to
the workers that have it: `fleet.engine_states` tells what they say.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from django.conf import settings
from django.db import IntegrityError, transaction
from django.db.models import Q, Sum

from base.errors import ServiceError
from billing.models import PlanVersion, Subscription
from billing.services import cards
from fleet import adapter_files as files
from inference.errors import ModelRefusedError
from inference.sources.adapters import CONFIG, MOST_CONFIG_BYTES, WEIGHTS, AdapterConfig, check_tensors, config_of
from inference.types import Kind
from routing.catalogue import ADAPTABLE, by_age, models_in_use
from routing.hook import OwnTerms
from routing.models import Adapter, Deployment, PublicModel
from tenancy.models import Tenant

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
MOST_NAMES = 1000
"""Names that one tenant's own models may ever have had: a name stays its tenant's when the model is withdrawn."""


def add_adapter(
    *,
    base: str,
    config: Mapping[str, Any],
    weights: Path,
    name: str,
    rate_card: str = "",
    description: str = "",
    tenant: Tenant | None = None,
    project: UUID | None = None,
) -> Adapter:
    """Make `name` a public model: the model `base` with the adapter of `config` and the safetensors file `weights`.

    It has the price list that its base has at the time, unless `rate_card` names its own. With a `tenant` it is that
    tenant's own, within the limits of its plan, and its public name is "<slug>/<name>"; all projects share it unless it
    is for one `project`. Raise ServiceError with the field and the reason.
    """
    try:
        size = weights.stat().st_size
    except OSError as error:
        raise ServiceError("file_id", f"{WEIGHTS} can't be read: {error.strerror}") from error
    base_row, checked = check_adapter(base=base, config=config, size=size, name=name, tenant=tenant)
    _check_tensors(weights, size, checked)
    adapter = Adapter(id=uuid4(), base=base_row, config=dict(config), rank=checked.rank, bytes=size)
    public = name if tenant is None else f"{tenant.slug}/{name}"
    files.put(adapter, weights)
    try:
        with transaction.atomic():
            if tenant is not None:
                require_room(tenant, checked.rank, size)
            terms = {"rate_card": rate_card, "description": description}
            adapter.model = _public_model(public, base_row, **terms, tenant=tenant, project=project)
            adapter.save(force_insert=True)
    except IntegrityError as error:  # somebody else has just taken the name
        files.remove(adapter)
        raise _taken(public) from error
    except BaseException:
        files.remove(adapter)
        raise
    return adapter


def check_adapter(
    *, base: str, config: Mapping[str, Any], size: int, name: str, tenant: Tenant | None = None
) -> tuple[PublicModel, AdapterConfig]:
    """Return the base and what the config says; raise the ServiceError for which `add_adapter` would refuse them.

    That is all that can be told without the tensors, of which there are `size` bytes.
    """
    if not NAME.fullmatch(name):
        raise ServiceError("name", "A name has 1 to 60 letters, digits, dots, dashes and underscores.")
    base_row = _base_of(base, tenant)
    checked = _checked(config)
    if tenant is not None:
        with transaction.atomic():
            require_room(tenant, checked.rank, size)
    return base_row, checked


def add_adapter_folder(
    folder: Path, *, base: str, name: str, rate_card: str = "", description: str = "", tenant: Tenant | None = None
) -> Adapter:
    """Do what `add_adapter` does, with what PEFT wrote to `folder`."""
    try:
        text = (folder / CONFIG).read_bytes()
        if len(text) > MOST_CONFIG_BYTES:
            raise ServiceError("source", f"{CONFIG} has more than {MOST_CONFIG_BYTES} bytes.")
        config = json.loads(text)
    except (OSError, ValueError) as error:
        raise ServiceError("source", f"{folder} has no {CONFIG} that can be read: {error}") from error
    if not isinstance(config, dict):
        raise ServiceError("source", f"{CONFIG} is no JSON object.")
    if not (folder / WEIGHTS).is_file():
        raise ServiceError("source", f"{folder} has no {WEIGHTS} (pickles as adapter_model.bin are never read).")
    return add_adapter(
        base=base,
        config=config,
        weights=folder / WEIGHTS,
        name=name,
        rate_card=rate_card,
        description=description,
        tenant=tenant,
    )


def remove_adapter(name: str, own: OwnTerms | None = None) -> bool:
    """Withdraw the model `name` and remove its tensors; False where there is none, or none that is known to `own`.

    Requests that run with it end with it. Raise ServiceError where one project would withdraw what all share.
    """
    with transaction.atomic():
        found = Adapter.objects.select_related("model").filter(model__name=name, model__is_active=True)
        adapter = found.first()
        if adapter is None or (own is not None and not _is_own(adapter, own)):
            return False
        if own is not None and own.project is not None and adapter.model.project_id is None:
            text = f"All projects share {name!r}: an owner or admin withdraws it on the page Models."
            raise ServiceError("name", text)
        adapter.model.is_active = False
        adapter.model.save(update_fields=["is_active"])
        identifier = adapter.id
        adapter.delete()
        adapter.id = identifier
        # It is withdrawn whether the storage answers or not; bytes that stay are in the log.
        transaction.on_commit(lambda: files.remove(adapter), robust=True)
    return True


def require_room(tenant: Tenant, rank: int, size: int) -> None:
    """Raise the ServiceError for why the tenant may not have one more adapter of that rank and size; within the
    transaction, whose lock of the tenant's row lets no two uploads exceed the limit together.
    """
    Tenant.objects.select_for_update(no_key=True).get(id=tenant.id)
    terms = _terms(tenant)
    most = 0 if terms is None else terms.adapters
    if not most:
        raise ServiceError("base", "Your plan doesn't include adapters of your own.")
    own = Adapter.objects.filter(model__tenant=tenant, model__is_active=True)  # an archived project's are stored too
    if own.filter(model__in=models_in_use()).count() >= most:
        raise ServiceError("base", f"You have {most} adapters, as many as your plan includes: delete one first.")
    if rank > settings.SLUICE_MOST_ADAPTER_RANK:
        raise ServiceError("config.r", f"The rank is at most {settings.SLUICE_MOST_ADAPTER_RANK}.")
    total = (own.aggregate(total=Sum("bytes"))["total"] or 0) + size
    if total > settings.SLUICE_MOST_ADAPTER_BYTES:
        text = f"Your adapters may have {settings.SLUICE_MOST_ADAPTER_BYTES:,} bytes together."
        raise ServiceError("file_id", text)


def require_no_adapter(name: str) -> None:
    """Raise ServiceError where `name` is that of an adapter, or of a tenant's own model even if it was withdrawn: what
    an operator served under it would be that tenant's, or nobody's.
    """
    if PublicModel.objects.filter(Q(tenant__isnull=False) | Q(adapter__isnull=False), name=name).exists():
        raise ServiceError("name", f"{name!r} is an adapter's name, or was a tenant's own: give another with --name.")


def bases() -> list[str]:
    """Return the names of the models that adapters may change."""
    served = PublicModel.objects.filter(
        is_active=True, tenant=None, adapter=None, deployments__is_active=True, deployments__backend__in=ADAPTABLE
    )
    rows = served.order_by("name").distinct().values_list("name", "kinds")
    return [name for name, kinds in rows if Kind.CHAT in kinds]


def own_terms(version: PlanVersion | None, tenant: UUID | None, project: UUID | None = None) -> OwnTerms:
    """Return what the tenant's project has of its own models on these terms of its plan; None stands for no plan."""
    if version is None:
        return OwnTerms(tenant=tenant, project=project)
    return OwnTerms(version.adapters, frozenset(version.allowed_models), tenant, project)


def adapters_of(own: OwnTerms) -> list[tuple[Adapter, str]]:
    """Return the adapters that are known on these terms, by name, each with why it isn't served, "" where it is."""
    rows = Adapter.objects.filter(model__tenant=own.tenant, model__is_active=True)
    parts: tuple[list[Adapter], list[Adapter]] = ([], [])
    for one in by_age(rows.select_related("model__project", "base")):
        parts[one.model.project is not None and not one.model.project.is_active].append(one)
    in_use, archived = parts
    told = [(one, own.obstacle(number, one.base.name)) for number, one in enumerate(in_use, 1)]
    told += [(one, "Its project is archived.") for one in archived]
    return sorted((pair for pair in told if _is_own(pair[0], own)), key=lambda pair: pair[0].model.name)


def _is_own(adapter: Adapter, own: OwnTerms) -> bool:
    model = adapter.model
    return model.tenant_id is not None and own.sees(model.tenant_id, model.project_id)


def _base_of(name: str, tenant: Tenant | None) -> PublicModel:
    """Return the model that adapters of the tenant may change; raise ServiceError."""
    base = PublicModel.objects.filter(name=name, is_active=True, tenant=None, adapter=None).first()
    if base is not None and tenant is not None:
        terms = _terms(tenant)
        if terms is None or (terms.allowed_models and name not in terms.allowed_models):
            base = None
    if base is None:
        raise ServiceError("base", f"There is no model {name[:120]!r} that an adapter could be of.")
    backends = set(Deployment.objects.filter(model=base, is_active=True).values_list("backend", flat=True))
    if Kind.CHAT not in base.kinds or not backends & set(ADAPTABLE):
        raise ServiceError("base", f"{name} takes no adapters: it is no chat model of this server's own engine.")
    return base


def _checked(config: Mapping[str, Any]) -> AdapterConfig:
    """Return what a config says; raise ServiceError where it can't be served."""
    try:
        text = json.dumps(config, allow_nan=False)
    except (ValueError, RecursionError) as error:
        raise ServiceError("config", "It has a number that is not finite, or nests too deep.") from error
    if len(text) > MOST_CONFIG_BYTES or "\\u0000" in text:
        message = f"It has more than {MOST_CONFIG_BYTES} bytes, or a NUL character, which no database keeps."
        raise ServiceError("config", message)
    try:
        return config_of(text.encode())
    except ModelRefusedError as error:
        raise ServiceError("config", error.message) from error


def _check_tensors(weights: Path, size: int, config: AdapterConfig) -> None:
    """Raise ServiceError where the tensors can't be served."""
    try:
        with weights.open("rb") as file:
            check_tensors(file, size, config)
    except ModelRefusedError as error:
        raise ServiceError("file_id", error.message) from error
    except OSError as error:
        raise ServiceError("file_id", f"{WEIGHTS} can't be read: {error.strerror}") from error


def _public_model(
    name: str, base: PublicModel, *, rate_card: str, description: str, tenant: Tenant | None, project: UUID | None
) -> PublicModel:
    """Return the active public model of that name, new or one that was withdrawn; raise ServiceError if it is taken."""
    model = PublicModel.objects.select_for_update().filter(name=name).first() or PublicModel(name=name)
    is_known = not model._state.adding  # noqa: SLF001 - Django's documented name
    # An operator may have put it out of use with its adapter, which stays.
    has_adapter = is_known and Adapter.objects.filter(model=model).exists()
    if has_adapter or (is_known and (model.is_active or model.deployments.exists() or model.tenant != tenant)):
        raise _taken(name)
    if tenant is not None and not is_known and PublicModel.objects.filter(tenant=tenant).count() >= MOST_NAMES:
        raise ServiceError("name", f"Your models had {MOST_NAMES} names: give one that an earlier one of yours had.")
    cards.ensure_card(rate_card or base.rate_card, Kind.CHAT.value)
    model.kinds, model.context_length, model.rate_card = base.kinds, base.context_length, rate_card
    model.description, model.is_active = description, True
    model.tenant, model.project_id = tenant, project
    model.save()
    return model


def _taken(name: str) -> ServiceError:
    return ServiceError("name", f"There is a model {name!r} already.")


def _terms(tenant: Tenant) -> PlanVersion | None:
    active = Subscription.objects.filter(tenant=tenant, state=Subscription.State.ACTIVE).select_related("version")
    subscription = active.first()
    return None if subscription is None else subscription.version
