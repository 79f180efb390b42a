#!/usr/bin/env python
"""Sluice's command line."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run one management command."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.db import DatabaseError

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.exit(f"settings: {error}")
    except DatabaseError:
        from gateway.management.doctor import database_problem

        if problem := database_problem():
            sys.exit(problem)
        raise  # the database is as it should be: the command is at fault


if __name__ == "__main__":
    main()
