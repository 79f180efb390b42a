"""Keeping the spec of a node's worker as the catalogue has it, while the worker runs under a supervisor."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from django.db import DatabaseError, connection

from billing import clock
from billing.selectors.prices import prices_change_at
from gateway.management.supervisor import Supervisor
from gateway.models import CatalogueEpoch
from gateway.services.worker_specs import WorkerSpecError, fingerprint, save_spec, worker_spec
from routing.models import Deployment

CHILD = "worker"


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
        self.has_engines = True
        self.names: set[str] = set()

    def look(self, supervisor: Supervisor | None) -> None:
        """Tell the worker what it has to serve now; start it anew only where more than its models has changed."""
        try:
            epoch = CatalogueEpoch.objects.values_list("epoch", flat=True).first()
            if epoch == self._epoch and (self._prices_until is None or clock.now() < self._prices_until):
                return
            prices_until = prices_change_at(clock.now())  # first: one may come into force in between
            spec = worker_spec(self._node, listen=self._listen, keys=self._keys)
            ids = [engine.deployment for engine in spec.engines]
            self.names = set(Deployment.objects.filter(id__in=ids).values_list("name", flat=True))
        except (DatabaseError, WorkerSpecError) as error:
            if str(error) != self._complaint:
                self._tell(f"the worker keeps what it runs: {error}")
            self._complaint = str(error)
            return
        finally:
            connection.close()
        changed = fingerprint(spec) != self._fingerprint
        self._epoch, self._fingerprint, self._complaint = epoch or 0, fingerprint(spec), ""
        self._prices_until = prices_until
        self.has_engines = bool(spec.engines or spec.refused)  # a worker tells why it refuses one
        if supervisor is None:
            return
        save_spec(spec, self._node)
        if changed:
            supervisor.restart(CHILD)
        elif self.has_engines:
            supervisor.enable(CHILD)
