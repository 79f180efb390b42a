"""Checks of configuration and reachability, each with a way to fix what fails."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import urllib.error
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from django.conf import settings
from django.core.checks import Error, Warning, run_checks  # noqa: A004 - Django's name
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.utils import timezone
from django_scopes import scopes_disabled

from base import clock
from base.errors import ServiceError
from base.home import is_disk_full, open_to_others
from base.http import open_directly
from base.sealing import SealError
from billing import triggers
from billing.models import PlanVersion, RateCardVersion
from billing.selectors.reconciliation import last_reconciliation
from billing.selectors.usage import waits_since
from billing.services.plans import latest_versions
from fleet.engine_states import EngineState, ask
from fleet.local_models import FIRST_MODELS
from fleet.remote_engines import REMOTE
from fleet.trials import Seen, look_at
from fleet.worker_specs import WorkerSpecError, is_worker_running, worker_spec
from gateway.runtime import epoch_triggers
from gateway.runtime.gateway_lock import count_gateways
from inference.engine import EngineSpec
from operation.serve.starting import readiness_request
from operation.setup.moved_home import is_unfinished
from routing.models import Deployment, ModelAlias, PublicModel
from routing.services.catalogue import check_alias
from routing.services.defaults import specialists
from tenancy.models import APIKey


@dataclass(frozen=True, slots=True)
class Symptom:
    """The result of one check: fine, or what to do."""

    subject: str
    finding: str
    mend: str = ""

    @property
    def is_fine(self) -> bool:
        return not self.mend


PROBE_SECONDS = 5.0


def remote_engines() -> Iterator[Symptom]:
    """Yield one symptom for each remote deployment; all are asked at once, and none generates anything."""
    rows = list(Deployment.objects.filter(backend=REMOTE, is_active=True, model__is_active=True))
    specs = [EngineSpec(str(row.id), REMOTE, row.source, row.options, row.credential) for row in rows]
    for row, found in zip(rows, asyncio.run(_all(specs)), strict=True):
        yield _symptom(f"remote engine {row.name}", row, found)


async def _all(specs: list[EngineSpec]) -> list[Seen | BaseException]:
    return await asyncio.gather(*(look_at(spec, PROBE_SECONDS) for spec in specs), return_exceptions=True)


def _symptom(subject: str, row: Deployment, found: Seen | BaseException) -> Symptom:
    match found:
        case Seen(uncounted=""):
            details = "; ".join(f"{name} {value}" for name, value in found.info.details.items())
            return Symptom(subject, f"{row.source}: context {found.info.max_context}; {details}")
        case Seen():
            mend = "see to its tokenizer endpoint: until then more credit is held for each prompt than it needs"
            return Symptom(subject, f"{row.source}: prompts are {found.uncounted}", mend)
        case SealError():
            return Symptom(subject, str(found), "give the secret it was sealed with, or enter its API key anew")
        case ServiceError():
            mend = "start it, or correct its address, API key or options in the admin"
            return Symptom(subject, f"{row.source}: {found.message}", mend)
    raise found


if TYPE_CHECKING:
    from redis import Redis

ANSWER_SECONDS = 3.0
LATE = timedelta(minutes=5)
APART = timedelta(seconds=5)
SHOWN = (
    "device",
    "dtype",
    "quantization",
    "tier",
    "exact",
    "graphs",
    "context",
    "kv",
    "proof",
)  # of what a model's worker tells


def examine(base_url: str) -> Iterator[Symptom]:
    """Yield everything worth knowing, from the ground up; later parts are left out when the ground is missing."""
    yield from _home()
    yield from _checks()
    grounded = True
    for symptom in _database():
        grounded = grounded and symptom.is_fine
        yield symptom
    if grounded:
        yield from _redis()
        yield _clock()
        yield from _catalogue()
        yield from remote_engines()
        yield from _periodic_work()
    yield from _engine()
    yield _gateway(base_url)


def _home() -> Iterator[Symptom]:
    home = settings.SLUICE_HOME
    yield Symptom("home", f"{home} ({settings.SLUICE_ENV})")
    if exposed := open_to_others():
        names = ", ".join(str(path) for path in exposed)
        yield Symptom("home", f"other users of this machine may read {names}", "run `manage.py setup`: it closes them")
    free = shutil.disk_usage(home).free // 2**20
    fix = "make room: charges and the worker's record are written here" if is_disk_full() else ""
    yield Symptom("disk", f"{free} MiB free", fix)


def _checks() -> Iterator[Symptom]:
    problems = [message for message in run_checks() if isinstance(message, Error | Warning)]
    for problem in problems:
        yield Symptom("settings", str(problem.msg), str(problem.hint or "see docs/settings.md"))
    if not problems:
        yield Symptom("settings", "pass every check")


def database_problem() -> str:
    """Return what keeps the database from being used and how to mend it, or an empty string."""
    found = _grounds()
    return "" if found.is_fine else f"{found.subject} {found.finding}: {found.mend}"


def _grounds() -> Symptom:
    name = f"{connection.vendor} ({connection.settings_dict['NAME']})"
    driver = cast("Any", connection).Database
    try:
        # Past the pool, which answers with a timeout instead of the reason.
        driver.connect(**_parameters()).close()
        executor = MigrationExecutor(connection)
        unapplied = executor.migration_plan(executor.loader.graph.leaf_nodes())
        is_half = is_unfinished()
    except (DatabaseError, driver.Error) as error:
        return Symptom("database", f"{name}: {' '.join(str(error).split())}", "start it, or correct DATABASE_URL")
    finally:
        connection.close()
    if is_half:
        mend = "run that `manage.py restore` again: secrets and records of the backup are missing until then"
        return Symptom("database", f"{name}: a restore into it was stopped", mend)
    if unapplied:
        return Symptom("database", f"{name}: {len(unapplied)} migrations not applied", "run `manage.py setup`")
    return Symptom("database", f"{name}: migrated")


def _redis() -> Iterator[Symptom]:
    if not settings.REDIS_URL:
        return
    from redis import Redis
    from redis.exceptions import RedisError

    from gateway.runtime.hints import EPOCH_CHANNEL

    try:
        with Redis.from_url(settings.REDIS_URL, socket_timeout=ANSWER_SECONDS, socket_connect_timeout=2.0) as client:
            client.ping()
            refusal = _refusal_to_write(client)
            facts = client.info()
            [(_, listening)] = client.pubsub_numsub(EPOCH_CHANNEL)
    except (RedisError, OSError) as error:
        mend = "start it, or correct REDIS_URL; until then each gateway grants its share of the limits"
        yield Symptom("redis", " ".join(str(error).split()), mend)
        return
    if refusal:
        mend = "make room, or have REDIS_URL name a primary; until then each gateway grants its share of the limits"
        yield Symptom("redis", f"writes nothing: {refusal}", mend)
        return
    policy = facts.get("maxmemory_policy", "noeviction")
    mend = "" if policy == "noeviction" else "set maxmemory-policy to noeviction: what it evicts is a limit forgotten"
    yield Symptom("redis", f"{facts.get('redis_version')} answers, {policy}", mend)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            serving = count_gateways(cursor)
        lost = listening < serving
        mend = (
            "give every gateway of this database the same REDIS_URL: each other one grants limits anew" if lost else ""
        )
        yield Symptom("gateways", f"{serving} serve this database, {listening} listen at this Redis", mend)


def _refusal_to_write(client: Redis) -> str:
    """Return why Redis, which answers, writes nothing; empty when it does."""
    from redis.exceptions import ResponseError

    from billing.limits.redis.store import PREFIX

    try:
        client.set(f"{PREFIX}proof", "1", px=1000)
    except ResponseError as error:
        return " ".join(str(error).split())
    return ""


def _parameters() -> dict[str, Any]:
    parameters: dict[str, Any] = connection.get_connection_params()
    if connection.vendor != "postgresql":
        return {"database": parameters["database"]}
    return {name: value for name, value in parameters.items() if name not in {"pool", "cursor_factory"}}


def _database() -> Iterator[Symptom]:
    grounds = _grounds()
    yield grounds
    if not grounds.is_fine:
        return
    lacking = [*triggers.missing(connection), *epoch_triggers.missing()]
    if lacking:
        yield Symptom("triggers", f"missing: {', '.join(lacking)}", "run `manage.py setup`: it installs them anew")
    else:
        yield Symptom("triggers", "all in place")


def _clock() -> Symptom:
    """Compare this machine's clock, by which keys and links end, with the database's, by which credit and leases do."""
    apart = abs(timezone.now() - clock.now())
    finding = f"{apart.total_seconds():.1f} s from the database's"
    return Symptom("clock", finding, "set both by NTP" if apart > APART else "")


def _specialists() -> Iterator[Symptom]:
    """Tell of plans, as those of earlier releases, that list their models without the specialists that are installed.

    That may be meant, so nothing has to be mended.
    """
    served = PublicModel.objects.filter(name__in=specialists(), is_active=True, tenant=None)
    installed = sorted(served.values_list("name", flat=True))
    for version in latest_versions() if installed else ():
        lacking = [name for name in installed if version.allowed_models and name not in version.allowed_models]
        if lacking:
            listed = " ".join(lacking)
            finding = (
                f"{', '.join(lacking)}: not in it, so that `auto` gives its tenants the general model; to include them:"
                f" `manage.py plans include {version.plan.slug} {listed} --subscribers`"
            )
            yield Symptom(f"plan {version.plan.slug}", finding)


def _aliases() -> Iterator[Symptom]:
    """Tell of aliases that mean no model, and of those whose name a model has."""
    for alias in ModelAlias.objects.all():
        try:
            check_alias(alias.name, alias.target)
        except ValueError as error:
            mend = f"`manage.py models alias {alias.name} TARGET` gives it another, without a target it ends"
            yield Symptom(f"alias {alias.name}", str(error), mend)


def _catalogue() -> Iterator[Symptom]:
    plans = PlanVersion.objects.values("plan").distinct().count()
    prices = RateCardVersion.objects.exclude(published_at=None).values("card").distinct().count()
    fix = "" if plans and prices else "run `manage.py setup`, or make them in the admin"
    yield Symptom("plans and prices", f"{plans} plans, {prices} rate cards", fix)
    yield from _specialists()
    yield from _aliases()
    with scopes_disabled():
        keys = APIKey.objects.filter(revoked_at=None).count()
    yield Symptom("API keys", f"{keys} not revoked", "" if keys else "make one in the admin or on the tenant's page")
    try:
        spec = worker_spec("local")
    except WorkerSpecError as error:
        yield Symptom("models", str(error), "correct the deployment's options in the admin")
        return
    for reason in spec.refused.values():
        yield Symptom("models", reason, "correct the deployment's options in the admin")
    if not spec.engines and not Deployment.objects.filter(is_active=True).exists():
        yield Symptom("models", "none", "run `manage.py models add <hub id | folder | GGUF file>`")
    asked = [engine.deployment for engine in spec.engines]
    states = ask("local", asked, ANSWER_SECONDS) if is_worker_running("local") else {}
    for engine in spec.engines:
        there = Path(engine.source).exists()
        fix = "" if there else _way_back(engine.model, engine.source)
        state = states.get(engine.deployment)
        if state is None:
            finding = engine.source
        elif state.trouble:
            finding, fix = f"{engine.source}: {state.trouble}", fix or "see the worker's log"
        else:
            finding = f"{engine.source}: {_served(state)}"
            if state.info is not None and "slower" in state.info.details:
                fix = fix or "it is three to five times slower so: mend that, and start the worker again"
        yield Symptom(f"model {engine.model}", finding, fix)


def _way_back(model: str, source: str) -> str:
    """Return how to bring back a model whose folder is gone."""
    folder = Path(source)
    is_ours = folder.parent == settings.SLUICE_HOME / "models" and folder.name in {*FIRST_MODELS, *specialists()}
    if is_ours and settings.SLUICE_ENV != "production":
        return "the folder is gone: `manage.py quickstart` makes it anew"
    hub = re.fullmatch(r".*/models--(.+?)--(.+)/snapshots/\w+", source)
    again = f"{hub[1]}/{hub[2]}" if hub else "<hub id | folder | GGUF file>"
    return f"the folder is gone: put it back there, or `manage.py models add {again} --name {model}`"


def _served(state: EngineState) -> str:
    details = state.info.details if state.info is not None else {}
    return "; ".join(f"{name} {details[name]}" for name in SHOWN if name in details)


def _periodic_work() -> Iterator[Symptom]:
    waits = waits_since()
    if waits is not None and clock.now() - waits > LATE:
        fix = "run `manage.py jobs` (or `serve`, or Celery), or `manage.py jobs --once` by cron (docs/jobs.md)"
        yield Symptom("periodic work", f"usage of {waits:%Y-%m-%d %H:%M} UTC is not in the sums", fix)
    else:
        yield Symptom("periodic work", "up to date")
    checked = last_reconciliation()
    if checked is None or checked.finished_at is None:
        yield Symptom("books", "not checked yet")
    else:
        fix = "see them in the admin, or run `manage.py reconcile`" if checked.found else ""
        yield Symptom("books", f"checked {checked.finished_at:%Y-%m-%d %H:%M} UTC, {checked.found} findings", fix)


def _engine() -> Iterator[Symptom]:
    for module in ("torch", "transformers", "safetensors"):
        if find_spec(module) is None:
            yield Symptom("engine", f"{module} is not installed", "`make setup` installs what the engine needs")
            return
    yield Symptom("engine", "torch and transformers are installed")


def _gateway(base_url: str) -> Symptom:
    try:
        with open_directly(readiness_request(base_url), timeout=3) as answer:
            json.load(answer)
    except urllib.error.HTTPError as error:
        reason = error.read().decode(errors="replace")[:300]
        return Symptom("gateway", f"{base_url} is up but not ready: {reason}", "wait for the worker, or see its log")
    except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
        return Symptom("gateway", f"{base_url} doesn't answer ({error})", "run `make run`, or give --base-url")
    return Symptom("gateway", f"{base_url} is ready")
