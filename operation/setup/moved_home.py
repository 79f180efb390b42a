"""What a database says of a home that was moved or restored: paths of before, and whether a restore came to its end."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from django.conf import settings
from django.db import connection, transaction

from base.home import OF_HOME, name_below
from fleet.local_models import FIRST_MODELS
from fleet.worker_specs import with_cache
from routing.models import Deployment, Node
from routing.services.defaults import specialists

UNFINISHED = "sluice_restore"
"""The table that a database has from the moment in which a backup takes its place until its home is restored too."""
_MADE_BY_US = re.compile(
    r"(?P<home>/.+)/models/(gguf/[^/]+-[0-9a-f]+|hub/models--[^/]+/snapshots/[0-9a-f]+|(?P<first>[^/]+))"
)


def is_unfinished() -> bool:
    """Return whether a restore has filled the database and was stopped before secrets and records were restored too."""
    return UNFINISHED in connection.introspection.table_names()


@transaction.atomic
def take_over(former: Iterable[Path] = ()) -> list[str]:
    """Have rows that name by absolute paths what lies in this home, or in a `former` place of it, say ``home:…``, as
    rows do now; return the deployments changed.

    A former home is also one that a worker's file in this home names, or one in which a row has a model that Sluice put
    there: of the latter only what this home has too, or what is there no more, so that what is served stays served.
    Models on nodes with an address stay where they are: their paths are agreed on between machines.
    """
    far = Node.objects.exclude(address="")
    rows = list(
        Deployment.objects.select_for_update()
        .filter(backend=Deployment.Backend.WORKER)
        .exclude(pk__in=Deployment.objects.filter(replicas__node__in=far).values("pk"))
    )
    named = _in_home({*former, *_told_by_workers(settings.SLUICE_HOME)}, _guessed(rows))
    changed = []
    for row in rows:
        source, options = named(row.source), with_cache(row.options, named)
        if (source, options) != (row.source, row.options):
            row.source, row.options = source, options
            row.save(update_fields=["source", "options"])
            changed.append(row.name)
    return changed


def _in_home(known: set[Path], guessed: set[Path]) -> Callable[[str], str]:
    """Return a function that gives a path as a row names it now."""
    home: Path = settings.SLUICE_HOME
    places = sorted({home, *known, *guessed}, key=lambda place: len(place.parts), reverse=True)  # a home may lie in one

    def named(path: str) -> str:
        for place in places:
            name = name_below(path, place)
            is_sure = place == home or place in known
            if name and (is_sure or (home / name).exists() or not Path(path).exists()):
                return OF_HOME + name
        return path

    return named


def _told_by_workers(home: Path) -> set[Path]:
    """Return the homes that the files of this home's workers name: they say where it was when they were written."""
    found = set()
    for file in home.glob("worker-*.json"):
        try:
            found.add(Path(json.loads(file.read_bytes())["record"]).parent)
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {place for place in found if place.is_absolute()}


def _guessed(rows: Iterable[Deployment]) -> set[Path]:
    """Return the homes in which rows have models that lie as Sluice lays them."""
    names = {name.lower(): name for name in (*FIRST_MODELS, *specialists())}
    matches = ((row, _MADE_BY_US.fullmatch(row.source)) for row in rows)
    return {
        Path(match["home"])
        for row, match in matches
        if match is not None and (match["first"] is None or match["first"] == names.get(row.name))
    }
