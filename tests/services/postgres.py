"""A PostgreSQL server for one test run: own cluster, own folder, Unix socket and loopback port, no leftovers."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tests.services.ports import lease_port


def find_binaries() -> Path:
    """Return the folder of the newest installed server binaries, or raise with what to install."""
    on_path = shutil.which("initdb")
    candidates = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda p: int(p.parts[-3]))
    if candidates:
        return candidates[-1].parent
    if on_path:
        return Path(on_path).parent
    raise RuntimeError("PostgreSQL's server binaries are missing: run `make system` (Debian: postgresql)")


@dataclass(frozen=True)
class PostgresServer:
    """A running server; `url` connects as its superuser."""

    folder: Path
    binaries: Path
    port: int

    @property
    def url(self) -> str:
        return f"postgresql://sluice@127.0.0.1:{self.port}/sluice"

    @classmethod
    def start(cls, *options: str) -> PostgresServer:
        """Make a cluster and start it; as root everything runs as another user, as PostgreSQL demands."""
        binaries = find_binaries()
        folder = Path(tempfile.mkdtemp(prefix="sluice-pg-", dir="/tmp"))
        server = cls(folder=folder, binaries=binaries, port=lease_port())
        if os.geteuid() == 0:
            shutil.chown(folder, server._user())
        initdb = ("initdb", "-D", "data", "-U", "sluice", "--auth=trust", "--no-sync", "--encoding=UTF8", "--locale=C")
        server._run(*initdb)
        settings = ["fsync=off", "max_connections=200", "listen_addresses=127.0.0.1", *options]
        flags = " ".join([f"-p {server.port}", f"-k {folder}", *(f"-c {setting}" for setting in settings)])
        (folder / "flags").write_text(flags)
        server.start_again()
        server._run("createdb", "-h", "127.0.0.1", "-p", str(server.port), "-U", "sluice", "sluice")
        return server

    def start_again(self) -> None:
        """Start the server on its cluster."""
        flags = (self.folder / "flags").read_text()
        self._run("pg_ctl", "-D", "data", "-l", "log", "-w", "-o", flags, "start")

    def shut_down(self) -> None:
        """Stop the server and keep its cluster; whoever is connected is cut off."""
        self._run("pg_ctl", "-D", "data", "-m", "fast", "-w", "stop")

    def freeze(self) -> list[int]:
        """Stop all processes of the server in their tracks and return their ids, for `thaw`."""
        postmaster = int((self.folder / "data" / "postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGSTOP)  # first, so that no child is born meanwhile
        family = [postmaster]
        for status in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                if int(status.read_text().rpartition(")")[2].split()[1]) == postmaster:
                    family.append(int(status.parent.name))
        for pid in family[1:]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)
        return family

    @staticmethod
    def thaw(family: list[int]) -> None:
        """Let the processes go on."""
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)

    def stop(self) -> None:
        """Stop the server at once and remove its folder."""
        self._run("pg_ctl", "-D", "data", "-m", "immediate", "stop")
        shutil.rmtree(self.folder, ignore_errors=True)

    @staticmethod
    def _user() -> str:
        for name in ("postgres", "nobody"):
            try:
                return pwd.getpwnam(name).pw_name
            except KeyError:
                continue
        raise RuntimeError("no unprivileged user to run PostgreSQL as: create `postgres`")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self.binaries / program), *arguments]
        as_user = {"user": self._user(), "group": pwd.getpwnam(self._user()).pw_gid} if os.geteuid() == 0 else {}
        done = subprocess.run(
            command,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=False,
            extra_groups=[] if as_user else None,
            stdin=subprocess.DEVNULL,
            **as_user,
        )
        if done.returncode != 0:
            log = self.folder / "log"
            raise RuntimeError(f"{program} failed: {done.stdout}{done.stderr}{log.read_text() if log.exists() else ''}")
