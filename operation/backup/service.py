"""Making a backup while everything runs, and restoring one into a home where nothing does."""

from __future__ import annotations

import importlib.metadata
import sqlite3
from collections import defaultdict
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.db.migrations.loader import MigrationLoader

from billing.services.holds import end_restored_leases
from fleet.worker_specs import is_worker_running
from operation.backup import archive, from_sqlite, home, postgresql, secrets, sqlite
from operation.backup import files as tenants_files
from operation.backup.archive import BACKUP, RESTORE, BackupError, Manifest, work_folder
from operation.setup import former_migrations, moved_home
from operation.setup.steps import Steps

SECRETS = "secrets.json"


@dataclass(frozen=True, slots=True)
class Restored:
    """Result of a restore, and the work that it left.

    `former` is the SQLite file that was replaced, `kept` are records that stayed as they were, `unset` the files whose
    values the environment has to give, by variable, `open_holds` how many requests ran when the backup was made, and
    `files` how many of tenants' files and adapters were put back.
    """

    manifest: Manifest
    former: Path | None
    kept: list[str]
    unset: dict[str, Path]
    open_holds: int
    files: int


@dataclass(frozen=True, slots=True)
class Made:
    """A backup that was written to `path`, with so many `files` and adapters; `missing` ones had lost their bytes."""

    path: Path
    manifest: Manifest
    files: int
    missing: int


def back_up(target: Path, show: Steps, *, with_files: bool = True) -> Made:
    """Write a backup to `target`, or to a new file in it if it is a folder; raise BackupError, and leave nothing there,
    if that can't be done.
    """
    try:
        return _made(target, show, with_files=with_files)
    except (OSError, sqlite3.Error) as error:
        raise archive.unwritten(target, error) from error


def _made(target: Path, show: Steps, *, with_files: bool) -> Made:
    now = datetime.now(UTC)
    if target.is_dir():
        target /= f"sluice-{now:%Y%m%dT%H%M%SZ}.tar.gz"
    if target.exists():
        raise BackupError(f"{target} exists already: choose another name, or give a folder")
    if not target.name.endswith(".tar.gz"):
        raise BackupError(f"there is no folder {target}: make it, or name a new file that ends in .tar.gz")
    if not target.parent.is_dir():
        raise BackupError(f"{target.parent} is no folder")
    with work_folder(target.parent, BACKUP) as folder:
        # First the database, then the records: of a hold that is open there, its worker's record knows the end.
        member = _member(connection.vendor)
        files = {member: folder / member}
        with show.step("database"):
            _dump(files[member])
        files[SECRETS] = folder / SECRETS
        files[SECRETS].write_bytes(msgspec.json.encode(secrets.in_use()))
        files |= {f"home/{each}": path for each, path in home.copied(settings.SLUICE_HOME, folder).items()}
        manifest = Manifest(
            format=archive.FORMAT,
            sluice=_version(),
            made_at=now.isoformat(timespec="seconds"),
            database=connection.vendor,
            migrations=_applied(),
            members={each: archive.described(path) for each, path in files.items()},
            home=str(settings.SLUICE_HOME),
        )
        # Files last: whatever the copied database names was whole before, and never changes.
        stored = tenants_files.Stored()
        with show.step("archive, with tenants' files" if with_files else "archive"):
            count = archive.write(target, manifest, files, stored if with_files else (), within=folder)
    return Made(target, manifest, count, stored.missing)


def restore(source: Path, show: Steps, *, replace: bool) -> Restored:
    """Restore a backup and bring its tables up to date; raise BackupError, nothing changed, if that can't be done.

    With `replace` the database may hold something, which is lost (PostgreSQL) or moved aside (SQLite). A backup of
    SQLite may be restored into PostgreSQL. Only where the disk fails late, or we are killed late, is the database
    another one already: it says so (`moved_home.is_unfinished`) until the restore has been run again.
    """
    try:
        return _restored(source, show, replace=replace)
    except OSError as error:
        where, reason = error.filename or settings.SLUICE_HOME, error.strerror or error
        raise BackupError(f"{where} can't be written: {reason}: mend that, then run the restore again") from error


