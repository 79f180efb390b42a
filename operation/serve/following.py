"""Keeping the spec of a node's worker as the catalogue has it, while the worker runs under a supervisor."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from datetime import datetime
from math import inf
from time import monotonic

import structlog
from django.core.management.base import CommandError
from django.db import DatabaseError, connection

from base import clock
from base.checks import command
from billing.selectors.prices import prices_change_at
from fleet.worker_specs import WorkerSpecError, fingerprint, save_spec, worker_spec_and_missing
from operation.serve.supervisor import Supervisor
from routing.models import Deployment, Node
from routing.services.catalogue import LOCAL
from tenancy.models import CatalogueEpoch

CHILD = "worker"
RETRY_SECONDS = 10.0
"""After so long the storage is asked again for adapters that it didn't give."""

log = structlog.get_logger(__name__)


def require_node(name: str) -> None:
    """Refuse a name that no node has, with the status for wrong settings: its worker would serve nothing for ever."""
    names = list(Node.objects.order_by("name").values_list("name", flat=True))
    if name != LOCAL and name not in names:
        add = command("nodes", "add", name, "--address", "tcp://HOST:7411")
        known = ", ".join(names) or "none yet"
        raise CommandError(f"there is no node {name!r} (nodes: {known}): {add} adds one", returncode=os.EX_CONFIG)


class Following:
    """Follows the catalogue for the worker of `node`, the supervisor's child ``worker``.

    `has_engines` and `names` say what it has to serve now; `listen` and `keys` are those of `worker_spec`.
    """

    def __init__(self, node: str, tell: Callable[[str], object], *, listen: str = "", keys: str = "") -> None:
        self._node = node
        self._tell = tell
        self._listen = listen
        self._keys = keys
        self._epoch = -1
        self._prices_until: datetime | None = None  # when the next one comes into force
        self._complaint = ""
        self._fingerprint = ""
        self._spec: object = None  # the last one, to see whether another differs
        self._missing: set[tuple[str, type[Exception]]] = set()
        self._retry_at = inf  # when the storage is asked again for what is missing
        self.has_engines = True
        self.names: set[str] = set()

    def look(self, supervisor: Supervisor | None) -> None:
        """Tell the worker what it has to serve now; start it anew only where more than its models has changed.

        Adapters that the storage didn't give are asked for again every `RETRY_SECONDS`, for no epoch tells of them.
        """
        try:
            epoch = CatalogueEpoch.objects.values_list("epoch", flat=True).first()
            is_due = self._prices_until is not None and clock.now() >= self._prices_until
            is_current = epoch == self._epoch and not is_due
            began = monotonic()
            if is_current and began < self._retry_at:
                return
            prices_until = prices_change_at(clock.now())  # first: one may come into force in between
            spec, missing = worker_spec_and_missing(self._node, listen=self._listen, keys=self._keys)
            ids = [engine.deployment for engine in spec.engines]
            self.names = set(Deployment.objects.filter(id__in=ids).values_list("name", flat=True))
        except (DatabaseError, WorkerSpecError) as error:
            if str(error) != self._complaint:
                self._tell(f"the worker keeps what it runs: {error}")
            self._complaint = str(error)
            return
        finally:
            if connection.vendor != "sqlite" or connection.errors_occurred:  # opening SQLite's costs more than the look
                connection.close()
        is_same, self._spec = spec == self._spec, spec
        is_restarting, self._fingerprint = fingerprint(spec) != self._fingerprint, fingerprint(spec)
        self._note(missing, began)
        self._epoch, self._prices_until, self._complaint = epoch or 0, prices_until, ""
        self.has_engines = bool(spec.engines or spec.refused)  # a worker tells why it refuses one
        if supervisor is None:
            return
        if is_current and is_same:
            return  # a file that is written anew has the worker read anew what it refuses
        save_spec(spec, self._node)
        if is_restarting:
            supervisor.restart(CHILD)
        elif self.has_engines:
            supervisor.enable(CHILD)

    def _note(self, missing: Mapping[str, Exception], began: float) -> None:
        """Log which adapters are missing that weren't so before, and set when they are asked for again."""
        for adapter, error in missing.items():
            if (adapter, type(error)) not in self._missing:
                event = "adapter_lost" if isinstance(error, FileNotFoundError) else "adapter_not_stored"
                log.warning(event, adapter=adapter, error=str(error))
        self._missing = {(adapter, type(error)) for adapter, error in missing.items()}
        now = monotonic()
        # A storage that is slow to say no has a tenth of the time: meanwhile the supervisor looks after nothing else.
        self._retry_at = now + max(RETRY_SECONDS, 9 * (now - began)) if missing else inf
