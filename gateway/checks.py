"""System checks that refuse a storage that can't be, and an unsafe production configuration; each message says what to
set.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any
from urllib.parse import urlsplit

from django.apps import AppConfig
from django.conf import settings
from django.core import checks
from django.core.checks import CheckMessage, Error, Tags, register
from django.core.exceptions import ImproperlyConfigured
from django.core.files.storage import Storage, storages
from django.db import DatabaseError
from django.db.models import Q

from base.environment import Environment


@register(Tags.security)
def check_environment(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Report an unknown SLUICE_ENV, and in production every unsafe setting."""
    if settings.SLUICE_ENV not in ("development", "production", "test"):
        hint = "Set SLUICE_ENV to development or production."
        return [Error(f"SLUICE_ENV is {settings.SLUICE_ENV!r}.", hint=hint, id="sluice.E001")]
    return _production() if settings.SLUICE_ENV == "production" else []


@register(Tags.files)
def check_files_storage(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Report a storage of tenants' files that can't be made: it would be missed at the first upload."""
    try:
        is_one, problem = isinstance(storages["files"], Storage), "it is no storage of Django's"
    except (ImproperlyConfigured, ImportError, TypeError, ValueError) as error:
        is_one, problem = False, str(error)
    if is_one:
        return []
    hint = (
        "Set SLUICE_FILES_STORAGE to the class of a storage that is installed, such as "
        "storages.backends.s3.S3Storage, and SLUICE_FILES_OPTIONS to options that it has."
    )
    return [Error(f"SLUICE_FILES_STORAGE can't be used: {problem}.", hint=hint, id="sluice.E009")]


@register
def check_payments(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Report a payment provider that is set up in part: nobody could buy, or nobody would get what they bought."""
    names = ("SLUICE_STRIPE_SECRET_KEY", "SLUICE_STRIPE_WEBHOOK_SECRET", "SLUICE_CREDIT_PACKS")
    missing = [name for name in names if not getattr(settings, name)]
    if not 0 < len(missing) < len(names):
        return []
    hint = f"Set {' and '.join(missing)} too, or none of {', '.join(names)}."
    return [Error("Buying credit is set up in part.", hint=hint, id="sluice.E010")]


@register(Tags.security)
def check_names(app_configs: Sequence[AppConfig] | None, **_: Any) -> list[CheckMessage]:
    """Report variables that are nearly a setting: a slip there goes unseen, since the default holds."""
    found: list[CheckMessage] = []
    for variable in sorted(os.environ):
        name = variable.removesuffix("_FILE")
        if name.startswith("SLUICE_") and name not in Environment.READ:
            for meant in get_close_matches(name, Environment.READ, n=1, cutoff=0.85):
                hint = f"Did you mean {meant}?"
                found.append(
                    checks.Warning(f"{variable} is no setting, and does nothing.", hint=hint, id="sluice.W007")
                )
    return found


_LEAST_SECRET = 32
_GUESSABLE = re.compile(r"insecure|change.?me|example|secret.?key|password|development|sluice", re.IGNORECASE)
_SECRETS = ("SLUICE_KEY_HASH_SECRET", "SLUICE_CACHE_SECRET", "SLUICE_CREDENTIAL_SECRET")


def _secrets() -> dict[str, str]:
    """Return the secrets by variable, without those that aren't set: for them the first one stands in."""
    key = str(settings.SECRET_KEY)
    others = {name: str(getattr(settings, name)) for name in _SECRETS}
    return {"SLUICE_SECRET_KEY": key, **{name: value for name, value in others.items() if value != key}}


def _weak_secrets() -> list[CheckMessage]:
    """Report each secret that is short, of few characters, or reads like a placeholder."""
    found: list[CheckMessage] = []
    for variable, value in _secrets().items():
        if len(value) >= _LEAST_SECRET and len(set(value)) >= _LEAST_SECRET // 3 and not _GUESSABLE.search(value):
            continue
        hint = f"Set {variable} to 50 random characters: python -c 'import secrets; print(secrets.token_urlsafe(48))'."
        found.append(Error(f"{variable} is short or can be guessed.", hint=hint, id="sluice.E005"))
    return found


def _fake_deployments() -> list[str]:
    """Return the active deployments that answer with invented text; none if the database can't be reached."""
    from routing.models import Deployment

    active = Deployment.objects.filter(is_active=True, model__is_active=True)
    fake = active.filter(Q(backend=Deployment.Backend.FAKE) | Q(options__architecture="fake"))
    try:
        return list(fake.order_by("name").values_list("name", flat=True)[:5])
    except DatabaseError:
        return []


def _is_offered(plan: str) -> bool:
    """Return whether people can get a plan; True while there is no database to ask."""
    from billing.models import Plan

    try:
        return Plan.objects.filter(slug=plan, is_offered=True).exists()
    except DatabaseError:
        return True


def _production() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if settings.DEBUG:
        found.append(Error("DEBUG is on in production.", hint="Unset SLUICE_DEBUG.", id="sluice.E002"))
    if settings.SLUICE_SECRET_IS_GENERATED:
        hint = (
            "Set SLUICE_SECRET_KEY to 50 random characters and keep it: API keys are recognised with it. "
            f"To go on with the one in use, take it from {settings.SLUICE_HOME / 'secret.key'}."
        )
        found.append(Error("The secret key was generated at first start.", hint=hint, id="sluice.E003"))
    if (settings.SLUICE_HOME / "demo.json").exists():
        hint = f"Revoke the demo key, then delete {settings.SLUICE_HOME / 'demo.json'}."
        found.append(Error("Demo credentials are present.", hint=hint, id="sluice.E004"))
    found += _weak_secrets()
    base = urlsplit(settings.SLUICE_BASE_URL)
    hint = "Set SLUICE_BASE_URL to the address that people use, such as https://sluice.example.com."
    if base.hostname in {"127.0.0.1", "localhost", "::1"}:
        found.append(checks.Warning("Links point to this machine.", hint=hint, id="sluice.W001"))
    elif base.scheme != "https":
        problem = "SLUICE_BASE_URL is not https: sessions and sign-in links travel in the clear."
        found.append(Error(problem, hint=hint, id="sluice.E006"))
    backend = settings.EMAIL_BACKEND.rpartition(".")[0]
    hint = "Set SLUICE_EMAIL_URL=smtp+tls://user:password@host:587, or dummymail:// to send no mail at all."
    if backend == "django.core.mail.backends.console":
        problem = "Mail is printed: whoever reads the log can reset passwords and take up invitations."
        found.append(Error(problem, hint=hint, id="sluice.E007"))
    elif backend in {"django.core.mail.backends.dummy", "django.core.mail.backends.locmem"}:
        found.append(checks.Warning("No mail is sent: nobody can reset a password.", hint=hint, id="sluice.W003"))
    if fake := _fake_deployments():
        hint = "Withdraw them: `manage.py models remove`, or switch the deployment off in the admin."
        found.append(Error(f"The fake backend answers for {', '.join(fake)}.", hint=hint, id="sluice.E008"))
    return [*found, *_worth_knowing()]


def _worth_knowing() -> list[CheckMessage]:
    found: list[CheckMessage] = []
    if (plan := settings.SLUICE_SIGNUP_PLAN) and not _is_offered(plan):
        hint = "Set SLUICE_SIGNUP_PLAN to the slug of a plan that is offered, or to nothing."
        found.append(checks.Warning(f"Nobody can sign up: no plan {plan!r} is offered.", hint=hint, id="sluice.W005"))
    for variable in [name for name, value in _secrets().items() if "," in value and name != "SLUICE_CACHE_SECRET"]:
        hint = "Choose one without commas. What this one protects ends when it is replaced."
        problem = f"{variable} has a comma, so that it can't be one of the fallbacks, which are comma-separated."
        found.append(checks.Warning(problem, hint=hint, id="sluice.W006"))
    if settings.SLUICE_EMBEDDED:
        hint = "Set DATABASE_URL=postgresql://… unless one process on one machine is all you want."
        found.append(checks.Warning("The ledger is on SQLite.", hint=hint, id="sluice.W002"))
    return found
