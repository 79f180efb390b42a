"""Models on this machine: fetched, put into the catalogue with a price, and withdrawn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction

from base.errors import ServiceError
from base.home import as_meant, as_stored
from billing.services import cards
from fleet.adapters import add_adapter_folder, require_no_adapter
from fleet.worker_specs import WorkerSpecError, engine_config, fetch_environment
from routing.models import Deployment, Node, PublicModel
from routing.services.catalogue import LOCAL, add_model
from routing.services.defaults import ensure_default_routes, ensure_task_routes, specialists

Tell = Callable[[str], None]
Progress = Callable[[int], None]

FIRST_MODELS: dict[str, dict[str, Any]] = {
    # The GGUF file carries no recommendation; at the API's temperature of 1 so small a model rambles, and it doesn't
    # always find an end.
    "SmolLM2-135M-Instruct": {
        "description": "General chat, small and quick (Apache-2.0).",
        "options": {"sampling": {"temperature": 0.2, "top_p": 0.9}},
        "default_max_tokens": 1024,
    },
    "all-MiniLM-L6-v2": {"description": "Sentence embeddings, 384 wide (Apache-2.0)."},
}


@dataclass(frozen=True, slots=True)
class FirstModels:
    """Names now in the catalogue, and why the others are missing."""

    added: tuple[str, ...]
    missing: dict[str, str]


def add_local_model(
    *,
    source: str,
    name: str = "",
    rate_card: str = "",
    options: dict[str, Any] | None = None,
    nodes: Sequence[str] = (LOCAL,),
    default_max_tokens: int | None = None,
    priced: bool = True,
    tell: Tell = lambda _: None,
    progress: Progress = lambda _: None,
) -> Deployment:
    """Bring `source` (hub id, folder, GGUF file) here, make it public as `name` on `nodes`, priced by `rate_card`.

    Without a card of that name one is published at the default rates for its kind; a model that isn't `priced` has
    none, and serves nobody. `tell` is called with a line before each long step, `progress` meanwhile with the bytes
    that have come. Raises ServiceError with the reason.
    """
    unknown = set(nodes) - {LOCAL, *Node.objects.values_list("name", flat=True)}
    if unknown:
        raise ServiceError("node", f"there is no node {min(unknown)!r}: see `manage.py nodes list`")
    found = _fetch(as_meant(source), tell, progress)
    tell("putting it into the catalogue")
    return _publish(
        found,
        name=name or str(found["name"]),
        rate_card=rate_card,
        options=options,
        nodes=nodes,
        default_max_tokens=default_max_tokens,
        priced=priced,
    )


def require_free(name: str) -> None:
    """Raise ServiceError where a model of the catalogue has the name: what it serves from would be replaced."""
    require_no_adapter(name)
    if PublicModel.objects.filter(name=name, is_active=True).exists():
        raise ServiceError("name", f"There is a model {name!r}: give another name, or withdraw that one first.")


def add_first_models() -> FirstModels:
    """Install the first models and publish them in the catalogue, unless that was done.

    A model that an operator has withdrawn or changed stays as they left it.
    """
    answer = _fetch("first-models")
    special = specialists()
    known = set(PublicModel.objects.values_list("name", flat=True))
    for model in answer["models"]:
        name = str(model["name"]).lower()
        if not Deployment.objects.filter(model__name=name).exists():
            terms = FIRST_MODELS.get(model["name"]) or {"description": special[name]["description"]}
            _publish(model, name=name, rate_card=name, **terms)
    names = [str(model["name"]).lower() for model in answer["models"]]
    missing: dict[str, str] = answer["missing"]
    for adapter in answer["adapters"]:
        try:
            _add_first_adapter(adapter, special[adapter["name"]]["description"])
        except ServiceError as error:
            missing[adapter["name"]] = error.message
        else:
            names.append(adapter["name"])
    ensure_default_routes()
    ensure_task_routes(new=set(names) - known)
    return FirstModels(tuple(names), missing)


def _add_first_adapter(adapter: dict[str, str], description: str) -> None:
    """Publish an adapter of the first run; one that an operator has withdrawn stays so. Raise ServiceError."""
    name = adapter["name"]
    if not PublicModel.objects.filter(name=name).exists():
        cards.ensure_card(name, "adapter")
        base, folder = adapter["base"].lower(), Path(adapter["folder"])
        add_adapter_folder(folder, base=base, name=name, rate_card=name, description=description)


@transaction.atomic
def _publish(
    found: dict[str, Any],
    *,
    name: str,
    rate_card: str,
    options: dict[str, Any] | None = None,
    description: str = "",
    nodes: Sequence[str] = (LOCAL,),
    default_max_tokens: int | None = None,
    priced: bool = True,
) -> Deployment:
    card, options = (rate_card or name) if priced else "", options or {}
    if not priced:
        require_free(name)
    longest = options.get("max_context") or found["context_length"]
    if not isinstance(longest, int) or longest < 1:
        raise ServiceError("options", f"max_context is a number of tokens, not {longest!r}")
    require_no_adapter(name)
    if card:
        cards.ensure_card(card, found["kinds"][0])
    row = add_model(
        name=name,
        kinds=found["kinds"],
        context_length=longest,
        rate_card=card,
        source=as_stored(found["folder"]),
        description=description,
        options=options,
        nodes=nodes,
        default_max_tokens=default_max_tokens,
    )
    try:
        engine_config(row)
    except WorkerSpecError as error:
        raise ServiceError("options", str(error)) from error
    return row


def _fetch(source: str, tell: Tell = lambda _: None, progress: Progress = lambda _: None) -> dict[str, Any]:
    """Run `inference.sources.fetch` in a process of its own (it may need torch) and return what it found."""
    folders = ["--home", str(settings.SLUICE_HOME), "--specialists", str(settings.SLUICE_SPECIALISTS)]
    command = [sys.executable, "-m", "inference.sources.fetch", *folders, source]
    found: dict[str, Any] = {}
    with (
        tempfile.TemporaryFile("w+") as complaints,
        subprocess.Popen(  # noqa: S603 - our own module
            command,
            cwd=Path(settings.BASE_DIR),
            env=fetch_environment(os.environ),
            stdout=subprocess.PIPE,
            stderr=complaints,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        try:
            for line in process.stdout:
                found = json.loads(line)
                if "doing" in found:
                    tell(found["doing"])
                elif "bytes" in found:
                    progress(found["bytes"])
        except BaseException:
            process.kill()  # nobody waits for it any more
            raise
        if process.wait() != 0:
            complaints.seek(0)
            lines = complaints.read().strip().splitlines()
            raise ServiceError("source", lines[-1] if lines else f"exit code {process.returncode}")
    return found
