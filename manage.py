#!/usr/bin/env python
"""Sluice's command line."""

from __future__ import annotations

import errno
import os
import signal
import sys

UNWRITABLE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOSPC, errno.EDQUOT)
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
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        place = error.filename or "the disk of SLUICE_HOME"
        sys.exit(f"{place} can't be written ({error.strerror}): mend that, or set SLUICE_HOME to a folder of your own")
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
