"""Two at once on PostgreSQL: one goes on when the other has ended, or waits for a lock."""

from __future__ import annotations

import threading

from django.db import connections

WAITING = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"


def is_waiting():
    """Return whether some connection waits for a lock."""
    with connections["default"].cursor() as cursor:
        cursor.execute(WAITING)
        return cursor.fetchone() is not None


def apart(do):
    """Return what `do` answers on a thread of its own, which leaves no connection behind."""
    found = []

    def run():
        try:
            found.append(do())
        finally:
            connections.close_all()

    if threading.current_thread() is not threading.main_thread():
        run()
    else:
        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
    return found[0] if found else None
