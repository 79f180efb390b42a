"""``manage.py jobs``: billing's sweeps over time, and the removal of what has ended here."""

from __future__ import annotations

from django.utils import timezone

from billing.management.commands import jobs as billing
from gateway.services.purge import purge


class Command(billing.Command):
    """Runs until SIGTERM or SIGINT, then ends with 0 after the chunk at hand."""

    help = "Run monthly grants, expiry of grants, usage rollups and the removal of what has ended, until SIGTERM."

    def jobs(self) -> list[billing.Job]:
        """Return billing's jobs and ours."""
        return [*super().jobs(), billing.Job("purge", lambda: purge(timezone.now()) > 0, every_s=60)]
