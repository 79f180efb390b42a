"""An installation that goes from SQLite to PostgreSQL: how long `backup` and `restore` take, and in how much memory.

    python benchmarks/move.py [--requests 100000] [--tenants 20]

The requests are reserved and settled by the writer, on SQLite. A restore into PostgreSQL (a server of its own) is
killed while rows come in, which has to leave nothing, and is run again. Then every table has the same rows, to the
value, and the books come to the same sums; a key, a password and a sealed text made before are right.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

USED = "tests.stack.used"
CHANGED = {"billing_hold", "gateway_catalogueepoch"}  # leases end at a restore, and gateways look anew
_BACKENDS = "SELECT pid FROM pg_stat_activity WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"


class Command:
    """A management command in a home; `peak` is the most memory that it had (MiB), `served` PostgreSQL's."""

    def __init__(self, stack, *arguments: str) -> None:
        self.peak = self.served = 0.0
        self._began, self._has_ended = time.perf_counter(), threading.Event()
        command = [sys.executable, "manage.py", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        self.process = subprocess.Popen(command, cwd=ROOT, env=stack.environment, text=True, **pipes)

    def watch(self, session) -> None:
        """Look at the memory of the backends until the command has ended."""
        while not self._has_ended.is_set():
            for (pid,) in session.execute(_BACKENDS).fetchall():
                try:
                    status = Path(f"/proc/{pid}/status").read_text()
                except OSError:
                    continue
                if anonymous := re.search(r"RssAnon:\s+(\d+)", status):  # which one that ends has no more
                    self.served = max(self.served, int(anonymous[1]) / 1024)
            time.sleep(0.05)

    def end(self) -> str:
        """Wait for its end; return what it said."""
        said = self.process.stdout.read()
        self._has_ended.set()
        _, status, used = os.wait4(self.process.pid, 0)
        self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds, self.cpu = time.perf_counter() - self._began, used.ru_utime + used.ru_stime
        self.peak = used.ru_maxrss / 1024
        return said


def ended(command: Command) -> str:
    said = command.end()
    assert command.code == 0, said
    return said


def kill_while_rows_come(command: Command, session, least: int) -> int:
    """Kill the command once that many rows of a table have come; return how many they were by then."""
    statement = "SELECT tuples_processed FROM pg_stat_progress_copy WHERE tuples_processed > %s"
    while not (rows := session.execute(statement, [least]).fetchall()):
        assert command.process.poll() is None, command.process.stdout.read()
    command.process.send_signal(signal.SIGKILL)
    command.end()
    return rows[0][0]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--tenants", type=int, default=20)
    options = parser.parse_args()

    from tests.services.postgres import PostgresServer
    from tests.stack.stack import Stack, environment_of

    server, work = PostgresServer.start("fsync=on"), Path(tempfile.mkdtemp(prefix="sluice-bench-"))
    stacks = []

    def opened(name: str, **variables: str) -> Stack:
        (work / name).mkdir(exist_ok=True)
        stacks.append(Stack(work / name, environment_of(work / name, **variables), 0, {}))
        return stacks[-1]

    try:
        former, present = opened("former"), opened("present", DATABASE_URL=server.url)
        former.manage("migrate")
        began = time.perf_counter()
        names = [f"tenant-{number:02}" for number in range(options.tenants)]
        keys = former.script(f"{USED}:use", names, options.requests)
        print(f"{options.requests:,} requests of {options.tenants} tenants made in {time.perf_counter() - began:.0f} s")
        contents, sums = former.script(f"{USED}:contents"), former.script(f"{USED}:sums")
        former.close()
        database = (work / "former/sluice.sqlite3").stat().st_size
        archive = work / "made.tar.gz"
        backup = Command(former, "backup", str(archive))
        ended(backup)
        shutil.rmtree(work / "former")

        with _watcher(server) as session:
            killed = Command(present, "restore", str(archive))
            rows = kill_while_rows_come(killed, session, options.requests // 10)
            left = session.execute("SELECT count(*) FROM pg_tables WHERE schemaname = 'public'").fetchone()
            assert left == (0,), left
            restore = Command(present, "restore", str(archive))
            watching = threading.Thread(target=restore.watch, args=(session,))
            watching.start()
            said = ended(restore)
            watching.join()
        assert said.splitlines()[-1] == "the books are right", said
        found = present.script(f"{USED}:contents")
        different = {name for name, kept in contents.items() if found[name] != kept} - CHANGED
        assert not different, different
        assert present.script(f"{USED}:sums") == sums
        assert present.script(f"{USED}:opened", keys) == [names, True, "sealed text"]
        print(f"rows {sum(count for count, _ in contents.values()):,}, SQLite {database / 2**20:.0f} MiB, ", end="")
        print(f"archive {archive.stat().st_size / 2**20:.0f} MiB")
        print("| | s | CPU s | peak MiB |\n|---|---|---|---|")
        for name, command in (("backup", backup), ("restore", restore)):
            print(f"| {name} | {command.seconds:.1f} | {command.cpu:.1f} | {command.peak:.0f} |")
        print(f"PostgreSQL's backends: {restore.served:.0f} MiB at most")
        print(f"killed at {rows:,} rows of a table after {killed.seconds:.1f} s: nothing left")
        print(f"sums before and after: {sums}")
    finally:
        for stack in stacks:
            stack.close()
        server.stop()
        shutil.rmtree(work)


def _watcher(server):
    """Connect as another user, whom a restore doesn't take for somebody at work there."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as session:
        session.execute("CREATE ROLE watcher SUPERUSER LOGIN")
    return psycopg.connect(server.url.replace("//sluice@", "//watcher@"), autocommit=True)


if __name__ == "__main__":
    main()
