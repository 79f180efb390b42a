"""An API key's own limits beside its scopes: models, networks, rates and spending; declared once, for every edge."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from base.errors import ServiceError
from billing.models import Wallet
from billing.services.budgets import KeySpending, SpendLimits, of_keys, set_key_limits
from billing.services.plans import latest_versions
from routing.services.catalogue import models_seen
from tenancy.audit.trail import record
from tenancy.models import APIKey, Project
from tenancy.services.networks import parsed_networks


@dataclass(frozen=True, slots=True)
class Limit:
    """A number that a key can be limited to; `is_spend` is for the key's budget, everything else for its rates."""

    unit: str
    period: str
    least: int
    most: int
    is_spend: bool = False

    @property
    def in_credits(self) -> bool:
        """Whether the number is of µcr, which people read and write in credits."""
        return self.unit == "credits"

    @property
    def words(self) -> str:
        """The limit as people read it: "Credits a day"."""
        return f"{self.unit.capitalize()} {self.period}"


_COUNT, _AMOUNT = 2**31 - 1, 2**62

LIMITS = {
    "request_limit": Limit("requests", "a minute", 1, _COUNT),
    "credit_limit": Limit("credits", "a minute", 1, _AMOUNT),
    "token_limit": Limit("tokens", "a minute", 1, _AMOUNT),
    "concurrency": Limit("requests", "at once", 1, _COUNT),
    "day_limit": Limit("credits", "a day", 0, _AMOUNT, is_spend=True),
    "month_limit": Limit("credits", "a month", 0, _AMOUNT, is_spend=True),
    "total_limit": Limit("credits", "in all", 0, _AMOUNT, is_spend=True),
}
"""All limits of a key, in the order in which people see them: API, pages and admin have their fields from here."""

_RATES = tuple(name for name, limit in LIMITS.items() if not limit.is_spend)


@dataclass(frozen=True, slots=True)
class Restrictions:
    """Empty lists and None restrict nothing. `request_limit`, `credit_limit` (µcr), `token_limit` are for a minute."""

    allowed_models: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()
    request_limit: int | None = None
    credit_limit: int | None = None
    token_limit: int | None = None
    concurrency: int | None = None
    spend: SpendLimits = field(default_factory=SpendLimits)

    @classmethod
    def of(cls, key: APIKey) -> Restrictions:
        """Return those of a key."""
        rates = {name: getattr(key, name) for name in _RATES}
        return cls(tuple(key.allowed_models), tuple(key.networks), **rates, spend=spending_of(key).limits)

    @classmethod
    def named(cls, terms: Mapping[str, Any]) -> Restrictions:
        """Return those that `terms` has by their names; what it lacks restricts nothing."""
        rates = {name: terms.get(name) for name in _RATES}
        spend = SpendLimits(**{one.name: terms.get(one.name) for one in fields(SpendLimits)})
        models, networks = terms.get("allowed_models", ()), terms.get("networks", ())
        return cls(tuple(models), tuple(networks), **rates, spend=spend)

    def by_name(self) -> dict[str, Any]:
        """Return the restrictions under their names, as `named` takes them."""
        values = asdict(self)
        spend: dict[str, Any] = values.pop("spend")
        return {**values, **spend}

    def wider_than(self, other: Restrictions) -> str:
        """Return the first field in which these allow what `other` doesn't; "" if there is none."""
        models, networks = set(other.allowed_models), parsed_networks(other.networks)
        if models and not (self.allowed_models and models.issuperset(self.allowed_models)):
            return "allowed_models"
        inside = (
            any(one.version == around.version and one.subnet_of(around) for around in networks)  # type: ignore[arg-type]
            for one in parsed_networks(self.networks)
        )
        if networks and not (self.networks and all(inside)):
            return "networks"
        limits, bounds = self.by_name(), other.by_name()
        for name in LIMITS:
            if bounds[name] is not None and (limits[name] is None or limits[name] > bounds[name]):
                return name
        return ""

    def checked(self, project: Project, had: Collection[str] = ()) -> Restrictions:
        """Return the same in one spelling; raise ServiceError naming what is wrong for a key of the project.

        The models that it `had` may be gone by now.
        """
        models = tuple(sorted(set(self.allowed_models)))
        seen = models_seen(project.tenant_id, project.id).filter(name__in=models)
        known = {*had, *seen.values_list("name", flat=True)}
        if unknown := [name for name in models if name not in known]:
            text = f"There is no model {unknown[0][:120]!r} for the project {project.name}."
            raise ServiceError("allowed_models", text)
        chosen = self.by_name()
        for name, limit in LIMITS.items():
            if chosen[name] is not None and not limit.least <= chosen[name] <= limit.most:
                unit = " µcr" if limit.in_credits else ""
                raise ServiceError(name, f"It must be between {limit.least} and {limit.most}{unit}.")
        networks = tuple(str(network) for network in parsed_networks(self.networks))
        rates = {name: getattr(self, name) for name in _RATES}
        return Restrictions(models, networks, **rates, spend=self.spend)

    def put_on(self, key: APIKey) -> None:
        """Set them on the key, except what it may spend; it isn't saved."""
        key.allowed_models, key.networks = list(self.allowed_models), list(self.networks)
        for name in _RATES:
            setattr(key, name, getattr(self, name))

    def put_budget(self, key: APIKey) -> None:
        """Have the saved key spend no more than this, in the open transaction."""
        before = spending_of(key).limits
        if before == self.spend:
            return
        wallet = Wallet.objects.only("id").get(tenant=key.tenant_id, name="main")
        set_key_limits(wallet=wallet.id, api_key=key.id, limits=self.spend)
        key.spending = None
        shown = [
            {f"{one.name}_micro": getattr(spend, one.name) for one in fields(SpendLimits)}
            for spend in (before, self.spend)
        ]
        record("key.spend_limits", key, tenant=key.tenant_id, before=shown[0], after=shown[1])


def with_spending(keys: Iterable[APIKey]) -> list[APIKey]:
    """Return the keys, the spending of each read: three queries for all."""
    mine = list(keys)
    found = of_keys(key.id for key in mine)
    for key in mine:
        key.spending = found.get(key.id, KeySpending())
    return mine


def spending_of(key: APIKey) -> KeySpending:
    """Return a key's spending limits and what was spent of them."""
    if key.spending is None:
        with_spending([key])
    assert key.spending is not None
    return key.spending


def users_of(model: str) -> str:
    """Return in words which plans and how many keys name that model among those they are for; "" where none does."""
    plans = [version.plan.name for version in latest_versions() if model in version.allowed_models]
    lists = (
        APIKey.objects.unscoped()
        .filter(revoked_at=None)
        .exclude(allowed_models=[])
        .values_list("allowed_models", flat=True)
    )
    keys = sum(model in names for names in lists)
    told = [f"plan {name}" for name in plans] + ([f"{keys} key{'s' * (keys > 1)}"] if keys else [])
    return " and ".join([", ".join(told[:-1]), told[-1]] if len(told) > 1 else told)
