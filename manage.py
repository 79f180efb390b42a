#!/usr/bin/env python
"""Sluice's command line."""

from __future__ import annotations

import os
import sys

MIGRATING = ("setup", "quickstart", "restore", "migrate")


def main() -> None:
    """Run one management command; wrong settings, or a system check that fails, end it with 78 (EX_CONFIG)."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
    from django.core.exceptions import ImproperlyConfigured
    from django.core.management import execute_from_command_line
    from django.core.management.base import SystemCheckError
    from django.db import DatabaseError

    try:
        execute_from_command_line(sys.argv)
    except ImproperlyConfigured as error:
        sys.stderr.write(f"settings: {error}\n")
        sys.exit(os.EX_CONFIG)
    except SystemExit as end:
        if isinstance(end.__context__, SystemCheckError):  # Django has said it, and ends with 1 as for any error
            sys.exit(os.EX_CONFIG)
        raise
    except DatabaseError as error:
        from operation.schema import look

        found = look()
        if problem := str(found):
            reason = " ".join(str(error).split())
            is_told = sys.argv[1] not in MIGRATING or reason in problem
            sys.stderr.write(f"{problem}\n" if is_told else f"{problem}; this run of {sys.argv[1]} failed: {reason}\n")
            sys.exit(found.code)
        raise  # the database is as it should be: the command is at fault


if __name__ == "__main__":
    main()
