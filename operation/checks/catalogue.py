"""Checks of what is offered: plans and prices, where `auto` leads, aliases, keys, and the models themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from django.conf import settings
from django_scopes import scopes_disabled

from base.checks import Check, Finding, Severity, command
from billing.models import PlanVersion, RateCardVersion, Subscription
from billing.services.plans import latest_versions
from fleet.engine_states import EngineState, ask
from fleet.local_models import FIRST_MODELS
from fleet.worker_specs import WorkerSpecError, is_worker_running, worker_spec
from gateway.generation.dry_run import Wanted, dry_run
from gateway.runtime.data_plane import Live
from gateway.runtime.observed import seen_gateways
from routing.errors import RoutingError
from routing.models import Deployment, ModelAlias, PublicModel
from routing.services.catalogue import check_alias
from routing.services.defaults import specialists
from tenancy.models import APIKey

ANSWER_SECONDS = 3.0
SHOWN = ("device", "dtype", "quantization", "tier", "exact", "graphs", "context", "kv", "proof")
"""What of a worker's details is told of a model."""


def _plans(_: object) -> Iterator[Finding]:
    plans = PlanVersion.objects.values("plan").distinct().count()
    prices = RateCardVersion.objects.exclude(published_at=None).values("card").distinct().count()
    mend = "" if plans and prices else f"run {command('setup')}, or make them in the admin"
    yield Finding(f"{plans} plans, {prices} rate cards", mend)
    yield from _without_specialists()


def _without_specialists() -> Iterator[Finding]:
    """Tell of plans, as those of earlier releases, that list their models without the specialists that are installed.

    That may be meant, so nothing has to be mended.
    """
    served = PublicModel.objects.filter(name__in=specialists(), is_active=True, tenant=None)
    installed = sorted(served.values_list("name", flat=True))
    for version in latest_versions() if installed else ():
        lacking = [name for name in installed if version.allowed_models and name not in version.allowed_models]
        if lacking:
            text = (
                f"{', '.join(lacking)}: not in it, so that `auto` gives its tenants the general model; to include them:"
                f" {command('plans', 'include', version.plan.slug, *lacking, '--subscribers')}"
            )
            yield Finding(text, "", f"plan {version.plan.slug}")


def _auto(_: object) -> Iterator[Finding]:
    """Ask where a chat for `auto` would go, on the terms of each plan; that one leads nowhere matters where somebody
    has it or gets it by signing up.
    """
    chats = [model for model in _general() if "chat" in model.kinds]
    if not chats:  # the check of models tells of none at all
        return
    active = PlanVersion.objects.filter(subscriptions__state=Subscription.State.ACTIVE).select_related("plan")
    held = {version.id: version for version in active.distinct()}
    for version in {**{version.id: version for version in latest_versions()}, **held}.values():
        subject = f"plan {version.plan.slug}"
        try:
            route = dry_run(Live(), version, Wanted())
        except RoutingError as error:
            matters = version.id in held or version.plan.slug == settings.SLUICE_SIGNUP_PLAN
            mend = _rerouted(version, chats, error) if matters else ""
            yield Finding(f"`auto` leads nowhere: {error.message}", mend, subject)
        else:
            yield Finding(f"`auto` leads to {route.model}", "", subject)


def _rerouted(version: PlanVersion, chats: list[PublicModel], error: RoutingError) -> str:
    """Return what gives a plan's `auto` a way: a rule without a model gets one by `setup`, a plan by `include`."""
    allowed = [model.name for model in chats if not version.allowed_models or model.name in version.allowed_models]
    if allowed or error.code != "no_route":
        return f"{command('setup')} gives rules without a model another; or mend the rules in the admin"
    return command("plans", "include", version.plan.slug, chats[0].name, "--subscribers")


def _general() -> list[PublicModel]:
    return list(PublicModel.objects.filter(is_active=True, tenant=None).order_by("name"))


def _aliases(_: object) -> Iterator[Finding]:
    """Find aliases that mean no model, and those whose name a model has."""
    for alias in ModelAlias.objects.all():
        try:
            check_alias(alias.name, alias.target)
        except ValueError as error:
            mend = f"{command('models', 'alias', alias.name)} ends it; with a TARGET behind it, it means that"
            yield Finding(str(error), mend, alias.name)


def _keys(_: object) -> Iterator[Finding]:
    with scopes_disabled():
        keys = APIKey.objects.filter(revoked_at=None).count()
    yield Finding(f"{keys} not revoked", "" if keys else "make one in the admin or on the tenant's page")


