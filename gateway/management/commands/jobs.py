"""``manage.py jobs``: billing's jobs, and the deletion of expired sessions, links and invitations."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError
from django.utils import timezone

from billing.management.commands import jobs as billing
from gateway.management.doctor import database_problem
from gateway.services.purge import purge


class Command(billing.Command):
    """Runs until SIGTERM or SIGINT, then exits with 0 after the current chunk."""

    help = "Run monthly grants, expiry of grants, usage rollups and the removal of what has ended, until SIGTERM."

    def handle(self, *args: Any, **options: Any) -> None:
        """Begin on a database that can be used; one that goes away later is waited for."""
        if not options["once"] and (problem := database_problem()):
            raise CommandError(problem)
        super().handle(*args, **options)

    def jobs(self) -> list[billing.Job]:
        """Return billing's jobs and ours."""
        return [*super().jobs(), billing.Job("purge", lambda: purge(timezone.now()) > 0, every_s=60)]