def _restored(source: Path, show: Steps, *, replace: bool) -> Restored:
    place = settings.SLUICE_HOME
    with _alone(), work_folder(place, RESTORE) as folder:
        with show.step("reading and checking the archive"):
            manifest, files = archive.read(source, folder)
        _refuse_foreign(manifest)
        if not replace and _has_tables() and not moved_home.is_unfinished():
            raise BackupError("the database isn't empty: --replace puts the backup in its place")
        if is_worker_running("local"):
            raise BackupError("a worker runs on this home: stop it first")
        kept_secrets = msgspec.json.decode(files[SECRETS].read_bytes(), type=dict[str, str])
        of_home = {name.removeprefix("home/"): path for name, path in files.items() if name.startswith("home/")}
        home.check_names(of_home)
        of_tenants = {name: path for name, path in files.items() if name.startswith(archive.FILES)}
        tenants_files.check_names(of_tenants)
        with tenants_files.put_back(of_tenants):  # before the rows that name them
            former = _restore(manifest, files[_member(manifest.database)], show)
        with show.step("secrets, records, migrations"):
            kept = home.put_back(of_home, place)
            unset = secrets.take_over(kept_secrets, place)
            former_migrations.take_over()
            call_command("migrate", verbosity=0, interactive=False)
            moved_home.take_over([Path(manifest.home)] if manifest.home else [])
            open_holds = end_restored_leases()
        with connection.cursor() as cursor:
            cursor.execute(f"DROP TABLE {moved_home.UNFINISHED}")
        return Restored(manifest, former, kept, unset, open_holds, len(of_tenants))


def _refuse_foreign(manifest: Manifest) -> None:
    if manifest.database not in ("sqlite", connection.vendor):
        wanted = f"DATABASE_URL names {connection.vendor}: have it name one of {manifest.database}"
        raise BackupError(f"the backup is of {manifest.database}, and {wanted}")
    applied = _named(manifest.migrations)
    if former_migrations.are_former(applied):
        if manifest.database != connection.vendor:
            way = "restore it into SQLite first, and move a backup of that"
            raise BackupError(f"the backup is from before 0.1.0 and can't go to another database at once: {way}")
        if not applied >= former_migrations.LAST:
            raise BackupError(f"the backup's database can't be taken over: {former_migrations.UNFINISHED}")
        return
    known = MigrationLoader(None).disk_migrations
    for app, name in sorted(applied):
        if app in former_migrations.APPS and (app, name) not in known:
            raise BackupError(
                f"the backup was made by Sluice {manifest.sluice}, which is newer than this one: "
                f"migration {app}.{name} isn't known here"
            )


def _named(migrations: Mapping[str, list[str]]) -> set[tuple[str, str]]:
    return {(app, name) for app, names in migrations.items() for name in names}


def _member(database: str) -> str:
    return postgresql.MEMBER if database == "postgresql" else sqlite.MEMBER


def _dump(path: Path) -> None:
    if connection.vendor == "postgresql":
        postgresql.dump(_parameters(), path)
    else:
        sqlite.dump(_file(), path)


def _has_tables() -> bool:
    return postgresql.has_tables(_parameters()) if connection.vendor == "postgresql" else sqlite.has_tables(_file())


def _alone() -> AbstractContextManager[None]:
    """Keep gateways and jobs from beginning on SQLite; on PostgreSQL each session counts, and is looked for then."""
    return nullcontext() if connection.vendor == "postgresql" else sqlite.alone(_file())


def _restore(manifest: Manifest, path: Path, show: Steps) -> Path | None:
    connections.close_all()
    if connection.vendor == "sqlite":
        return sqlite.restore(path, _file())
    connection.close_pool()  # type: ignore[attr-defined] # PostgreSQL's wrapper has it
    if manifest.database == "sqlite":
        if _named(manifest.migrations) != MigrationLoader(None).disk_migrations.keys():
            with show.step("migrations since the backup"):
                from_sqlite.upgrade(path)
        from_sqlite.copy(path, _parameters(), show)
    else:
        with show.step("database"):
            postgresql.restore(path, _parameters())
    return None


def _parameters() -> dict[str, Any]:
    return connection.get_connection_params()


def _file() -> Path:
    return Path(str(connection.settings_dict["NAME"]))


def _applied() -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for app, name in sorted(MigrationLoader(connection).applied_migrations):
        found[app].append(name)
    return dict(found)


def _version() -> str:
    try:
        return importlib.metadata.version("sluice")
    except importlib.metadata.PackageNotFoundError:
        return "unknown"