def _models(_: object) -> Iterator[Finding]:
    """Look at each deployment: its folder here, its worker's answer, and whether any gateway has a replica ready."""
    if not Deployment.objects.filter(is_active=True, model__is_active=True).exists():
        yield Finding("none", f"add one: {command('models', 'add', 'Qwen/Qwen3-0.6B')}, or a folder or GGUF file")
        return
    here = set()
    try:
        spec = worker_spec("local")
    except WorkerSpecError as error:
        yield Finding(str(error), "correct the setting or the deployment's options in the admin")
        return
    for reason in spec.refused.values():
        yield Finding(reason, "correct the deployment's options in the admin")
    asked = [engine.deployment for engine in spec.engines]
    states = ask("local", asked, ANSWER_SECONDS) if asked and is_worker_running("local") else {}
    for engine in spec.engines:
        here.add(engine.deployment)
        yield _here(engine.model, engine.source, states.get(engine.deployment))
    yield from _nowhere_ready({str(row) for row in spec.refused} | here)


def _here(model: str, source: str, state: EngineState | None) -> Finding:
    """Return the finding of a model that this machine's worker is to serve from a folder."""
    mend = "" if Path(source).exists() else _way_back(model, source)
    if state is None:
        return Finding(source, mend, model)
    if state.trouble:
        return Finding(f"{source}: {state.trouble}", mend or "see the worker's log", model)
    details = state.info.details if state.info is not None else {}
    told = "; ".join(f"{name} {details[name]}" for name in SHOWN if name in details)
    if "slower" in details:
        mend = mend or "it is three to five times slower so: mend that, and start the worker again"
    return Finding(f"{source}: {told}", mend, model)


def _nowhere_ready(told: set[str]) -> Iterator[Finding]:
    """Find deployments that no gateway has ready, of those that aren't `told` already."""
    alive = [one for one in seen_gateways() if not (one.is_gone or one.is_starting)]
    ready = frozenset[str]().union(*(one.ready for one in alive))
    rows = Deployment.objects.filter(is_active=True, model__is_active=True).exclude(id__in=told)
    for row in rows.select_related("model").prefetch_related("replicas__node"):
        if row.name in ready or not alive:
            continue
        reason = next((one.unready[row.name] for one in alive if row.name in one.unready), "no gateway knows it yet")
        if reason.startswith(("loading", "no gateway")) and "failed" not in reason:
            yield Finding(reason, "", row.model.name)
            continue
        nodes = [replica.node.name for replica in row.replicas.all() if replica.node is not None]
        starts = " or ".join(f"{command('worker', '--node', node)} on {node}" for node in nodes)
        mend = f"see its worker's log, or start it: {starts}" if nodes else "see to the server that it names"
        yield Finding(f"no replica is ready: {reason}", mend, row.model.name)


def _way_back(model: str, source: str) -> str:
    """Return how to bring back a model whose folder is gone."""
    folder = Path(source)
    is_ours = folder.parent == settings.SLUICE_HOME / "models" and folder.name in {*FIRST_MODELS, *specialists()}
    if is_ours and settings.SLUICE_ENV != "production":
        return f"the folder is gone: {command('quickstart')} makes it anew"
    hub = re.fullmatch(r".*/models--(.+?)--(.+)/snapshots/\w+", source)
    again = command("models", "add", f"{hub[1]}/{hub[2]}" if hub else "SOURCE", "--name", model)
    return f"the folder is gone: put it back there, or {again}" + ("" if hub else " from a hub id, folder or GGUF file")


_SCHEMA = ("schema",)
CHECKS: tuple[Check[object], ...] = (
    Check(
        "plans and prices",
        "there are plans and rate cards",
        Severity.CRITICAL,
        _plans,
        _SCHEMA,
        hits="Nobody can be given a plan, and no model can be priced.",
    ),
    Check(
        "auto",
        "each plan's `auto` leads to a model, by a dry run",
        Severity.WARNING,
        _auto,
        _SCHEMA,
        hits="Requests for auto of this plan's tenants are refused.",
    ),
    Check(
        "aliases",
        "each alias means a model",
        Severity.WARNING,
        _aliases,
        _SCHEMA,
        hits="Requests for this name are refused.",
    ),
    Check("API keys", "somebody has a key", Severity.WARNING, _keys, _SCHEMA, hits="No program can call the API."),
    Check(
        "models",
        "each model is where its worker looks, and ready somewhere",
        Severity.CRITICAL,
        _models,
        _SCHEMA,
        hits="Requests for this model fail, or go to its other deployments.",
    ),
)
