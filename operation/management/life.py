"""What `tenants` and `people` have in common: an export into a file, and an erasure that is asked for twice."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError
from django.db import DatabaseError

from base.database.connections import without_limits
from base.errors import ServiceError
from control.belongings import erasure, export
from control.belongings.traces import Words, still_written
from operation.backup.archive import place
from operation.serve.processes import stopped_by_exit
from tenancy.models import Tenant, User


def add_verbs(verbs: Any, noun: str, metavar: str) -> None:
    """Add the verbs `export` and `erase` to a command whose `noun` is "tenant" or "person"."""
    write = verbs.add_parser(
        "export", help=f"write everything of a {noun} into one ZIP archive of JSON lines and files"
    )
    write.add_argument("name", metavar=metavar)
    write.add_argument("--output", required=True, type=Path, metavar="PLACE", help="a new file, or a folder for one")
    erase = verbs.add_parser("erase", help=f"erase a {noun}: names, keys, content and files; the books stay, nameless")
    erase.add_argument("name", metavar=metavar)
    erase.add_argument("--yes", action="store_true", help="don't ask for the name to be typed")
    erase.add_argument("--wait", type=float, default=60.0, metavar="SECONDS", help="for requests that run to end (60)")
    if noun == "tenant":
        force = "end its subscription and void the credit that it paid for"
        erase.add_argument("--force", action="store_true", help=force)


def tenants_verb(command: BaseCommand, options: dict[str, Any]) -> None:
    """Do `tenants export` or `tenants erase`."""
    tenant = _tenant(options["name"])
    if options["verb"] == "export":
        _write(command, partial(export.of_tenant, tenant), options["output"], tenant.slug)
        return
    if tenant.erased_at is not None:
        _do(lambda: erasure.erase_tenant(tenant))
        command.stdout.write(
            f"{tenant.slug} was erased on {tenant.erased_at:%Y-%m-%d}, and has nothing that came later"
        )
        return
    doomed = erasure.tenants_end(tenant)
    if doomed.obstacle and not options["force"]:
        raise CommandError(
            f"{tenant.slug} is not erased: {doomed.obstacle}; end and refund that first, or give --force, which ends "
            "the subscription and voids the credit"
        )
    _ask(command, doomed, tenant.slug, options)
    name, slug = tenant.name, tenant.slug
    erasure.end_tenant(tenant)
    _wait(tenant, options["wait"])
    _do(lambda: erasure.erase_tenant(tenant))
    _tell_end(command, slug, Words([name, slug]))


def peoples_verb(command: BaseCommand, options: dict[str, Any]) -> None:
    """Do `people export` or `people erase`."""
    email = options["name"].strip().lower()
    user = User.objects.filter(email=email).first()
    if options["verb"] == "export":
        if user is None:
            raise CommandError(f"nobody has the address {email}")
        _write(command, partial(export.of_person, user), options["output"], email)
        return
    doomed = erasure.persons_end(email)
    if doomed.obstacle:
        raise CommandError(doomed.obstacle)
    if not doomed.goes:
        command.stdout.write(f"no account, mail or event has the address {email}")
    else:
        _ask(command, doomed, email, options)
    words = Words([email, *([user.name] if user is not None and " " in user.name else [])])
    if user is not None:
        erasure.end_person(user)
        _wait(user, options["wait"])
    _do(lambda: erasure.erase_person(email))
    _tell_end(command, email, words)


def _tenant(name: str) -> Tenant:
    found = list(Tenant.objects.filter(slug=name)) or list(Tenant.objects.filter(name=name))
    if len(found) > 1:
        raise CommandError(f"{len(found)} tenants are called {name!r}: give the slug, such as {found[0].slug}")
    if not found:
        raise CommandError(f"there is no tenant {name!r}; an erased one has another name")
    return found[0]


def _ask(command: BaseCommand, doomed: erasure.Doomed, name: str, options: dict[str, Any]) -> None:
    """Say what goes, and have the name typed."""
    command.stdout.write(
        f"{name} is erased for ever; backups and archived months that hold it keep it until they are deleted. It loses:"
    )
    for line in doomed.goes:
        command.stdout.write(f"  {line}")
    command.stdout.write("Usage, transfers, grants and subscriptions stay with their sums, without names.")
    if options["yes"]:
        return
    if not sys.stdin.isatty():
        raise CommandError("nothing was erased: give --yes where nobody can type the name")
    command.stdout.write(f"Type {name} to go on: ", ending="")
    command.stdout.flush()
    if sys.stdin.readline().strip() != name:
        raise CommandError("nothing was erased: that was another name")


def _wait(owner: Tenant | User, seconds: float) -> None:
    """Wait until nothing of the owner's runs any more."""
    try:
        erasure.wait_for_end(owner, seconds)
    except ServiceError as error:
        raise CommandError(error.message) from error


def _do(erase: Callable[[], object]) -> None:
    """Erase without the time limits of statements: some read every row of a long table."""
    try:
        with without_limits():
            erase()
    except (ServiceError, OSError, DatabaseError) as error:
        said = " ".join(str(error).split())
        raise CommandError(f"{said}: what is erased stays so: run this again for the rest.") from error


def _tell_end(command: BaseCommand, name: str, words: Words) -> None:
    command.stdout.write(f"{name} is erased")
    for row in still_written(words):
        command.stdout.write(f"its name still stands in the {row}, which operators wrote: rename that in the admin")


def _write(command: BaseCommand, begin: Callable[[], Iterator[bytes]], target: Path, name: str) -> None:
    """Write the archive to a new file of mode 0600; on failure nothing is left."""
    target = target.resolve()
    if target.is_dir():
        target /= f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.zip"
    if target.exists():
        raise CommandError(f"{target} exists already: choose another name, or give a folder")
    if not target.parent.is_dir():
        raise CommandError(f"{target.parent} is no folder")
    try:
        with (
            stopped_by_exit("stopped: no export was made"),
            tempfile.NamedTemporaryFile(dir=target.parent, prefix=".sluice-export-") as draft,
        ):
            for piece in begin():
                draft.write(piece)
            draft.flush()
            os.fsync(draft.fileno())
            place(Path(draft.name), target)
    except OSError as error:
        reason = error.strerror or error
        raise CommandError(f"{target} can't be written: {reason}: make room there, or give another place") from error
    command.stdout.write(f"{target}: {target.stat().st_size / 2**20:.1f} MiB")
