"""A model withdrawn, with what stood on it: told before, and mended."""

from __future__ import annotations

from dataclasses import dataclass

from django.db import transaction
from django.db.models import Exists, OuterRef

from base.errors import ServiceError
from fleet.adapters import remove_adapter
from routing.models import Adapter, ModelAlias, PublicModel, RouteRule, RouteTarget
from routing.services.catalogue import remove_model, set_alias
from routing.services.defaults import aim_anew
from tenancy.services.restrictions import users_of


@dataclass(frozen=True, slots=True)
class Losses:
    """Who loses a model: rules that have others, rules that have no other, its adapters and aliases, plans and keys."""

    rules: tuple[str, ...] = ()
    empty: tuple[str, ...] = ()
    adapters: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    users: str = ""

    @property
    def needs_mending(self) -> bool:
        """Whether anything else stops with the model."""
        return bool(self.empty or self.adapters or self.aliases or self.users)

    def lines(self) -> list[str]:
        """Return what follows, a sentence for each kind."""
        told = [
            ("Rules of auto that do without it", ", ".join(self.rules)),
            ("Rules of auto that have no other model, and get one that fits", ", ".join(self.empty)),
            ("Adapters of it that are withdrawn too", ", ".join(self.adapters)),
            ("Other names of it that go", ", ".join(self.aliases)),
            ("What still names it and may not use it, until plans are published anew and keys changed", self.users),
        ]
        return [f"{kind}: {who}." for kind, who in told if who]


def losses_of(name: str) -> Losses:
    """Return who loses the model `name` and the adapters of it, which go with it."""
    of_it = Adapter.objects.filter(base__name=name, model__is_active=True).order_by("model__name")
    adapters = tuple(of_it.values_list("model__name", flat=True))
    gone = (name, *adapters)
    others = RouteTarget.objects.filter(rule=OuterRef("pk"), model__is_active=True).exclude(model__name__in=gone)
    theirs = RouteTarget.objects.filter(rule=OuterRef("pk"), model__is_active=True, model__name__in=gone)
    rules = RouteRule.objects.filter(Exists(theirs), is_active=True).order_by("priority", "name")
    named = list(rules.annotate(has_others=Exists(others)).values_list("name", "has_others"))
    return Losses(
        rules=tuple(rule for rule, has_others in named if has_others),
        empty=tuple(rule for rule, has_others in named if not has_others),
        adapters=adapters,
        aliases=tuple(ModelAlias.objects.filter(target__in=gone).order_by("name").values_list("name", flat=True)),
        users="; ".join(f"{one} by {users}" for one in gone if (users := users_of(one))),
    )


@transaction.atomic
def withdraw(name: str, *, mends: bool) -> list[str]:
    """Withdraw a model or adapter and mend what stood on it; return what was done, in sentences, none where there is no
    such model.

    Raises ServiceError, nothing changed, where something needs mending and `mends` is false.
    """
    model = PublicModel.objects.select_for_update().filter(name=name, is_active=True).first()
    if model is None:
        return []
    losses = losses_of(name)
    if losses.needs_mending and not mends:
        raise ServiceError("name", " ".join(losses.lines()))
    for adapter in losses.adapters:
        remove_adapter(adapter)
    for alias in losses.aliases:
        set_alias(alias, "")
    if not remove_adapter(name):
        remove_model(name)
    done = [f"{name} is withdrawn; what it still answers ends by itself."]
    done += [f"{adapter}, an adapter of it, is withdrawn." for adapter in losses.adapters]
    done += [f"{alias} is no alias any more." for alias in losses.aliases]
    for rule in RouteRule.objects.filter(name__in=losses.empty).order_by("priority", "name"):
        target = aim_anew(rule, model.kinds)
        gets = f"gets {target.name}" if target else "has no model: auto passes it over until one is added"
        done.append(f"The rule “{rule.name}” {gets}.")
    if lacking := [kind for kind in model.kinds if not _is_served(kind)]:
        kinds = " or ".join(lacking)
        done.append(f"No model serves {kinds} now: auto answers 400 no_route until one is added (`models add`).")
    if losses.users:
        done.append(
            f"What still names it: {losses.users}. Publish plans anew (`manage.py plans include`), change keys."
        )
    return done


def _is_served(kind: str) -> bool:
    active = PublicModel.objects.filter(is_active=True, tenant=None).values_list("kinds", flat=True)
    return any(kind in kinds for kinds in active)
